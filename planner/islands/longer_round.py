"""A longer round than job.yaml has, where it would make the run much faster: islands that exchange less often."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import takewhile

from holmes_core.records.islands import LongerRound
from planner.islands.island_plans import IslandPlans
from planner.islands.island_rounds import IslandRound

MAX_INNER_STEPS = 500  # the rounds of DiLoCo's own runs (arXiv 2311.08105, section 3)
MIN_GAIN = 1.05
NEAR = 1.02  # of two rounds as near as that the shorter one is better: it costs less loss


def longer_round(islands: IslandPlans, tokens_per_s: float) -> LongerRound | None:
    """Return the shortest round that is about as fast as any longer one, if it is faster than `tokens_per_s`.

    A round has at most half of the job's steps. The plans of islands stay, as their steps do not depend on the round.
    """
    speeds = dict(_speeds(islands))
    fastest = max(speeds.values(), default=0.0)
    if fastest < MIN_GAIN * tokens_per_s:
        return None
    steps = next(steps for steps, speed in speeds.items() if speed * NEAR >= fastest)
    return LongerRound(inner_steps=steps, tokens_per_s=speeds[steps])


def _speeds(islands: IslandPlans) -> Iterator[tuple[int, float]]:
    """Yield inner steps, each twice those before, and the tokens/s of the best round that has as many."""
    section, most = islands.job.islands, min(MAX_INNER_STEPS, islands.job.steps // 2)
    assert section is not None
    doubled = (section.inner_steps << times for times in range(1, MAX_INNER_STEPS.bit_length() + 1))
    for steps in takewhile(lambda steps: steps <= most, doubled):
        job = islands.job.model_copy(update={"islands": replace(section, inner_steps=steps)})
        best = replace(islands, job=job).best_round()
        if isinstance(best, IslandRound):
            yield steps, best.cost.tokens_per_s
