"""`holmes control`: the background process of a detached launch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from holmes_cli.api import keep_profile_of
from holmes_cli.islands.show_islands import show_islands
from holmes_cli.replan import Replanner
from holmes_cli.screen.show_run import show_run
from holmes_core.errors import HolmesError
from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import IslandsPlan, Plan
from holmes_core.records.run import Run
from launcher.journal.follow_folder import read_plan
from launcher.journal.prometheus import exports_folder
from launcher.journal.run_events import Silent
from launcher.journal.run_folder import INVENTORY_FILE, RUN_FILE, RunFolder, island_folders, read_own, read_own_plan
from launcher.launch import Launch
from launcher.launch_islands import LaunchIslands, SilentIslands
from launcher.nodes.interrupts import Interrupts, signals_call
from launcher.prepare.user_variables import UserVariables, read_user_variables


def control_command(folder: Annotated[Path, typer.Argument(help="A run's folder.")]) -> None:
    """Watch a detached run to its end; `holmes launch --detach` starts this in the background."""
    stored, plan = read_own(Run, folder, RUN_FILE), read_own_plan(folder)
    if isinstance(plan, IslandsPlan):
        _control_islands(folder, stored, plan)
    else:
        _control_run(folder, stored, plan)


def _control_run(folder: Path, stored: Run, plan: Plan) -> None:
    inventory = read_own(Inventory, folder, INVENTORY_FILE) if (folder / INVENTORY_FILE).exists() else None
    variables = read_user_variables(plan.job, os.environ, folder, stored=True)
    replanner, exports = Replanner(inventory) if inventory else None, exports_folder(os.environ)
    interrupts = Interrupts()
    run = Launch(RunFolder(folder), plan, stored.settings, variables, Silent(), interrupts, replanner, exports)
    with signals_call(interrupts.take_signal):
        run.take_over(stored)
        ended = run.run_to_end()
        keep_profile_of(plan, folder)
    show_run(read_plan(folder), ended, folder)


def stop_unwatched(folder: Path, stored: Run, plan: Plan) -> Run | None:
    """Stop a detached run whose controller is gone; return its outcome by the messages its nodes have kept.

    Return None if no node is reached. Raises HolmesError if another process watches it.
    """
    interrupts = Interrupts()
    run = Launch(RunFolder(folder), plan, stored.settings, UserVariables({}, {}), Silent(), interrupts)
    with signals_call(interrupts.take_signal):
        try:
            run.take_over(stored)
        except HolmesError:
            run.leave()
            return None
        ended = run.stop_unwatched()
        keep_profile_of(plan, folder)
    return ended


def _control_islands(folder: Path, stored: Run, plan: IslandsPlan) -> None:
    """Watch a run of islands. The folder of each has all files that were sent, so the first is read."""
    variables = read_user_variables(plan.job, os.environ, island_folders(folder)[0], stored=True)
    exports = exports_folder(os.environ)
    run = LaunchIslands(RunFolder(folder), plan, stored.settings, variables, SilentIslands(), exports)
    with signals_call(run.take_signal):
        run.take_over(stored)
        ended = run.run_to_end()
    show_islands(ended, folder)
