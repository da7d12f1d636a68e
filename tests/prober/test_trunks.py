"""Trunks: which pairs run at once, what their rates say, and what hosts.yaml may state."""

from __future__ import annotations

import itertools
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from holmes_core.errors import WRONG_USAGE, HolmesError
from holmes_core.hosts.hosts_file import HostsFile, StatedTrunk, read_hosts_file
from holmes_core.records.link import DIRECTIONS, Link, Spread, Trunk
from holmes_core.records.parse_record import parse
from holmes_core.units import bytes_per_s_from_gbps
from prober.findings.stated_trunks import find_stated_trunks, with_measured
from prober.links.link_pairs import Pair, choose_pairs
from prober.links.link_session import LinkSession
from prober.links.pair_test import LinkLimits
from prober.links.trunk_rate import (
    Flow,
    alone_links,
    behind_trunks,
    limiting_rate,
    rate_together,
    trunk_pairs,
    uplink_pairs,
)
from prober.links.trunk_test import measure_trunk
from prober.probe import probe, replay
from tests.planner.fleets import cpu_inventory

SIZES = st.lists(st.integers(1, 12), min_size=2, max_size=4)


def tcp_links(pairs: tuple[Pair, ...], gbps: float = 1.0) -> list[Link]:
    """Every pair measured both ways, with one stream and with four, of which four did better."""
    return [
        Link(
            kind=pair.kind,
            network=pair.network,
            clusters=pair.clusters,
            hosts=pair.hosts,
            devices=("eth0", "eth0"),
            method="tcp",
            streams=streams,
            direction=direction,
            latency_s=None,
            bandwidth_bytes_per_s=Spread(min=1.0, median=bytes_per_s_from_gbps(gbps * streams)),
            samples=8,
        )
        for pair in pairs
        for direction in DIRECTIONS
        for streams in (1, 4)
    ]


@given(SIZES, st.integers(1, 10))
def test_as_many_pairs_run_at_once_as_share_no_host(sizes: list[int], limit: int) -> None:
    inventory = cpu_inventory(sizes)
    pairs = choose_pairs(inventory, limit)
    chosen = trunk_pairs(pairs, alone_links(tcp_links(pairs)))
    for one, other in itertools.combinations(inventory.clusters, 2):
        most = min(limit, len(one.hosts), len(other.hosts))
        members = chosen.get((one.name, other.name), ())
        hosts = [host for pair in members for host in pair.hosts]
        assert len(members) == (most if most > 1 else 0)
        assert len(hosts) == len(set(hosts))


def test_one_host_on_a_side_has_no_trunk_to_tell_from_its_link() -> None:
    pairs = choose_pairs(cpu_inventory([1, 8]), 8)
    assert trunk_pairs(pairs, alone_links(tcp_links(pairs))) == {}


def test_pair_that_was_not_measured_both_ways_does_not_run_with_others() -> None:
    pairs = choose_pairs(cpu_inventory([2, 2]), 8)
    between = [pair for pair in pairs if pair.kind == "between"]
    lost = between[0].hosts
    links = [link for link in tcp_links(pairs) if (link.hosts, link.direction) != (lost, "backward")]
    assert trunk_pairs(pairs, alone_links(links)) == {}


def test_an_uplink_is_measured_by_pairs_with_all_others_that_share_no_host() -> None:
    pairs = choose_pairs(cpu_inventory([2, 2, 2]), 8)
    chosen = uplink_pairs(pairs, alone_links(tcp_links(pairs)))
    assert list(chosen) == ["a", "b", "c"]
    for cluster, members in chosen.items():
        hosts = [host for pair in members for host in pair.hosts]
        assert (len(members), len(set(hosts))) == (2, 4)
        assert all(cluster in pair.clusters for pair in members)
        assert len({pair.clusters for pair in members}) == 2


def test_two_clusters_or_a_site_of_one_host_have_no_uplink_to_tell_from_their_link() -> None:
    for sizes in ([4, 4], [1, 4, 4]):
        pairs = choose_pairs(cpu_inventory(sizes), 8)
        assert "a" not in uplink_pairs(pairs, alone_links(tcp_links(pairs)))


