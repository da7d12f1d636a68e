"""A setting that rules out faster islands: a quorum of too many, or a bound on their loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from holmes_core.records.islands import SlowerMode
from holmes_core.records.plan import SourceFile
from planner.islands.island_plans import IslandPlans, plan_islands
from planner.islands.island_rounds import IslandRound
from planner.islands.longer_round import MIN_GAIN


def find_slower_by(
    islands: IslandPlans,
    sources: tuple[SourceFile, SourceFile],
    tokens_per_s: float,
    time_limit_s: float,
    tell: Callable[[str], None],
) -> SlowerMode | None:
    """Return the setting without which islands would be much faster than `tokens_per_s`, with their tokens/s."""
    inventory, job, section = islands.inventory, islands.job, islands.job.islands
    assert section is not None
    if section.quorum > len(inventory.clusters) > 1:
        setting = f"islands.quorum: {section.quorum}"
        job = job.model_copy(update={"islands": replace(section, quorum=1)})
        islands = plan_islands(inventory, job, sources, time_limit_s, tell)
    elif section.max_loss_penalty is not None:
        setting = f"islands.max_loss_penalty: {section.max_loss_penalty}"
        job = job.model_copy(update={"islands": replace(section, max_loss_penalty=None)})
        islands = replace(islands, job=job)
    else:
        return None
    best = islands.best_round()
    if isinstance(best, IslandRound) and best.cost.tokens_per_s >= MIN_GAIN * tokens_per_s:
        return SlowerMode(setting=setting, tokens_per_s=best.cost.tokens_per_s)
    return None
