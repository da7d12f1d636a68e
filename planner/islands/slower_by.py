"""A setting that rules out faster islands: encryption, a quorum of too many, or a bound on their loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from holmes_core.records.islands import SlowerMode
from holmes_core.records.link import IN_THE_CLEAR
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
    """Return the settings without which islands would be much faster than `tokens_per_s`, with their tokens/s."""
    inventory, job, section, wrong = islands.inventory, islands.job, islands.job.islands, list[str]()
    assert section is not None
    if inventory.encrypts:
        wrong.append("between_clusters: wireguard")
        inventory = inventory.model_copy(update={"security": IN_THE_CLEAR})
    if section.quorum > len(inventory.clusters) > 1:
        wrong.append(f"islands.quorum: {section.quorum}")
        section = replace(section, quorum=1)
    if wrong:
        job = job.model_copy(update={"islands": section})
        islands = plan_islands(inventory, job, sources, time_limit_s, tell)
    elif section.max_loss_penalty is not None:
        wrong.append(f"islands.max_loss_penalty: {section.max_loss_penalty}")
        job = job.model_copy(update={"islands": replace(section, max_loss_penalty=None)})
        islands = replace(islands, job=job)
    best = islands.best_round() if wrong else ""
    if isinstance(best, IslandRound) and best.cost.tokens_per_s >= MIN_GAIN * tokens_per_s:
        return SlowerMode(setting=" and ".join(wrong), tokens_per_s=best.cost.tokens_per_s)
    return None