def test_pairs_behind_a_trunk_carry_no_more_than_that_alone() -> None:
    pairs = [pair for pair in choose_pairs(cpu_inventory([3, 2, 2]), 8) if "a" in pair.clusters]
    to_b = [pair for pair in pairs if pair.clusters == ("a", "b")][:2]
    to_c = [pair for pair in pairs if pair.clusters == ("a", "c")][:1]
    trunk = Trunk(clusters=("a", "b"), bandwidth_bytes_per_s=4.0, source="measured", pairs=2)
    assert behind_trunks([*to_b, *to_c], [4.0, 12.0, 3.0], [trunk]) == [1.0, 3.0, 3.0]
    assert behind_trunks([*to_b, *to_c], [1.0, 2.0, 3.0], [trunk]) == [1.0, 2.0, 3.0]


class SiteSession:
    """A host of a site whose uplink gives each of the transfers at once an equal part; it notes who sends."""

    def __init__(self, host: str, sent: list[str], bytes_per_s: float) -> None:
        self.host, self.sent, self.bytes_per_s = host, sent, bytes_per_s

    def ask(self, command: str, **values: Any) -> dict[str, Any]:
        if command == "send":
            self.sent.append(self.host)
        return {"port": 1, **values}

    def answer(self) -> dict[str, Any]:
        return {"points": [(tenth / 10, tenth / 10 * self.bytes_per_s) for tenth in range(31)]}


@pytest.mark.parametrize(("each", "uplink"), [(0.5, 1.0), (0.9, None)])
def test_an_uplink_is_what_pairs_to_other_clusters_carry_together(each: float, uplink: float | None) -> None:
    pairs = choose_pairs(cpu_inventory([2, 2, 2]), 8)
    alone = alone_links(tcp_links(pairs, 0.25))  # 1 Gbit/s by four streams
    members = uplink_pairs(pairs, alone)["c"]  # the second in each of its pairs
    sent: list[str] = []
    part = bytes_per_s_from_gbps(each)
    names = [host for pair in members for host in pair.hosts]
    sessions = {name: cast(LinkSession, SiteSession(name, sent, part)) for name in names}
    with ThreadPoolExecutor() as pool:
        trunk = measure_trunk(("c",), members, alone, sessions, LinkLimits(), pool)
    assert [host[0] == "c" for host in sent] == [True, True, False, False]
    if uplink is None:
        assert trunk is None
    else:
        assert isinstance(trunk, Trunk)
        assert (trunk.clusters, trunk.source, trunk.pairs) == (("c",), "measured", 2)
        assert trunk.bandwidth_bytes_per_s == pytest.approx(bytes_per_s_from_gbps(uplink), rel=0.1)


def test_pairs_send_with_the_streams_that_did_best_alone() -> None:
    alone = alone_links(tcp_links(choose_pairs(cpu_inventory([2, 2]), 8)))
    assert {link.streams for link in alone.values()} == {4}
    assert {link.kind for link in alone.values()} == {"between"}


def steady(bytes_per_s: float, seconds: float, ended_s: float) -> Flow:
    """A transfer at one rate, a point each 10 ms."""
    count = round(seconds / 0.01)
    points = [(seconds * step / count, bytes_per_s * seconds * step / count) for step in range(count + 1)]
    return Flow(points, ended_s)


def test_rates_of_transfers_at_once_add_up() -> None:
    flows = [steady(100.0, 2.0, 12.0), steady(300.0, 2.0, 12.0)]
    assert rate_together(flows) == pytest.approx(400.0)


def test_only_the_time_in_which_all_ran_counts() -> None:
    """The first flow has the way to itself until the second begins, and again when that has ended."""
    points = [(0.0, 0.0), (0.5, 500.0), (1.5, 1000.0), (2.0, 1500.0)]
    flows = [Flow(points, 10.0), steady(500.0, 1.0, 9.5)]
    assert rate_together(flows) == pytest.approx(1000.0)


def test_transfers_one_after_the_other_tell_nothing() -> None:
    with pytest.raises(ValueError, match=r"of 1.00 s they shared 0.10 s"):
        rate_together([steady(1.0, 1.0, 10.0), steady(1.0, 1.0, 10.7)])


@given(st.lists(st.tuples(st.floats(1.0, 1e9), st.floats(0.5, 3.0), st.floats(0.0, 0.1)), min_size=2, max_size=8))
def test_steady_transfers_add_up_whenever_they_began(flows: list[tuple[float, float, float]]) -> None:
    rates = [rate for rate, _, _ in flows]
    length_s = flows[0][1]
    together = rate_together([steady(rate, length_s, 100.0 + late_s) for rate, _, late_s in flows])
    assert together == pytest.approx(sum(rates), rel=1e-6)


