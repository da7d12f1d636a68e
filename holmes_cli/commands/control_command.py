"""`holmes control`: what a detached launch leaves behind in the background."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from holmes_cli.commands.replan import Replanner
from holmes_cli.screen.show_run import show_run
from holmes_core.records.inventory import Inventory
from holmes_core.records.record_file import read_file
from launcher.journal.follow_folder import read_plan
from launcher.journal.run_events import Silent
from launcher.journal.run_folder import INVENTORY_FILE, RunFolder, read_run
from launcher.launch import Launch
from launcher.prepare.user_variables import read_user_variables


def control_command(folder: Annotated[Path, typer.Argument(help="A run's folder.")]) -> None:
    """Watch a detached run to its end; `holmes launch --detach` starts this in the background."""
    stored, plan = read_run(folder), read_plan(folder)
    inventory = read_file(Inventory, folder / INVENTORY_FILE) if (folder / INVENTORY_FILE).exists() else None
    variables = read_user_variables(plan.job, os.environ, folder, stored=True)
    run = Launch(
        RunFolder(folder), plan, stored.settings, variables, Silent(), Replanner(inventory) if inventory else None
    )
    run.take_over(stored)
    ended = run.run_to_end()
    show_run(read_plan(folder), ended.run, ended.folder, ended.stuck)
