"""A longer round than job.yaml fixes, if the run would be much faster with less frequent exchanges."""

from __future__ import annotations

from dataclasses import replace

from holmes_core.records.islands import LongerRound
from planner.islands.island_plans import IslandPlans
from planner.islands.setting_choice import choose_round, is_possible

MIN_GAIN = 1.05


def longer_round(islands: IslandPlans, tokens_per_s: float) -> LongerRound | None:
    """Return the best round that is longer than the job's, if the fastest of those is faster than `tokens_per_s`.

    All other fixed keys stay. If the job leaves the inner steps open or takes all of them, the plan's round is already
    the longest.
    """
    section = islands.job.islands
    if section is None or not isinstance(section.inner_steps, int):
        return None
    job = islands.job.model_copy(update={"islands": replace(section, inner_steps=None)})
    rounds, _ = replace(islands, job=job).own_rounds
    longer = [each for each in rounds if each.settings.inner_steps > section.inner_steps and is_possible(each)]
    best = choose_round(longer)
    if best is None or max(each.cost.tokens_per_s for each in longer) < MIN_GAIN * tokens_per_s:
        return None
    return LongerRound(
        inner_steps=best.settings.inner_steps,
        tokens_per_s=best.cost.tokens_per_s,
        loss=best.loss,
    )
