"""The mode in which a placement runs, and the parts of the resulting step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.config.schedule import ScheduleName, microbatches_in_flight
from planner.cost.counts import Execution
from planner.cost.rank_memory import memory_bytes
from planner.cost.trained import dense_layers
from planner.schedule.simulate import ScheduleOrder
from planner.tolerances import RELATIVE_TOLERANCE

CHUNKS = (2, 3, 4)  # tried unless fixed
SIMPLEST: tuple[ScheduleName, ...] = ("1f1b", "gpipe", "eager", "interleaved", "zero-bubble")
_memory_bytes = lru_cache(maxsize=4096)(memory_bytes)  # many modes and neighbouring placements have the same ranks


class RunMode(NamedTuple):
    """The mode in which a placement runs."""

    schedule: ScheduleName
    chunks: int
    extra_in_flight: tuple[int, ...]  # micro-batches by edge, in addition to 1F1B's
    layers: tuple[int, ...]  # by stage, pp x chunks of them
    step_s: float  # simulated by classes; before that, its lower bound

    def order(self, pp: int, num_microbatches: int) -> ScheduleOrder:
        """Return the order in which a replica of `pp` ranks runs `num_microbatches` micro-batches."""
        return ScheduleOrder(self.schedule, pp, num_microbatches, self.chunks, self.extra_in_flight)

    def rank_memory_bytes(
        self, model: ModelShape, execution: Execution, pp: int, num_microbatches: int
    ) -> Iterator[int]:
        """Yield the bytes that each of `pp` ranks needs if the busiest replica runs `num_microbatches`."""
        dense = dense_layers(model, self.layers)
        for rank in range(pp):
            held = microbatches_in_flight(self.schedule, pp, num_microbatches, rank, self.chunks, self.extra_in_flight)
            layers, ends = self.layers[rank::pp], (rank == 0, rank == pp - 1)
            yield _memory_bytes(model, execution, layers, held, *ends, dense[rank::pp])


@dataclass(frozen=True)
class StepParts:
    """Seconds of a step: compute of the busiest rank, waits of ranks for one another, and time that links add."""

    compute_s: float
    bubble_s: float
    edges_s: float
    gradients_s: float
    optimizer_s: float = 0.0

    @property
    def step_s(self) -> float:
        """Their sum."""
        return self.compute_s + self.bubble_s + self.edges_s + self.gradients_s + self.optimizer_s


def simplest(run: Sequence[RunMode]) -> RunMode:
    """Return the simplest of the fastest: the earliest schedule, the fewest chunks, the least in flight."""
    fastest_s = min(mode.step_s for mode in run)
    return min(
        (mode for mode in run if mode.step_s <= fastest_s * (1 + RELATIVE_TOLERANCE)),
        key=lambda mode: (SIMPLEST.index(mode.schedule), mode.chunks, sum(mode.extra_in_flight)),
    )
