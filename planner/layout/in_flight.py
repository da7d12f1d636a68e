"""The micro-batches that memory has room for, which limit the schedules a running job may change to."""

from __future__ import annotations

from holmes_runtime.config.schedule import DEEPENED
from planner.cost.rank_memory import memory_bytes
from planner.cost.trained import dense_layers
from planner.layout.layout import Layout
from planner.problem.problem import Problem


def room_in_flight(problem: Problem, layout: Layout) -> tuple[int, ...]:
    """Return, by pipeline rank, the micro-batches of a step that its hosts have room for.

    Empty if memory is not known, and for schedules that fix the number in flight.
    """
    known = [
        [
            memory
            for rank in layout.ranks
            if rank.pp_rank == pp_rank and (memory := problem.fleet.hosts[rank.host].hardware.memory_bytes) is not None
        ]
        for pp_rank in range(layout.candidate.pp)
    ]
    if layout.mode.schedule not in DEEPENED or layout.candidate.pp == 1 or not any(known):
        return ()
    return tuple(_room(problem, layout, pp_rank, memories) for pp_rank, memories in enumerate(known))


def _room(problem: Problem, layout: Layout, pp_rank: int, memories: list[int]) -> int:
    most = max(layout.microbatches)

    def needed_bytes(in_flight: int) -> int:
        return memory_bytes(
            problem.job.model,
            layout.candidate.execution(problem.job),
            (layout.layers[pp_rank],),
            (in_flight,),
            pp_rank == 0,
            pp_rank == layout.last_stage,
            dense_layers(problem.job.model, layout.layers)[pp_rank : pp_rank + 1],
        )

    if not memories:
        return most
    per_microbatch = needed_bytes(1) - needed_bytes(0)
    return max(1, min(most, (min(memories) - needed_bytes(0)) // max(1, per_microbatch)))
