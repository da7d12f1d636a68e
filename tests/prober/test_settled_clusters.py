"""Trials of RDMA join and split what facts leave open, never against pins or proofs, in whatever order they come."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from holmes_core.records.inventory import Finding, Host
from prober.fabrics.clusters import find_clusters, place_hosts
from prober.fabrics.settle import RdmaVerdict, Verdict, next_pairs, settle
from prober.rails.choose_rails import with_rails
from tests.builders.railed_hosts import host, infiniband_port
from tests.prober.test_clusters_by_proof import ib_host, leaf_routed, some_fleet

ALIKE = (ib_host("a1", 1), ib_host("a2", 2), ib_host("b1", 1), ib_host("b2", 2))
SITES = {"a1": 1, "a2": 1, "b1": 2, "b2": 2}
LEAVES = tuple(leaf_routed(name, number) for number, name in enumerate("abcd", 1))


def trial(one: str, other: str, verdict: Verdict = "works") -> RdmaVerdict:
    return RdmaVerdict((one, other), verdict, f"ib_write_bw from mlx5_0:1 to mlx5_0:1 {verdict}")


def told(
    hosts: Sequence[Host], trials: Sequence[RdmaVerdict], pinned: dict[str, str] | None = None
) -> tuple[list[tuple[str, ...]], list[Finding]]:
    clusters, findings = find_clusters([with_rails(each) for each in hosts], pinned or {}, trials)
    return [cluster.hosts for cluster in clusters], list(findings)


def severities(findings: Sequence[Finding]) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(finding.rule, finding.severity, finding.hosts) for finding in findings]


def tried(
    hosts: Sequence[Host], fabric_of: dict[str, int], broken: frozenset[str] = frozenset(), rounds: int = 99
) -> list[RdmaVerdict]:
    """All trials that are asked for, of machines that are really on these fabrics; broken ones work with nobody."""
    placing = place_hosts([with_rails(each) for each in hosts], {})
    trials: list[RdmaVerdict] = []
    for _ in range(rounds):
        pairs = next_pairs(settle(placing, trials))
        used = [name for pair in pairs for name in pair]
        assert len(used) == len(set(used))
        if not pairs:
            return trials
        for one, other in pairs:
            works = fabric_of[one] == fabric_of[other] and broken.isdisjoint((one, other))
            trials.append(trial(one, other, "works" if works else "fails"))
    raise AssertionError(f"still asking after {len(trials)} trials")


def test_a_trial_that_works_joins_what_facts_left_apart_and_its_question_goes() -> None:
    clusters, findings = told(LEAVES[:2], [trial("a", "b")])
    assert clusters == [("a", "b")]
    assert severities(findings) == [("CLUSTER-BY-MEASUREMENT", "I", ("a", "b"))]
    assert "a and b: ib_write_bw from mlx5_0:1 to mlx5_0:1 works" in findings[0].evidence


def test_without_trials_the_question_stays() -> None:
    clusters, findings = told(LEAVES[:2], [])
    assert clusters == [("a",), ("b",)]
    assert {finding.rule for finding in findings} == {"CLUSTER-NOT-KNOWN"}


def test_fabrics_that_look_alike_are_found_whole_by_trials() -> None:
    clusters, findings = told(ALIKE, tried(ALIKE, SITES))
    assert clusters == [("a1", "a2"), ("b1", "b2")]
    assert ("CLUSTER-LOOKS-ALIKE", "W") not in {(finding.rule, finding.severity) for finding in findings}


def test_a_trial_that_fails_splits_only_hosts_that_work_with_others() -> None:
    fails, left, right = trial("a", "c", "fails"), trial("a", "b"), trial("c", "d")
    clusters, findings = told(LEAVES, [fails, left, right])
    assert clusters == [("a", "b"), ("c", "d")]
    assert ("CLUSTER-BY-MEASUREMENT", "I", ("a", "c")) in severities(findings)
    assert {finding.severity for finding in findings} == {"I"}
    _, findings = told(LEAVES, [fails, left])
    assert ("CLUSTER-BY-MEASUREMENT", "W", ("a", "c")) in severities(findings)
    assert ("CLUSTER-NOT-KNOWN", "W", ("c",)) in severities(findings)


def test_measurements_that_contradict_leave_it_open_with_a_warning() -> None:
    trials = [trial("a", "b"), trial("b", "c"), trial("a", "c", "fails")]
    clusters, findings = told(LEAVES[:3], trials)
    assert clusters == [("a",), ("b",), ("c",)]
    (said,) = (finding for finding in findings if finding.rule == "CLUSTER-BY-MEASUREMENT")
    assert (said.severity, said.hosts) == ("W", ("a", "b", "c"))
    assert said.evidence.startswith("measurements contradict")
    assert {("CLUSTER-NOT-KNOWN", "W", (name,)) for name in "abc"} <= set(severities(findings))


def test_a_proof_and_a_pin_win_over_trials() -> None:
    clusters, findings = told(ALIKE, [trial("a1", "a2"), trial("a2", "b1")])
    assert clusters == [("a1",), ("a2",), ("b1",), ("b2",)]
    assert ("CLUSTER-BY-MEASUREMENT", "W", ("a1", "a2", "b1")) in severities(findings)
    clusters, findings = told(LEAVES[:3], [trial("a", "b"), trial("b", "c")], {"a": "x", "c": "y"})
    assert clusters == [("a",), ("b",), ("c",)]
    assert ("CLUSTER-BY-MEASUREMENT", "W", ("a", "b", "c")) in severities(findings)


def test_a_host_that_works_with_a_pinned_one_has_its_label() -> None:
    clusters, _ = find_clusters([with_rails(each) for each in LEAVES[:2]], {"b": "x"}, [trial("a", "b")])
    assert [(cluster.name, cluster.hosts) for cluster in clusters] == [("x", ("a", "b"))]


def test_a_host_that_fits_two_fabrics_is_put_with_the_one_it_works_with() -> None:
    hosts = [
        host(name, nics=(infiniband_port("mlx5_0", sm_lid=lid),)) for name, lid in (("a", 1), ("b", 2), ("c", None))
    ]
    clusters, findings = told(hosts, tried(hosts, {"a": 1, "b": 2, "c": 2}))
    assert clusters == [("a",), ("b", "c")]
    assert "CLUSTER-NOT-KNOWN" not in {finding.rule for finding in findings}


def test_what_could_not_be_tried_stays_a_question_that_says_why() -> None:
    missing = RdmaVerdict(("a", "b"), "unknown", "ib_write_bw is missing on b, and TCP proves nothing of RDMA")
    clusters, findings = told(LEAVES[:2], [missing])
    assert clusters == [("a",), ("b",)]
    assert {("CLUSTER-NOT-KNOWN", "W", ("a",)), ("CLUSTER-BY-MEASUREMENT", "W", ("a", "b"))} <= set(
        severities(findings)
    )
    assert any(missing.how in finding.evidence for finding in findings)


def test_hosts_that_nobody_asks_about_are_not_tried() -> None:
    assert tried([ib_host("a", 1), ib_host("b", 2)], {"a": 1, "b": 2}) == []
    assert tried([ib_host("a", 1), ib_host("b", 1)], {"a": 1, "b": 2}) == []


def test_a_host_whose_trial_fails_is_tried_with_a_neighbour() -> None:
    """c is alone, a1 and a2 are proved to be neighbours by the network around them."""
    hosts = (
        *(ib_host("a1", 1, site=1), ib_host("a2", 2, site=1)),
        *(ib_host("b1", 1, site=2), ib_host("b2", 2, site=2), ib_host("c", 3)),
    )
    trials = tried(hosts, {"a1": 1, "a2": 1, "b1": 2, "b2": 2, "c": 2})
    assert RdmaVerdict(("a1", "a2"), "works", trial("a1", "a2").how) in trials
    assert told(hosts, trials)[0] == [("a1", "a2"), ("b1", "b2", "c")]


def test_of_64_hosts_of_one_fabric_few_trials_are_needed() -> None:
    hosts = [leaf_routed(f"h{number:02}", number) for number in range(64)]
    trials = tried(hosts, {each.name: 1 for each in hosts}, rounds=10)
    assert len(trials) == 63
    assert len(told(hosts, trials)[0]) == 1


def some_pairs(choose: random.Random, names: Sequence[str]) -> list[tuple[str, str]]:
    pairs = list(itertools.combinations(names, 2))
    return [choose.choice(pairs) for _ in range(choose.randint(0, 8))]


@given(seed=st.integers(0, 2**32))
def test_the_order_of_hosts_and_trials_changes_nothing(seed: int) -> None:
    choose = random.Random(seed)
    hosts = some_fleet(choose)
    names = [each.name for each in hosts]
    verdicts: tuple[Verdict, ...] = ("works", "fails", "unknown")
    trials = [trial(one, other, choose.choice(verdicts)) for one, other in some_pairs(choose, names)]
    clusters, findings = told(hosts, trials)
    swapped = [RdmaVerdict(each.hosts[::-1], each.verdict, each.how) for each in choose.sample(trials, len(trials))]
    others, said = told(choose.sample(hosts, len(hosts)), swapped)
    assert set(map(frozenset, others)) == set(map(frozenset, clusters))
    assert sorted((each.rule, each.severity, sorted(each.hosts)) for each in said) == sorted(
        (each.rule, each.severity, sorted(each.hosts)) for each in findings
    )


@given(seed=st.integers(0, 2**32))
def test_trials_of_real_fabrics_never_join_two_and_leave_no_facts_behind(seed: int) -> None:
    """Whatever hosts show, and whichever machines are broken: who was together stays, and nobody strange comes in."""
    choose = random.Random(seed)
    hosts = some_fleet(choose)
    placing = place_hosts([with_rails(each) for each in hosts], {})
    before = [set(names) for _, names in placing.groups]
    fabrics = [choose.choice([number, 100]) for number, _ in enumerate(before)]
    fabric_of = {name: at for at, group in zip(fabrics, before, strict=True) for name in group}
    broken = frozenset(each.name for each in hosts if choose.random() < 0.2)
    trials = tried(hosts, fabric_of, broken)
    after, _ = told(hosts, trials)
    assert all(len({fabric_of[name] for name in group}) == 1 for group in after)
    assert all(any(group <= set(names) for names in after) for group in before)
    assert told(hosts, [])[0] == [tuple(names) for _, names in placing.groups]


@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5), seed=st.integers(0, 2**32))
def test_hosts_with_a_subnet_a_port_are_put_as_they_are(sizes: list[int], seed: int) -> None:
    choose = random.Random(seed)
    fabric_of = {f"h{at}{number}": at for at, size in enumerate(sizes) for number in range(size)}
    names = choose.sample(sorted(fabric_of), len(fabric_of))
    hosts = [leaf_routed(name, number) for number, name in enumerate(names)]
    after, _ = told(hosts, tried(hosts, fabric_of))
    pairs = {frozenset(pair) for group in after for pair in itertools.combinations(group, 2)}
    assert pairs == {
        frozenset(pair) for pair in itertools.combinations(names, 2) if fabric_of[pair[0]] == fabric_of[pair[1]]
    }
