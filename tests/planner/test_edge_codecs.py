"""Which edges are packed, how lossily, and what the plan says of it."""

from __future__ import annotations

from typing import Any

import pytest

from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import Plan
from planner.advice.advise import advise
from planner.layout.edge_codecs import WORTH, WORTH_AN_EDGE
from planner.layout.reprice import reprice
from planner.layout.verify import verify
from tests.planner.fleets import UNHURRIED, bed_job, cpu_inventory, plan_for, random_inventory
from tests.seeds import seed_ranges

EMULATE = {"emulate": {"forward_s_per_layer": 0.004, "backward_s_per_layer": 0.008}}
PARALLEL = {"pp": 2, "dp": 2, "micro_batch_size": 2}


def clusters_apart(slow_mbps: float) -> Inventory:
    """Two hosts in each of two clusters, 500 Mbit/s inside."""
    return cpu_inventory([2, 2], fabric_gbps=0.5, shared_gbps=slow_mbps / 1e3)


def codec_plan(slow_mbps: float, codec: str, **changes: Any) -> Plan:
    """The plan with leave for `codec`."""
    job = {"compute": EMULATE, "parallel": PARALLEL, "wire": {"edges": codec}} | changes
    return plan_for(clusters_apart(slow_mbps), bed_job(**job))


def codecs(plan: Plan) -> set[str]:
    """Of all groups."""
    return {group.codec for group in plan.groups}


def crossing_bytes(plan: Plan) -> int:
    """What the shared network carries a step."""
    return sum(traffic.sent_bytes for traffic in plan.prediction.traffic if traffic.network == "shared")


def test_without_leave_nothing_is_packed() -> None:
    assert codecs(codec_plan(10, "none")) == {"none"}


def test_a_slow_edge_is_packed_as_far_as_job_yaml_allows() -> None:
    plan = codec_plan(10, "int4")
    assert {group.codec for group in plan.groups if group.axis.startswith("pp")} == {"int4"}
    assert {group.codec for group in plan.groups if group.axis == "dp"} == {"none"}
    assert crossing_bytes(codec_plan(10, "none", parallel=PARALLEL)) / crossing_bytes(plan) > 7.5


def test_an_edge_that_is_hidden_anyway_is_not_packed() -> None:
    assert codecs(codec_plan(2000, "int4")) == {"none"}


@pytest.mark.slow
def test_the_mildest_codec_that_hides_an_edge_is_taken() -> None:
    many = {"global_batch_size": 512, "parallel": PARALLEL | {"schedule": "eager"}}
    found = [codecs(codec_plan(mbps, "int4", **many)) - {"none"} for mbps in (40, 15, 9, 4)]
    assert found == [set(), {"bf16"}, {"int8"}, {"int4"}]


@pytest.mark.slow
@pytest.mark.parametrize("of", seed_ranges(12, few=1))
def test_leave_never_makes_a_plan_slower(of: range) -> None:
    """By more than keeping values whole is worth, on all edges or on one of them."""
    for seed in of:
        steps_s = [
            plan_for(
                random_inventory(seed), bed_job(compute=EMULATE, parallel={}, wire={"edges": codec})
            ).prediction.step_s
            for codec in ("none", "int8", "int4")
        ]
        assert steps_s[1] <= steps_s[0] * WORTH * WORTH_AN_EDGE, seed
        assert steps_s[2] <= steps_s[1] * WORTH * WORTH_AN_EDGE, seed


@pytest.mark.slow
def test_a_wire_too_slow_for_values_as_they_are_is_crossed_packed() -> None:
    free = {"parallel": {"micro_batch_size": 2}}
    assert codec_plan(5, "none", **free).solve.crossing == "nothing"
    assert codec_plan(5, "int4", **free).solve.crossing == "pipeline"


def test_a_plan_priced_again_keeps_its_codecs() -> None:
    plan = codec_plan(10, "int8")
    assert reprice(clusters_apart(10), plan).step_s == pytest.approx(plan.prediction.step_s)


def test_a_codec_beyond_leave_is_a_fault() -> None:
    plan = codec_plan(10, "int8")
    wire = plan.job.wire.model_copy(update={"edges": "bf16"})
    edited = plan.model_copy(update={"job": plan.job.model_copy(update={"wire": wire})})
    assert any("uses codec int8, but job.yaml allows bf16" in fault for fault in verify(edited, clusters_apart(10)))


@pytest.mark.slow
def test_the_plan_says_what_leave_would_gain() -> None:
    plan = codec_plan(10, "none")
    gains = dict(advise(clusters_apart(10), plan, {}, UNHURRIED).codecs)
    assert list(gains) == ["bf16", "int8", "int4"]
    for codec, step_s in gains.items():
        assert step_s == pytest.approx(codec_plan(10, codec).prediction.step_s, rel=0.01)
    assert not advise(clusters_apart(2000), codec_plan(2000, "none"), {}, UNHURRIED).codecs
