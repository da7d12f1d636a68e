"""Islands that would be faster than the plan: with a longer round, or without a setting that rules them out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations

from holmes_core.records.islands import LongerRound, SlowerMode
from holmes_core.records.plan import SourceFile
from holmes_runtime.config.run_settings import IslandsSettings
from planner.islands.island_plans import IslandPlans, plan_islands
from planner.islands.island_rounds import IslandRound
from planner.islands.setting_choice import choose_round, is_possible

OF_A_ROUND = ("fragments", "delay_steps", "inner_steps")


def find_slower_by(
    islands: IslandPlans,
    sources: tuple[SourceFile, SourceFile],
    tokens_per_s: float,
    time_limit_s: float,
    tell: Callable[[str], None],
) -> SlowerMode | None:
    """Return the setting without which islands would be much faster than `tokens_per_s`; None if there is none."""
    section, (rounds, refused) = islands.job.islands, islands.own_rounds
    assert section is not None
    why = ""
    clusters = len(islands.inventory.clusters)
    if section.quorum > clusters > 1:
        without = [(f"islands.quorum: {section.quorum}", replace(section, quorum=1))]
    elif islands.found and not rounds:
        without, why = list(_without_a_round(section)), "; ".join(dict.fromkeys(refused))
    elif rounds and section.max_loss_penalty is not None:
        without = [(f"islands.max_loss_penalty: {section.max_loss_penalty}", replace(section, max_loss_penalty=None))]
    else:
        return None
    for setting, free in without:
        job = islands.job.model_copy(update={"islands": free})
        if rounds:
            other = replace(islands, job=job)
        else:
            other = plan_islands(islands.inventory, job, sources, time_limit_s / len(without), tell)
        best = other.best_round()
        if isinstance(best, IslandRound) and best.cost.tokens_per_s >= MIN_GAIN * tokens_per_s:
            return SlowerMode(setting=setting, tokens_per_s=best.cost.tokens_per_s, why=why)
    return None


def _without_a_round(section: IslandsSettings) -> Iterator[tuple[str, IslandsSettings]]:
    """Yield keys that together fit no round, fewest first, each time with the section without them."""
    fixed = [key for key in OF_A_ROUND if getattr(section, key)]
    for number in range(1, len(fixed) + 1):
        for keys in combinations(fixed, number):
            named = " and ".join(f"islands.{key}: {getattr(section, key)}" for key in keys)
            yield named, IslandsSettings(**(vars(section) | dict.fromkeys(keys)))


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
