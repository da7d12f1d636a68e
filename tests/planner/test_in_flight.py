"""How many micro-batches memory has room for: what a run under way may have in flight."""

from __future__ import annotations

from typing import Any

import pytest

from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import Plan
from holmes_runtime.config.schedule import microbatches_in_flight
from planner.cost.rank_memory import memory_bytes
from planner.problem.candidates import Candidate
from tests.planner.fleets import GIB, bed_job, cpu_inventory, gpt_7b, gpu_inventory, plan_for
from tests.seeds import few_of


def gpu_hosts_of_memory(memory_gib: int) -> Inventory:
    """Two hosts of eight GPUs whose memory is so large."""
    made = gpu_inventory((1, 1), gpus_per_host=8)
    return made.model_copy(
        update={
            "hosts": tuple(
                host.model_copy(
                    update={"gpus": tuple(g.model_copy(update={"memory_bytes": memory_gib * GIB}) for g in host.gpus)}
                )
                for host in made.hosts
            )
        }
    )


def four_stage_plan(memory_gib: int, **parallel: Any) -> Plan:
    """Of layers that are not compiled, so that every schedule may run them."""
    return plan_for(
        gpu_hosts_of_memory(memory_gib), gpt_7b(compile=False, parallel={"pp": 4, "micro_batch_size": 1, **parallel})
    )


def needed_bytes(plan: Plan, rank: int, in_flight: int) -> int:
    candidate = Candidate(plan.tp, plan.pp, plan.dp, plan.micro_batch_size, plan.recompute)
    layers, execution = (plan.stages[rank].num_layers,), candidate.execution(plan.job)
    return memory_bytes(plan.job.model, execution, layers, (in_flight,), rank == 0, rank == plan.pp - 1)


@pytest.mark.parametrize("schedule", few_of(1, ["1f1b", "eager"]))
@pytest.mark.parametrize("memory_gib", few_of(1, [40, 80]))
def test_room_is_the_most_that_memory_holds(memory_gib: int, schedule: str) -> None:
    plan = four_stage_plan(memory_gib, schedule=schedule)
    most = max(plan.microbatches)
    assert len(plan.room_in_flight) == plan.pp
    for rank, room in enumerate(plan.room_in_flight):
        held = microbatches_in_flight(plan.schedule, plan.pp, most, rank, 1, plan.extra_in_flight)
        assert held[0] <= room <= most
        assert needed_bytes(plan, rank, room) <= memory_gib * GIB
        assert room == most or needed_bytes(plan, rank, room + 1) > memory_gib * GIB


@pytest.mark.slow
def test_more_memory_has_more_room() -> None:
    small, large = (four_stage_plan(memory_gib, tp=2, schedule="1f1b") for memory_gib in (40, 80))
    assert sum(small.room_in_flight) < sum(large.room_in_flight)


@pytest.mark.slow
def test_nothing_is_said_where_memory_is_not_known_or_the_schedule_fixes_it() -> None:
    assert plan_for(cpu_inventory([2, 2]), bed_job(parallel={"schedule": "eager"})).room_in_flight == ()
    assert four_stage_plan(80, schedule="zero-bubble").room_in_flight == ()
