"""A search for less memory: a mode that takes about as long as the fastest but less memory is better.

A full GPU has no room for bytes that the memory model does not count. More micro-batches in flight must be worth it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from planner.problem.problem import Problem
from planner.schedule.placement_simulator import PlacementSimulator, simulator_of
from planner.schedule.run_mode import SIMPLEST, RunMode
from planner.schedule.runners_up import Contender

WORTH_MEMORY = 0.002  # of a step: the least gain of a schedule over one that needs less memory
MAX_EDGES = 5  # pipelines with at most this many edges are made shallower edge by edge, not only as a whole


def in_least_memory(problem: Problem, contender: Contender) -> Contender:
    """Return the contender in the mode whose fullest rank needs the least memory, at `WORTH_MEMORY` of a step at most.

    It is unchanged if it already needs the least, or if memory is not known.
    """
    placement, fastest = contender.found.placement, contender.mode
    simulator = simulator_of(problem, placement)
    within_s = fastest.step_s * (1 + WORTH_MEMORY)

    def timed(mode: RunMode) -> RunMode | None:
        """Return the mode with its seconds; None if it takes too long."""
        if simulator.lower_bound_s(mode) > within_s:
            return None
        found = simulator.timed(mode, within_s)
        return found if found.step_s <= within_s else None

    least, least_share = fastest, simulator.fullest_share(fastest)
    modes = (mode for mode in _modes(simulator, fastest, timed) if simulator.fullest_share(mode) < least_share)
    for mode in sorted(modes, key=lambda mode: (simulator.fullest_share(mode), SIMPLEST.index(mode.schedule))):
        found = timed(mode)
        if found is not None:
            least = found
            break
    return replace(contender, mode=least)


def _modes(
    simulator: PlacementSimulator, fastest: RunMode, timed: Callable[[RunMode], RunMode | None]
) -> Iterator[RunMode]:
    """Yield the other schedules, and the fastest mode made as shallow as possible without losing time."""
    yield from simulator.allowed_modes(eager=False)
    if any(fastest.extra_in_flight):
        yield _shallowest(fastest, timed)


def _shallowest(mode: RunMode, timed: Callable[[RunMode], RunMode | None]) -> RunMode:
    """Return `mode` with the least in flight that takes no longer: all edges capped first, then each edge by itself."""
    extra = mode.extra_in_flight

    def least(most: int, shallower: Callable[[int], RunMode]) -> int:
        """Return the least depth that is fast enough, assuming that deeper ones are too; `most` is."""
        too_shallow = -1
        while most - too_shallow > 1:
            middle = (most + too_shallow) // 2
            if timed(shallower(middle)) is None:
                too_shallow = middle
            else:
                most = middle
        return most

    def capped(depth: int) -> RunMode:
        return mode._replace(extra_in_flight=tuple(min(each, depth) for each in extra))

    found = capped(least(max(extra), capped))
    for edge in range(len(extra) if len(extra) <= MAX_EDGES else 0):
        row = found.extra_in_flight

        def alone(depth: int, row: tuple[int, ...] = row, edge: int = edge) -> RunMode:
            return mode._replace(extra_in_flight=(*row[:edge], depth, *row[edge + 1 :]))

        found = alone(least(row[edge], alone))
    return found