@pytest.mark.parametrize(
    ("ways", "rate"),
    [
        ([(50.0, [48.0, 49.0]), (51.0, [48.0, 49.0])], 50.0),  # they share 50 each way
        ([(98.0, [49.0, 50.0]), (97.0, [49.0, 50.0])], None),  # their own interfaces limit
        ([(86.0, [50.0, 50.0]), (86.0, [50.0, 50.0])], None),  # too little is missing to tell
        ([(98.0, [49.0, 50.0]), (60.0, [50.0, 50.0])], 60.0),  # one way is limited
        ([(30.0, [44.0, 48.0, 49.0]), (140.0, [44.0, 48.0, 49.0])], 48.0),  # it has carried more than 30 for one pair
    ],
)
def test_trunk_is_where_pairs_carry_less_together_than_the_sum_of_each_alone(
    ways: list[tuple[float, list[float]]], rate: float | None
) -> None:
    assert limiting_rate(ways) == rate


def hosts_file(trunks: object, pins: tuple[str | None, ...] = ("a", "b")) -> HostsFile:
    """Two or more hosts, pinned or not, and `trunks:`."""
    hosts = [{"name": f"h{number}", "cluster": pin} for number, pin in enumerate(pins)]
    return parse(HostsFile, {"hosts": hosts, "trunks": trunks}, "hosts.yaml")


