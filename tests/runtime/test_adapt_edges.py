"""How edges are used best by what was measured: worked by hand, and whatever is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holmes_runtime.config.codec import CODECS, Codec, EdgeSettings
from holmes_runtime.config.precedence import find_precedence
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.config.schedule import ScheduleName, make_schedule
from holmes_runtime.config.verdicts import EdgeAdapted
from holmes_runtime.health.adapt_edges import adapt
from holmes_runtime.health.examination import adapted_edges
from holmes_runtime.health.measured_times import EdgeTime, Measured, StepEstimate
from holmes_runtime.health.pipeline_seconds import MeasuredPipeline, pipeline_s
from planner.schedule import simulate

from .launched_runs import make_config

PIPELINES = {2: ((0, 1),), 3: ((0, 1, 2),)}
MICROBATCHES = 128  # so many that what the first and the last message take does not count
COMPUTE_S = 0.1  # of a micro-batch on every stage
SMALL_S = 0.002  # there and back


def run(
    pp: int = 2,
    schedule: ScheduleName = "eager",
    extra: Sequence[int] = (),
    codec: Codec = "none",
    lossiest: Codec = "int4",
    room: Sequence[int] = (),
    dp: int = 1,
    microbatches: int = MICROBATCHES,
) -> RunConfig:
    """Hosts of one rank each, stages of a layer."""
    pipelines = [[replica * pp + stage for stage in range(pp)] for replica in range(dp)]
    return make_config(
        pipelines=pipelines,
        cuts=(*range(pp), 3),
        schedule=schedule,
        extra_in_flight=(extra or (0,) * (pp - 1)) if schedule == "eager" else (),
        microbatches=[microbatches] * dp,
        codecs={"pp_forward": codec, "pp_backward": codec},
        lossiest_codec=lossiest,
        room_in_flight=room,
    )


def measured(config: RunConfig, unpacked_s: float | dict[str, float], small_s: float = SMALL_S) -> Measured:
    """Every stage computes as long; a message that is not packed takes `unpacked_s` beside the way, by group."""
    edges = {}
    for group in config.groups:
        if group.axis.startswith("pp"):
            share = config.message_bytes(group.codec) / config.message_bytes("none")
            busy_s = unpacked_s if isinstance(unpacked_s, float) else unpacked_s[group.name]
            edges[group.name] = EdgeTime(small_s, small_s + busy_s * share)
    each = (COMPUTE_S / 3,) * config.world_size, (2 * COMPUTE_S / 3,) * config.world_size
    return Measured(*each, edges)


def adapted(
    config: RunConfig, unpacked_s: float | dict[str, float], small_s: float = SMALL_S
) -> list[tuple[object, ...]]:
    return [tuple(edge) for edge in adapt(config, config, measured(config, unpacked_s, small_s))]


def test_an_edge_that_is_hidden_stays_as_it_is() -> None:
    assert adapted(run(), 0.0005) == [("none", "none", 0)]


def test_depth_comes_before_loss() -> None:
    assert adapted(run(), 0.05) == [("none", "none", 1)]


def test_latency_is_hidden_by_depth_alone() -> None:
    ((activations, gradients, extra),) = adapted(run(), 0.0005, small_s=0.3)
    assert (activations, gradients, extra) == ("none", "none", 3)


@pytest.mark.parametrize(("unpacked_s", "codec"), [(0.1, "none"), (0.18, "bf16"), (0.35, "int8"), (0.6, "int4")])
def test_the_mildest_codec_that_keeps_pace_is_taken(unpacked_s: float, codec: Codec) -> None:
    ((activations, gradients, extra),) = adapted(run(), unpacked_s)
    assert (activations, gradients) == (codec, codec)
    assert extra in (1, 2)


def test_only_the_direction_that_is_slow_is_packed() -> None:
    ((activations, gradients, _),) = adapted(run(), {"forward-0-0": 0.001, "backward-0-0": 0.18}, small_s=0.001)
    assert (activations, gradients) == ("none", "bf16")


def test_a_codec_that_is_not_allowed_is_never_taken() -> None:
    assert adapted(run(lossiest="bf16"), 10.0)[0][:2] == ("bf16", "bf16")
    assert adapted(run(lossiest="none"), 10.0)[0][:2] == ("none", "none")


def test_what_was_packed_goes_back_when_the_wire_is_fast_again() -> None:
    plan, now = run(extra=(1,)), run(codec="int8", extra=(2,))
    assert adapt(plan, now, measured(now, 0.02)) == plan.edge_settings


def test_what_was_packed_stays_while_the_wire_is_slow() -> None:
    plan = run()
    now = plan.with_edge_settings(adapt(plan, plan, measured(plan, 0.35)))
    assert now.edge_settings[0].activations == "int8"
    for noise in (0.9, 0.97, 1.03, 1.1):
        assert adapt(plan, now, measured(now, 0.35 * noise)) == now.edge_settings


def test_an_edge_planned_packed_that_turns_out_hidden_is_packed_no_more() -> None:
    assert adapted(run(codec="int8"), 0.0005) == [("none", "none", 0)]


def test_a_gain_of_less_than_five_percent_changes_nothing() -> None:
    config = run(schedule="gpipe", microbatches=16)
    now_s, packed_s = (
        StepEstimate(config, measured(config, 0.03)).step_s([EdgeSettings(codec, codec, 0)])
        for codec in ("none", "int4")
    )
    assert 1.02 * packed_s < now_s < 1.05 * packed_s  # the first message in and the last one out
    assert adapted(config, 0.03) == [("none", "none", 0)]


def test_memory_bounds_the_depth() -> None:
    assert adapted(run(lossiest="none"), 0.001, small_s=1.0)[0][2] == 10
    assert adapted(run(lossiest="none", room=(6, 32)), 0.001, small_s=1.0)[0][2] == 4
    assert adapted(run(lossiest="none", room=(2, 1)), 0.001, small_s=1.0)[0][2] == 0


def test_what_memory_does_not_allow_in_depth_is_made_up_by_a_codec() -> None:
    assert adapted(run(), 0.08, small_s=0.0) == [("none", "none", 2)]
    ((activations, gradients, extra),) = adapted(run(room=(2, 1)), 0.08, small_s=0.0)
    assert extra == 0
    assert (activations, gradients) == ("int4", "int4")


def test_a_plan_of_1f1b_becomes_eager_and_goes_back() -> None:
    plan = run(schedule="1f1b")
    deeper = plan.with_edge_settings(adapt(plan, plan, measured(plan, 0.05)))
    assert (deeper.schedule, deeper.extra_in_flight) == ("eager", (1,))
    back = plan.with_edge_settings(adapt(plan, deeper, measured(deeper, 0.0005)))
    assert (back.schedule, back.extra_in_flight) == ("1f1b", ())


def test_what_packing_takes_is_weighed_against_what_it_saves() -> None:
    plan, message = run(lossiest="int8", room=(2, 1)), 8192 * 4096  # values: to pack and unpack one takes 0.17 s
    large = replace(plan, model=replace(plan.model, seq_length=8192, hidden_size=4096, num_heads=32, num_kv_heads=32))
    assert large.message_bytes("none") == 4 * message
    small_s, large_s = ([each[:2] for each in adapt(p, p, measured(p, 0.1))] for p in (plan, large))
    assert small_s == [("int8", "int8")]
    assert "int8" not in large_s[0]


@pytest.mark.parametrize("schedule", ["gpipe", "zero-bubble"])
def test_other_schedules_change_codecs_alone(schedule: ScheduleName) -> None:
    assert adapted(run(schedule=schedule), 0.5) == [("int4", "int4", 0)]


def test_the_slowest_replica_decides_for_all() -> None:
    config = run(dp=2)
    slow = dict.fromkeys(("forward-0-0", "backward-0-0"), 0.001) | dict.fromkeys(("forward-1-0", "backward-1-0"), 0.35)
    settings = adapt(config, config, measured(config, slow))
    assert settings[0][:2] == ("int8", "int8")
    assert {group.codec for group in config.with_edge_settings(settings).groups if group.axis != "dp"} == {"int8"}


def test_what_stays_inside_a_host_is_never_packed() -> None:
    config = run(pp=3)
    together = [replace(rank, host="host1") if rank.rank == 2 else rank for rank in config.ranks]
    wires = dict.fromkeys(("forward-0-0", "backward-0-0"), 0.6) | dict.fromkeys(("forward-0-1", "backward-0-1"), 0.08)
    config = replace(config, ranks=tuple(together))
    first, second = adapt(config, config, measured(config, wires))
    assert first[:2] == ("int4", "int4")
    assert second[:2] == ("none", "none")


SCHEDULES: tuple[ScheduleName, ...] = ("1f1b", "eager", "gpipe", "zero-bubble")
seconds = st.floats(1e-6, 3.0)


@st.composite
def situations(draw: st.DrawFn) -> tuple[RunConfig, RunConfig, Measured]:
    """A plan, how its edges are used now, and what was measured."""
    pp = draw(st.sampled_from([2, 3]))
    schedule: ScheduleName = draw(st.sampled_from(SCHEDULES))
    lossiest: Codec = draw(st.sampled_from(CODECS))
    room = [pp - rank + draw(st.integers(1, 4)) for rank in range(pp)] if draw(st.booleans()) else ()
    plan = run(pp, schedule, lossiest=lossiest, room=room, dp=draw(st.integers(1, 2)), microbatches=8)
    codecs = st.sampled_from(plan.allowed_codecs)
    extra = int(schedule in ("1f1b", "eager")) * int(not room)
    now = plan.with_edge_settings([EdgeSettings(draw(codecs), draw(codecs), extra) for _ in plan.edge_settings])
    edges = {
        group.name: EdgeTime(small := draw(seconds), small + draw(seconds))
        for group in plan.groups
        if group.axis.startswith("pp")
    }
    forward_s, backward_s = (tuple(draw(seconds) for _ in plan.ranks) for _ in range(2))
    return plan, now, Measured(forward_s, backward_s, edges)


@given(situations())
def test_whatever_is_measured_the_answer_is_allowed_and_no_slower(case: tuple[RunConfig, RunConfig, Measured]) -> None:
    plan, now, what = case
    found = adapt(plan, now, what)

    changed = plan.with_edge_settings(found)  # itself refuses a codec that is too lossy
    assert all(codec in plan.allowed_codecs for each in found for codec in each[:2])
    assert changed.schedule == plan.schedule or (plan.schedule, changed.schedule) == ("1f1b", "eager")
    if plan.room_in_flight and found != now.edge_settings:
        for rank, room in enumerate(plan.room_in_flight):
            assert min(8, plan.pp - rank + sum(each.extra_in_flight for each in found[rank:])) <= room
    estimate = StepEstimate(now, what)
    assert estimate.step_s(found) <= estimate.step_s(now.edge_settings) * 1.02 + 1e-9


@given(situations())
def test_measured_again_after_a_change_the_same_wires_change_nothing_more(
    case: tuple[RunConfig, RunConfig, Measured],
) -> None:
    plan, now, what = case
    found = adapt(plan, now, what)
    after = plan.with_edge_settings(found)
    edges = {}
    for group, new in zip(now.groups, after.groups, strict=True):
        if group.name in what.edges:
            time, ratio = what.edges[group.name], now.message_bytes(new.codec) / now.message_bytes(group.codec)
            edges[group.name] = EdgeTime(time.small_s, time.small_s + (time.full_s - time.small_s) * ratio)
    assert adapt(plan, after, replace(what, edges=edges)) == found


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "eager", "interleaved", "zero-bubble"])
@pytest.mark.parametrize("latency_s", [0.0, 0.7])
def test_seconds_of_a_pipeline_are_those_the_planner_simulates(name: ScheduleName, latency_s: float) -> None:
    chunks = 2 if name == "interleaved" else 1
    extra = (1, 0, 2) if name == "eager" else ()
    actions, count = make_schedule(name, 4, 8, chunks, extra), 4 * chunks
    forward_s, backward_s = ([1.0 + (seed * stage) % 5 / 4 for stage in range(count)] for seed in (3, 7))
    out_s, back_s = ([(seed * edge) % 3 / 2 for edge in range(4)] for seed in (1, 2))
    wires = [((latency_s, out), (latency_s, back)) for out, back in zip(out_s, back_s, strict=True)]

    out, back = (tuple(each[stage % 4] for stage in range(count - 1)) for each in (out_s, back_s))
    planned = simulate.PipelineTimes(
        tuple(forward_s), tuple(backward_s), out, back, latency_s=(latency_s,) * (count - 1)
    )
    expected_s = simulate.end_s([simulate.run_pipeline(find_precedence(actions), planned)])
    assert pipeline_s(actions, MeasuredPipeline(forward_s, backward_s, wires)) == pytest.approx(expected_s)


def test_what_changed_is_said_by_edge() -> None:
    config = run(dp=2)
    what = measured(config, {"forward-0-0": 0.29, "backward-0-0": 0.1, "forward-1-0": 0.3, "backward-1-0": 0.2})

    assert adapted_edges(config, what, config.edge_settings) == []
    (said,) = adapted_edges(config, what, (EdgeSettings("int8", "none", 2),))
    settings_before_and_after = (EdgeSettings("none", "none", 0), EdgeSettings("int8", "none", 2))
    assert said[:4] == (("host0", "host2"), ("host1", "host3"), *settings_before_and_after)
    assert isinstance(said, EdgeAdapted)
    assert said[4:] == pytest.approx((0.302, 0.202))
    assert said.sentence == (
        "edge host0+host2-host1+host3: activations none -> int8, extra micro-batches in flight 0 -> 2 from the next "
        "step on (0.302 s a message of activations, 0.202 s of gradients)"
    )
