"""Self-contained pages of plans: one picture, the step in parts, every table of the screen; or of islands."""

from __future__ import annotations

from collections.abc import Sequence

from holmes_cli.pages.figures import Stack, Tile, stacks
from holmes_cli.pages.modes_picture import ModesPicture, draw_modes
from holmes_cli.pages.plan_picture import draw_plan
from holmes_cli.pages.render import render
from holmes_cli.screen.plan_tables import Sheet, count
from holmes_core.records.inventory import Inventory
from holmes_core.records.islands import Modes
from holmes_core.records.plan import IslandsPlan, Plan
from holmes_core.units import format_duration, format_seconds
from planner.advice.explain import step_parts


def plan_page(plan: Plan, inventory: Inventory, sentences: Sequence[str], sheets: Sequence[Sheet]) -> str:
    """Return the page as HTML; it loads nothing from the network."""
    clusters = list(dict.fromkeys(node.cluster for node in plan.nodes))
    return render(
        "plan.html.j2",
        title=f"Plan for {count(len(clusters), 'cluster')}: {', '.join(clusters)}",
        tiles=_tiles(plan),
        sentences=sentences,
        picture=draw_plan(plan, inventory),
        stacks=_stacks(plan),
        modes=_modes(plan.modes),
        sheets=sheets,
    )


def islands_page(plan: IslandsPlan, sentences: Sequence[str], sheets: Sequence[Sheet]) -> str:
    """Return the page of a plan of islands as HTML: a picture of the best modes, and tables."""
    return render("islands.html.j2", sentences=sentences, modes=_modes(plan.modes), sheets=sheets)


def _modes(modes: Modes | None) -> list[ModesPicture]:
    """Return the picture of best modes; none without other modes to compare with."""
    return [draw_modes(modes.by_network)] if modes is not None and modes.by_network else []


def _tiles(plan: Plan) -> list[Tile]:
    guess, usual, steps = plan.prediction, plan.usual_order, plan.job.steps
    tiles = [
        Tile(format_seconds(guess.step_s), "a step"),
        Tile(f"{guess.tokens_per_s:,.0f}", "tokens/s"),
        Tile(format_duration(steps * guess.step_s), f"{steps:,} steps"),
    ]
    if usual is not None and guess.step_s and usual.step_s > guess.step_s:
        tiles.append(Tile(f"{usual.step_s / guess.step_s:.2f}x", "as fast as the usual rank order"))
    return tiles


def _stacks(plan: Plan) -> list[Stack]:
    """Return the plan's step in parts, and that of the usual order on the same scale."""
    guesses = [("this plan", plan.prediction)] + ([("usual rank order", plan.usual_order)] if plan.usual_order else [])
    return stacks(
        [(label, [(part.name, part.seconds) for part in step_parts(guess, plan.job)]) for label, guess in guesses]
    )
