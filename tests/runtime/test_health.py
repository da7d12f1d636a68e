"""Verdicts on slow hosts and links, worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holmes_runtime.config.codec import Codec
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.config.run_settings import Expectation
from holmes_runtime.config.verdicts import DataIsSlow, HostIsSlow, LinkIsSlow, Verdict
from holmes_runtime.health.judge import verdicts
from holmes_runtime.health.measured_times import EdgeTime, Measured

from .launched_runs import make_config

# Four hosts in two pipelines: stage 0 on host0 and host2, stage 1 on host1 and host3.
CONFIG = make_config(pipelines=((0, 1), (2, 3)), cuts=(0, 1, 3))
FORWARD = ("forward-0-0", "forward-1-0")
EDGES = ("forward-0-0", "backward-0-0", "forward-1-0", "backward-1-0")


def run(compute_s: tuple[float, ...] = (0.1, 0.2, 0.1, 0.2)) -> RunConfig:
    return replace(CONFIG, expectation=Expectation(compute_s, dict.fromkeys(EDGES, 0.05), {}))


def measure(compute_s: tuple[float, ...], **transfer_s: float) -> Measured:
    """What the ranks say; an edge not named took as long as planned."""
    edges = {name: EdgeTime(0.001, transfer_s.get(name.replace("-", "_"), 0.05)) for name in EDGES}
    return Measured(tuple(s / 3 for s in compute_s), tuple(2 * s / 3 for s in compute_s), edges)


def judged(config: RunConfig, measured: Measured) -> list[Verdict]:
    """The verdicts on a run that goes on as it is."""
    return verdicts(config, config, measured, config.edge_settings)


def test_a_run_as_planned_is_not_worth_a_word() -> None:
    assert judged(run(), measure((0.11, 0.25, 0.1, 0.14))) == []


def test_a_host_that_computes_longer_than_planned_is_named() -> None:
    (verdict,) = judged(run(), measure((0.1, 0.36, 0.1, 0.2)))

    assert isinstance(verdict, HostIsSlow)
    assert (verdict.host, round(verdict.ratio, 6)) == ("host1", 1.8)
    assert verdict.sentence == "slow host host1: computes 1.8x longer than planned"


def test_a_rank_that_waits_for_its_samples_is_named_and_no_other() -> None:
    usual = measure((0.1, 0.2, 0.1, 0.2))
    assert judged(run(), replace(usual, reading_s=(0.0, 0.0, 0.001, 0.01), step_s=0.5)) == []
    (verdict,) = judged(run(), replace(usual, reading_s=(0.0, 0.0, 0.3, 0.01), step_s=0.5))
    assert verdict == DataIsSlow("host2", 2, 0.3, 0.5)
    assert verdict.sentence.startswith("slow data on host2: rank 2 waits 0.3 s of a step of 0.5 s")


def test_when_every_host_is_slow_the_plan_is_wrong() -> None:
    (verdict,) = judged(run(), measure((0.2, 0.4, 0.2, 0.6)))

    assert verdict.sentence.startswith("every host computes 2.0x to 3.0x longer than planned")


def test_a_slow_link_is_named_from_sender_to_receiver() -> None:
    found = judged(run(), measure((0.1, 0.2, 0.1, 0.2), forward_0_0=0.115, backward_1_0=0.1))

    assert [verdict.sentence for verdict in found] == [
        "slow link host0-host1: 2.3x longer than planned (0.115 s a message, not 0.05 s)",
        "slow link host3-host2: 2.0x longer than planned (0.1 s a message, not 0.05 s)",
    ]


def test_a_slow_link_that_is_hidden_is_not_worth_a_word() -> None:
    deep = make_config(pipelines=((0, 1), (2, 3)), cuts=(0, 1, 3), schedule="eager", extra_in_flight=(3,))
    config = replace(deep, expectation=Expectation((0.1, 0.2, 0.1, 0.2), dict.fromkeys(EDGES, 0.05), {}))
    found = measure((0.1, 0.2, 0.1, 0.2), forward_0_0=0.115, backward_1_0=0.1)

    assert judged(config, found) == []
    assert len(judged(run(), found)) == 2


def test_a_message_packed_otherwise_than_planned_is_compared_as_if_it_were_not() -> None:
    codecs = make_config(pipelines=((0, 1), (2, 3)), cuts=(0, 1, 3), codecs={"pp_forward": "int8"})
    ratio = codecs.message_bytes("none") / codecs.message_bytes("int8")
    measured = measure((0.1, 0.2, 0.1, 0.2), forward_0_0=0.001 + 0.114 / ratio, forward_1_0=0.001 + 0.049 / ratio)

    found = verdicts(run(), codecs, measured, run().edge_settings)

    assert [verdict.sentence for verdict in found] == [
        "slow link host0-host1: 2.3x longer than planned (0.115 s a message, not 0.05 s)"
    ]
    assert verdicts(run(), codecs, measured, codecs.edge_settings) == []


def test_a_link_that_only_the_first_and_the_last_message_wait_for_is_not_worth_a_word() -> None:
    deep = make_config(
        pipelines=((0, 1), (2, 3)),
        cuts=(0, 1, 3),
        schedule="eager",
        extra_in_flight=(3,),
        codecs={"pp_forward": "int8"},
    )
    config = replace(deep, expectation=Expectation((0.1, 0.2, 0.1, 0.2), dict.fromkeys(EDGES, 0.01), {}))

    assert judged(config, measure((0.1, 0.2, 0.1, 0.2), forward_0_0=0.15)) == []
    assert len(judged(config, measure((0.1, 0.2, 0.1, 0.2), forward_0_0=0.25))) == 1


def test_links_that_are_slow_together_are_named_where_each_alone_would_not_be() -> None:
    both = measure((0.1, 0.2, 0.1, 0.2), forward_0_0=0.08, backward_0_0=0.08)

    found = judged(run(), both)

    assert [verdict.sentence.split(":")[0] for verdict in found] == ["slow link host0-host1", "slow link host1-host0"]
    assert judged(run(), measure((0.1, 0.2, 0.1, 0.2), forward_0_0=0.08)) == []


def run_across(**settings: object) -> RunConfig:
    """Both pipelines go from cluster a to b, over a trunk of 20 Mbit/s that their edges share."""
    across = make_config(pipelines=((0, 1), (2, 3)), cuts=(0, 1, 3), **settings)  # type: ignore[arg-type]
    ranks = tuple(replace(rank, cluster="ab"[rank.pp_rank]) for rank in across.grid.ranks)
    expected = Expectation((0.1, 0.2, 0.1, 0.2), dict.fromkeys(EDGES, 0.05), dict.fromkeys(EDGES, 1.25e6))
    return replace(across, ranks=ranks, expectation=expected)


@pytest.mark.parametrize("codec", ["none", "int8"])
def test_slow_links_that_are_all_of_a_trunk_are_one_verdict_on_its_rate(codec: Codec) -> None:
    config = run_across(codecs={"pp_forward": codec})
    wire_s = 0.25  # of a message, beside the millisecond that a small one takes
    found = measure((0.1, 0.2, 0.1, 0.2), forward_0_0=0.001 + wire_s, forward_1_0=0.001 + wire_s)

    (verdict,) = judged(config, found)

    assert isinstance(verdict, LinkIsSlow)
    assert (verdict.trunk, verdict.links) == (("a", "b"), 2)
    assert verdict.carried_bytes_per_s == pytest.approx(2 * config.message_bytes(codec) / wire_s)
    assert verdict.planned_bytes_per_s == 2.5e6


def test_the_verdict_on_a_trunk_says_both_rates_before_all_else() -> None:
    verdict = LinkIsSlow("a1", "b1", 6.67, 0.333, 0.05, ("ib-1", "roce-1"), 4, 0.375e6, 2.5e6)

    assert verdict.sentence == (
        "the trunk ib-1 - roce-1 carries 3 Mbit/s, planned 20 Mbit/s: a message from a1 to b1 takes 0.333 s, not 0.05 s"
    )


def test_a_slow_link_beside_one_as_planned_is_not_said_to_be_the_trunk() -> None:
    (verdict,) = judged(run_across(), measure((0.1, 0.2, 0.1, 0.2), forward_0_0=0.115))

    assert verdict.sentence == "slow link host0-host1: 2.3x longer than planned (0.115 s a message, not 0.05 s)"


def test_slow_links_beside_some_as_planned_are_one_verdict_on_the_worst() -> None:
    (verdict,) = judged(run_across(), measure((0.1, 0.2, 0.1, 0.2), forward_0_0=0.115, backward_1_0=0.2))

    assert isinstance(verdict, LinkIsSlow)
    assert (verdict.trunk, verdict.links, round(verdict.ratio, 6)) == (("a", "b"), 2, 4.0)
    assert verdict.sentence.startswith("slow link host3-host2: 4.0x longer than planned")
    assert verdict.sentence.endswith("; the worst of 2 between a and b")


def test_a_host_with_a_slow_link_is_not_a_slow_host() -> None:
    found = judged(run(), measure((0.1, 0.2, 0.1, 0.2), forward_0_0=10.0))

    assert [verdict.sentence.split(":")[0] for verdict in found] == ["slow link host0-host1"]


def test_without_an_expectation_there_is_no_verdict() -> None:
    assert judged(CONFIG, measure((9.0, 9.0, 9.0, 9.0))) == []
    assert judged(run(compute_s=()), measure((9.0, 9.0, 9.0, 9.0))) == []
