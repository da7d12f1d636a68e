"""Self-contained pages of plans: placement and a step's timeline as pictures, bars, every table; or of islands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holmes_cli.pages.modes_picture import ModesPicture, draw_modes
from holmes_cli.pages.placement_picture import draw_placement
from holmes_cli.pages.render import render
from holmes_cli.pages.timeline_picture import draw_timeline
from holmes_cli.screen.plan_tables import Sheet
from holmes_core.records.inventory import Inventory
from holmes_core.records.islands import Modes
from holmes_core.records.plan import IslandsPlan, Plan
from holmes_core.units import format_memory, format_seconds
from planner.advice.explain import stage_memories, step_parts
from planner.schedule.simulate import Span


@dataclass(frozen=True)
class PercentBar:
    """A bar of so many percent of its length, between a label and a value."""

    label: str
    percent: float
    value: str


def plan_page(
    plan: Plan, inventory: Inventory, spans: Sequence[Span], sentences: Sequence[str], sheets: Sequence[Sheet]
) -> str:
    """Return the page as HTML; it loads nothing from the network. `spans` are the timeline of one replica."""
    return render(
        "plan.html.j2",
        sentences=sentences,
        placement=draw_placement(plan),
        timeline=draw_timeline(spans, plan.prediction.step_s),
        parts=_part_bars(plan),
        memories=_memory_bars(plan, inventory),
        modes=_modes(plan.modes),
        sheets=sheets,
    )


def islands_page(plan: IslandsPlan, sentences: Sequence[str], sheets: Sequence[Sheet]) -> str:
    """Return the page of a plan of islands as HTML: a picture of the best modes, and tables."""
    return render("islands.html.j2", sentences=sentences, modes=_modes(plan.modes), sheets=sheets)


def _modes(modes: Modes | None) -> list[ModesPicture]:
    """Return the picture of best modes; none without other modes to compare with."""
    return [draw_modes(modes.by_network)] if modes is not None and modes.by_network else []


def _part_bars(plan: Plan) -> list[PercentBar]:
    step_s = plan.prediction.step_s
    return [
        PercentBar(part.name, _percent(part.seconds, step_s), format_seconds(part.seconds))
        for part in step_parts(plan.prediction)
    ]


def _memory_bars(plan: Plan, inventory: Inventory) -> list[PercentBar]:
    """Return bars of the GPU's memory; if that is not known, of the fullest rank's need."""
    memories = stage_memories(inventory, plan)
    most = max(plan.prediction.memory_bytes)
    return [
        PercentBar(
            f"pipeline rank {memory.pp_rank}",
            _percent(memory.needed_bytes, memory.available_bytes or most),
            f"{format_memory(memory.needed_bytes)} of {format_memory(memory.available_bytes)}",
        )
        for memory in memories
    ]


def _percent(part: float, whole: float) -> float:
    return round(100 * min(1.0, part / whole), 1) if whole else 0.0
