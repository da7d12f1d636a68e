"""The simulation on cores that all ranks share, against timelines worked by hand."""

from __future__ import annotations

import random

import pytest

from holmes_core.records.inventory import Inventory
from holmes_runtime.config.schedule import ScheduleName
from planner.layout.reprice import plan_timeline
from planner.schedule.shared_core_runs import run_sharing, simulate_sharing
from planner.schedule.simulate import PipelineTimes, ReplicaSchedule, ScheduleOrder, end_s, simulate
from tests.planner.fleets import bed_job, cpu_inventory, plan_for
from tests.planner.test_shared_cores import one_machine
from tests.seeds import few_of

SCHEDULES: tuple[ScheduleName, ...] = ("gpipe", "1f1b", "eager", "interleaved", "zero-bubble")
TWO = PipelineTimes((2.0, 2.0), (4.0, 4.0), (0.0,), (0.0,))  # while both ranks compute at once


def pipeline(schedule: ScheduleName, microbatches: int, times: PipelineTimes, pp: int = 2) -> ReplicaSchedule:
    extra = (0,) * (pp - 1) if schedule == "eager" else ()
    return ReplicaSchedule(ScheduleOrder(schedule, pp, microbatches, len(times.forward_s) // pp, extra), times)


def test_a_rank_alone_has_the_cores_of_the_one_that_waits() -> None:
    # One micro-batch: never do both compute.
    assert simulate([pipeline("1f1b", 1, TWO)]) == 12
    assert simulate_sharing([pipeline("1f1b", 1, TWO)], most_faster=2.0) == 6
    # With no more threads than one and a half cores' worth.
    assert simulate_sharing([pipeline("1f1b", 1, TWO)], most_faster=1.5) == 8


def test_ranks_share_while_both_compute() -> None:
    # F0 0-1 alone, F1 with rank 1's F0 1-3, its F1 3-4 and B0 4-6 alone, B0 with its B1 6-10, B1 10-12 alone.
    shared_s = simulate_sharing([pipeline("gpipe", 2, TWO)], most_faster=2.0)
    assert shared_s == 12
    assert simulate([pipeline("gpipe", 2, TWO)]) == 18


def test_replicas_that_compute_all_the_time_are_as_slow_as_all_at_once() -> None:
    alone = PipelineTimes((2.0,), (4.0,), (), ())
    replicas = [pipeline("1f1b", 4, alone, pp=1)] * 2
    assert simulate_sharing(replicas, most_faster=2.0) == simulate(replicas) == 24
    # One with half the work leaves its cores to the other, which then has 12 s of work left.
    assert simulate_sharing([replicas[0], pipeline("1f1b", 2, alone, pp=1)], most_faster=2.0) == 12 + 6


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("seed", range(8))
def test_it_is_never_slower_than_all_at_once_nor_faster_than_the_cores(schedule: ScheduleName, seed: int) -> None:
    draw = random.Random(seed)
    pp, replicas, most_faster = draw.choice([2, 3, 4]), draw.choice([1, 2]), draw.choice([1.25, 2.0, 3.0])
    stages = pp * (2 if schedule == "interleaved" else 1)

    def seconds(count: int) -> tuple[float, ...]:
        return tuple(draw.uniform(0, 2) for _ in range(count))

    stage_s, edge_s = (seconds(stages), seconds(stages)), (seconds(stages - 1), seconds(stages - 1))
    times = PipelineTimes(*stage_s, *edge_s, split_factor=1.3, latency_s=seconds(stages - 1))
    pipelines = [pipeline(schedule, pp * draw.choice([1, 2]), times, pp) for _ in range(replicas)]
    at_once_s, shared_s = simulate(pipelines), simulate_sharing(pipelines, most_faster=most_faster)
    work_s = sum(times.work_s()[work] for each in pipelines for _, _, work, *_ in each.order.precedence.waits)
    assert at_once_s / most_faster <= shared_s * (1 + 1e-9)
    assert work_s / (pp * replicas) <= shared_s * (1 + 1e-9)
    assert shared_s <= at_once_s * (1 + 1e-9)
    assert simulate_sharing(pipelines, most_faster=1.0 + 1e-12) == pytest.approx(at_once_s)


FOUR = bed_job(parallel={"tp": 1, "pp": 4, "dp": 1, "micro_batch_size": 4, "schedule": "1f1b"})


def predicted_s(inventory: Inventory) -> float:
    return plan_for(inventory, FOUR).prediction.step_s


def test_a_pipeline_on_one_machine_is_not_priced_as_though_all_ranks_computed_at_once() -> None:
    """Four ranks on two cores: twice the seconds where all compute, and while it fills and drains not."""
    apart, one = cpu_inventory([4]), one_machine(cpu_inventory([4]))
    plan = plan_for(one, FOUR)
    assert predicted_s(apart) < plan.prediction.step_s < 1.9 * predicted_s(apart)
    assert max(span.end_s for span in plan_timeline(one, plan)) == pytest.approx(
        plan.prediction.step_s - plan.prediction.optimizer_s
    )


def test_on_several_machines_it_is_not_followed_who_computes_at_once() -> None:
    inventory = cpu_inventory([4])
    two = {"a1": "x", "a2": "x", "a3": "y", "a4": "y"}
    hosts = [host.model_copy(update={"boot_id": two[host.name], "cpu_count": 1}) for host in inventory.hosts]
    pairs = inventory.model_copy(update={"hosts": tuple(hosts)})
    assert predicted_s(pairs) > predicted_s(one_machine(inventory))


@pytest.mark.parametrize("schedule", few_of(2, SCHEDULES))
def test_of_very_many_microbatches_some_are_counted_and_not_simulated(schedule: ScheduleName) -> None:
    times = PipelineTimes((1.0, 1.5) * 2, (2.0, 2.5) * 2, (0.3, 0.2, 0.1), (0.2, 0.3, 0.1))
    if schedule != "interleaved":
        times = PipelineTimes((1.0, 1.5), (2.0, 2.5), (0.3,), (0.2,))
    pipelines = [pipeline(schedule, count, times) for count in (800, 700)]
    whole_s = end_s(run_sharing(pipelines, (), 2.0))
    counted_s = simulate_sharing(pipelines, (), 2.0)
    assert counted_s == pytest.approx(whole_s, rel=0.02)