@pytest.mark.parametrize(
    ("trunks", "said"),
    [
        ("ten", "trunks: "),
        ({"between": ["a", "b"], "gbps": 1}, "trunks: "),
        ([10], "trunks.0: "),
        ([{"gbps": 1}], "trunks.0: name either `between`"),
        ([{"between": ["a", "b"], "cluster": "a", "gbps": 1}], "trunks.0: name either `between`"),
        ([{"cluster": ["a"], "gbps": 1}], "trunks.0.cluster: "),
        ([{"cluster": "../b", "gbps": 1}], "trunks.0.cluster: "),
        ([{"cluster": "c", "gbps": 1}], "trunks: 0.cluster: no host is pinned to cluster c"),
        ([{"cluster": "a", "gbps": 1}, {"cluster": "a", "gbps": 2}], "1.cluster: a is listed twice"),
        ([{"between": ["a", "b"]}], "trunks.0.gbps: missing"),
        ([{"between": ["a", "b"], "gbps": 0}], "trunks.0.gbps: "),
        ([{"between": ["a", "b"], "gbps": -5}], "trunks.0.gbps: "),
        ([{"between": ["a", "b"], "gbps": math.nan}], "trunks.0.gbps: "),
        ([{"between": ["a", "b"], "gbps": math.inf}], "trunks.0.gbps: "),
        ([{"between": ["a", "b"], "gbps": 1e300}], "trunks.0.gbps: "),
        ([{"between": ["a", "b"], "gbps": "fast"}], "trunks.0.gbps: "),
        ([{"between": ["a", "b"], "gbps": True}], "trunks.0.gbps: "),
        ([{"between": ["a", "b"], "mbps": 5}], "trunks.0.mbps: unknown key"),
        ([{"between": "ab", "gbps": 1}], "trunks.0.between: "),
        ([{"between": ["a"], "gbps": 1}], "trunks.0.between.1: missing"),
        ([{"between": ["a", "b", "c"], "gbps": 1}], "trunks.0.between: "),
        ([{"between": ["a", "b"] * 50_000, "gbps": 1}], "trunks.0.between: "),
        ([{"between": ["a", "a"], "gbps": 1}], "trunks.0.between: cluster a is named twice"),
        ([{"between": ["a", "../b"], "gbps": 1}], "trunks.0.between.1: "),
        (
            [{"between": ["a", "b"], "gbps": 1}, {"between": ["b", "a"], "gbps": 2}],
            "1.between: b and a are listed twice",
        ),
        ([{"between": ["a", "c"], "gbps": 1}], "trunks: 0.between: no host is pinned to cluster c"),
    ],
)
def test_impossible_trunk_is_refused_with_its_key(trunks: object, said: str) -> None:
    with pytest.raises(HolmesError) as refused:
        hosts_file(trunks)
    assert refused.value.what.startswith("hosts.yaml: trunks")
    assert said in refused.value.what
    assert refused.value.exit_code == WRONG_USAGE
    assert len(str(refused.value)) < 1000


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["a", "b", "c"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["between", "cluster", "gbps", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(PLAIN)
def test_whatever_trunks_holds_it_is_taken_or_refused_by_name(trunks: Any) -> None:
    refused = ""
    taken: tuple[StatedTrunk, ...] = ()
    try:
        taken = hosts_file(trunks).trunks
    except HolmesError as error:
        refused = error.what
    assert refused == "" or refused.startswith("hosts.yaml: trunks")
    assert all({"a", "b"}.issuperset(trunk.clusters) and 0 < trunk.gbps < math.inf for trunk in taken)


@pytest.mark.parametrize("pins", [(None, None), ("a", None)])
def test_cluster_that_may_yet_be_found_is_not_refused(pins: tuple[str | None, ...]) -> None:
    assert len(hosts_file([{"between": ["a", "ib-1"], "gbps": 1}], pins).trunks) == 1


def test_file_and_key_are_named(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text("hosts: [a, b]\ntrunks:\n  - {between: [x, y], gbps: .nan}\n", encoding="utf-8")
    with pytest.raises(HolmesError, match=r"hosts\.yaml: line 3: trunks\.0\.gbps: .*nan"):
        read_hosts_file(path)


def stated(one: str, other: str, gbps: float) -> StatedTrunk:
    return StatedTrunk(between=(one, other), gbps=gbps)


def test_stated_trunk_is_in_the_order_of_the_clusters() -> None:
    trunks, findings = find_stated_trunks([stated("b", "a", 10)], cpu_inventory([2, 2]).clusters)
    assert findings == ()
    (trunk,) = trunks
    assert (trunk.clusters, trunk.bandwidth_bytes_per_s, trunk.source) == (("a", "b"), 1.25e9, "hosts.yaml")


def test_stated_trunk_of_a_cluster_that_was_not_found_is_a_finding() -> None:
    trunks, findings = find_stated_trunks([stated("a", "east", 10)], cpu_inventory([1, 1]).clusters)
    assert trunks == ()
    (finding,) = findings
    assert (finding.rule, finding.severity, finding.hosts) == ("NET-TRUNK-UNKNOWN", "W", ("a1", "b1"))
    assert finding.evidence == "`trunks:` is about a and east; found: a, b, not east"


def test_stated_uplink_is_of_one_cluster() -> None:
    trunks, findings = find_stated_trunks([StatedTrunk(cluster="b", gbps=2)], cpu_inventory([2, 2]).clusters)
    assert [(trunk.clusters, trunk.bandwidth_bytes_per_s) for trunk in trunks] == [(("b",), 0.25e9)]
    _, findings = find_stated_trunks([StatedTrunk(cluster="east", gbps=2)], cpu_inventory([1, 1]).clusters)
    assert [finding.evidence for finding in findings] == ["`trunks:` is about east; found: a, b, not east"]


def measured(gbps: float) -> Trunk:
    rate = bytes_per_s_from_gbps(gbps)
    return Trunk(clusters=("a", "b"), bandwidth_bytes_per_s=rate, source="measured", pairs=2)


@pytest.mark.parametrize(("gbps", "rules"), [(7.9, ["NET-TRUNK-LOW"]), (8.1, []), (12.0, [])])
def test_stated_trunk_wins_and_a_far_lower_measurement_is_a_finding(gbps: float, rules: list[str]) -> None:
    trunks, _ = find_stated_trunks([stated("a", "b", 10)], cpu_inventory([2, 2]).clusters)
    inventory = with_measured(cpu_inventory([2, 2]).model_copy(update={"trunks": trunks}), [measured(gbps)])
    assert inventory.trunks == trunks
    assert [finding.rule for finding in inventory.findings] == rules


def test_low_trunk_says_what_was_measured_by_how_many() -> None:
    trunks, _ = find_stated_trunks([stated("a", "b", 10)], cpu_inventory([1, 1]).clusters)
    inventory = with_measured(cpu_inventory([1, 1]).model_copy(update={"trunks": trunks}), [measured(5)])
    (finding,) = inventory.findings
    assert (
        finding.evidence == "a to b: 5 Gbit/s by 2 pairs of hosts at once, 50% of the 10 Gbit/s that hosts.yaml states"
    )
    assert finding.hosts == ("a1", "b1")


def test_low_uplink_names_the_cluster() -> None:
    trunks, _ = find_stated_trunks([StatedTrunk(cluster="b", gbps=10)], cpu_inventory([1, 1]).clusters)
    low = measured(5).model_copy(update={"clusters": ("b",)})
    (finding,) = with_measured(cpu_inventory([1, 1]).model_copy(update={"trunks": trunks}), [low]).findings
    assert finding.evidence.startswith("the uplink of b: 5 Gbit/s by 2 pairs of hosts at once, 50% of the 10 Gbit/s")
    assert finding.hosts == ("b1",)


def test_measured_trunk_counts_where_none_is_stated() -> None:
    assert with_measured(cpu_inventory([2, 2]), [measured(5)]).trunks == (measured(5),)


def nobody_listens(host: str, state: str) -> None:
    """No progress is shown."""


def test_replay_has_the_trunks_that_were_stated(tmp_path: Path) -> None:
    hosts = [{"name": "one", "cluster": "a"}, {"name": "two", "cluster": "b"}]
    data = {"transport": "local", "hosts": hosts, "trunks": [{"between": ["a", "b"], "gbps": 0.5}]}
    probed = probe(HostsFile.model_validate(data), nobody_listens, tmp_path)
    assert [trunk.clusters for trunk in probed.trunks] == [("a", "b")]
    assert replay(tmp_path).to_json() == probed.to_json()


@pytest.mark.slow
def test_replay_asks_for_the_encryption_that_hosts_yaml_asked_for(tmp_path: Path) -> None:
    hosts = [{"name": "one", "cluster": "a"}, {"name": "two", "cluster": "b"}]
    asked = {"between_clusters": "wireguard", "tunnel_gbps": 3}
    data = {"transport": "local", "hosts": hosts, "security": asked}
    probed = probe(HostsFile.model_validate(data), nobody_listens, tmp_path)
    assert probed.encrypts
    assert replay(tmp_path).to_json() == probed.to_json()


@pytest.mark.parametrize(
    ("security", "said"),
    [
        ({"between_clusters": "tls"}, "security.between_clusters: "),
        ({"between_cluster": "wireguard"}, "security.between_cluster: unknown key"),
        ({"between_clusters": "wireguard", "tunnel_gbps": 0}, "security.tunnel_gbps: "),
        ({"tunnel_hub": "a1"}, "tunnel_hub relays a tunnel, but between_clusters is `clear`"),
        ({"between_clusters": "wireguard", "tunnel_hub": "z9"}, "security: tunnel_hub: 'z9' is not among `hosts`"),
        ({"between_clusters": "wireguard", "tunnel_hub_address": "203.0.113.7"}, "tunnel_hub is not set"),
        ({"between_clusters": "wireguard", "tunnel_hub": "a1", "tunnel_hub_address": "gw"}, "tunnel_hub_address: "),
        ({"tunnel_gbps": 3}, "tunnel_gbps limits a tunnel, but between_clusters is `clear`: set it to `wireguard`"),
    ],
)
def test_what_is_no_encryption_is_refused_by_key(security: object, said: str) -> None:
    with pytest.raises(HolmesError) as caught:
        parse(HostsFile, {"hosts": ["a"], "security": security}, "hosts.yaml")
    assert said in caught.value.what


def test_edited_trunks_of_a_recording_are_refused_by_file_and_key(tmp_path: Path) -> None:
    hosts = [{"name": "one", "cluster": "a"}, {"name": "two", "cluster": "b"}]
    data = {"transport": "local", "hosts": hosts, "trunks": [{"between": ["a", "b"], "gbps": 0.5}]}
    probe(HostsFile.model_validate(data), nobody_listens, tmp_path)
    (tmp_path / "trunks.json").write_text('{"trunks": [{"between": ["a", "b"], "gbps": -1}]}', encoding="utf-8")
    with pytest.raises(HolmesError, match=r"trunks\.json: trunks\.0\.gbps"):
        replay(tmp_path)


def test_example_of_hosts_yaml_shows_a_trunk_that_would_be_taken() -> None:
    text = (Path(__file__).parents[2] / "templates" / "hosts.yaml").read_text(encoding="utf-8")
    shown = text[text.index("# trunks:") :].replace("# ", "", 1).replace("\n#", "\n")
    assert len(hosts_file(yaml.safe_load(shown)["trunks"]).trunks) == 1
