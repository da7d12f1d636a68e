"""`holmes launch` of a plan of islands."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from holmes_cli.api import launch_islands
from holmes_cli.islands.islands_view import LinesOfIslands
from holmes_cli.islands.show_islands import end_as_json, show_islands
from holmes_cli.screen.show_bundles import bundles_as_json, show_bundles, show_tunnel
from holmes_cli.screen.terminal import out
from holmes_core.errors import HolmesError
from holmes_core.hosts.transport_option import reached_by
from holmes_core.records.inventory import Inventory
from holmes_core.records.islands import island_name
from holmes_core.records.plan import IslandsPlan
from holmes_core.records.run import Run, Settings
from launcher.islands.going_back import step_of_island, steps_back
from launcher.islands.island_part import outer_sync_of
from launcher.islands.run_tunnel import tunnel_bundles
from launcher.nodes.interrupts import ctrl_c_ignored
from launcher.prepare.prepare import Attempt, prepare
from launcher.prepare.user_variables import read_user_variables


def refuse_settings(plan: IslandsPlan, settings: Settings) -> None:
    """Raise HolmesError for settings that a run of these islands does not support."""
    if settings.resume_step is not None:
        steps_back(plan, settings.resume_step)
    if settings.on_loss != "stop" or settings.replan_when_slow:
        raise HolmesError(
            "--on-loss, --replan-when-slow: an island keeps its plan, as the others count on its shape",
            "leave them out: a lost island restarts by itself when its hosts answer",
        )


def dry_run_of_islands(plan: IslandsPlan, settings: Settings, job_folder: Path, as_json: bool) -> None:
    """Print what would be sent and started: the tunnel if there is one, then island by island."""
    variables = read_user_variables(plan.job, os.environ, job_folder)
    if plan.encrypts:
        held = [each for number in range(len(plan.tunnel_nodes)) for each in tunnel_bundles(plan, number, "dry-run")]
        hub = plan.tunnel_hub.node.host if plan.tunnel_hub is not None else None
        bundles_as_json(held, plan.islands[0]) if as_json else show_tunnel(held, hub)
    for number, island in enumerate(plan.islands):
        attempt = Attempt(
            f"dry-run-{island_name(number)}",
            resume=settings.resume,
            from_scratch=settings.from_scratch,
            resume_step=step_of_island(plan, settings.resume_step, number),
            outer_sync=outer_sync_of(plan, number),
        )
        if not as_json:
            out.print(f"island {number}:")
        (bundles_as_json if as_json else show_bundles)(prepare(island, attempt, variables), island)


def run_islands(
    plan: IslandsPlan,
    inventory: Inventory | None,
    runs: Path,
    job_folder: Path,
    settings: Settings,
    forced: frozenset[str],
    via: str | None,
    as_json: bool,
    started: Callable[[Callable[[], Run]], Run],
) -> Run:
    """Launch the run and show its end, or its id if it is detached.

    `started` returns the result of its argument, which it may call again while others use the GPUs.
    """
    reached = reached_by(plan, via)

    def start() -> Run:
        return launch_islands(reached, inventory, runs, job_folder, settings, forced, LinesOfIslands(plan, as_json))

    run = started(start)
    if settings.detached:
        out.print(run.run_id, markup=False)
        return run
    folder = runs / run.run_id
    with ctrl_c_ignored():  # the run has ended: only the result is left to show
        (end_as_json if as_json else show_islands)(run, folder)
    return run
