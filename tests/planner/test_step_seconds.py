"""The seconds of a step's parts: stages on their ranks, messages with their packing, buckets and updates by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holmes_runtime.config.codec import pack_s, unpack_s
from planner.cost.collectives import PassTimes, Path
from planner.cost.counts import edge_values
from planner.cost.slot import Slot, update_s
from planner.problem.candidates import Candidate
from planner.schedule.buckets import BucketExchange
from planner.schedule.step_seconds import RankSeconds, ReplicaSeconds, gradient_buckets, slowest_update_s
from planner.search.closed_form import NO_EDGE, Edge
from tests.planner.fleets import bed_job, gpt_7b

JOB = bed_job()
TWO = Candidate(1, 2, 3, 1)
EXECUTION = TWO.execution(JOB)
FAST = RankSeconds(PassTimes(1.0, 2.0), PassTimes(5.0, 7.0), 0.5)
SLOW = RankSeconds(PassTimes(10.0, 20.0), PassTimes(50.0, 70.0), 0.25)
WIRE, BACK = Edge(3.0, 0.1), Edge(4.0, 0.2)
REPLICA = ReplicaSeconds([FAST, SLOW], [WIRE, BACK], [WIRE, BACK])


def test_stages_go_around_the_ranks_and_the_head_is_on_the_last() -> None:
    assert REPLICA.compute_s((2, 3, 1, 4)) == [(2, 4), (30, 60), (1, 2), (40 + 50, 80 + 70)]


def test_an_action_takes_its_own_seconds_and_edges_lead_back_to_the_first_rank() -> None:
    times = REPLICA.times(JOB, EXECUTION, (1, 1, 1, 1))
    assert times.forward_s == (1.5, 10.25, 1.5, 60.25)
    assert (times.forward_edge_s, times.latency_s) == ((3, 4, 3), (0.1, 0.2, 0.1))


def test_without_messages_neither_edges_nor_actions_take_time() -> None:
    times = REPLICA.times(JOB, EXECUTION, (1, 1), messages=False)
    assert (times.forward_s, times.backward_s) == ((1, 10 + 50), (2, 20 + 70))
    assert (times.forward_edge_s, times.backward_edge_s, times.under_way_s()) == ((0,), (0,), (0,))


def test_a_single_stage_runs_no_actions_of_a_pipeline() -> None:
    assert ReplicaSeconds([FAST], [NO_EDGE], [NO_EDGE]).times(JOB, EXECUTION, (2,)).forward_s == (2 + 5,)


def test_both_ends_of_an_edge_pack_and_unpack() -> None:
    packed = replace(REPLICA, forward_edges=[WIRE._replace(codec="int8"), BACK])
    plain, times = (each.times(JOB, EXECUTION, (1, 1)) for each in (REPLICA, packed))
    values = edge_values(JOB.model, EXECUTION)
    assert times.forward_s[0] - plain.forward_s[0] == pytest.approx(pack_s("cpu", "int8", values))
    assert times.forward_s[1] - plain.forward_s[1] == pytest.approx(unpack_s("cpu", "int8", values))
    assert times.backward_s == plain.backward_s


def test_a_value_passes_every_edge_but_the_one_back() -> None:
    assert REPLICA.latency_s == 0.1


@pytest.mark.parametrize(("engine", "gather_s"), [("holmes", 1.0), ("megatron-2021", 0.0)])
def test_an_engine_that_keeps_weights_whole_gathers_none_at_the_start(engine: str, gather_s: float) -> None:
    job = gpt_7b(engine=engine)
    exchanges = [lambda parameters: BucketExchange(parameters, 1.0)] * 2
    stages = gradient_buckets(job, TWO, (18, 18), [FAST, SLOW], exchanges)
    assert {bucket.gather_s for buckets in stages for bucket in buckets} == {gather_s}
    assert sum(bucket.backward_s for bucket in stages[0]) == 18 * 2
    assert sum(bucket.backward_s for bucket in stages[1]) == 18 * 20 + 70


def test_the_update_waits_for_the_slowest_slot() -> None:
    slots = [Slot(None, Path(1.0), update_bytes_per_s=rate) for rate in (1e9, 1e6)]
    parameters = TWO.rank_parameters(JOB, (9, 1), 1)
    assert slowest_update_s(JOB, TWO, EXECUTION, (9, 1), [slots[:1], slots]) == update_s(
        parameters, EXECUTION, slots[1]
    )
