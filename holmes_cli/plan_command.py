"""`holmes plan`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from holmes_cli.show_plan import show_plan
from holmes_cli.terminal import err, out
from holmes_core.inventory import Inventory
from holmes_core.job import Job
from holmes_core.plan import Source
from holmes_core.record import FileRecord, read_file, read_user_file, write_atomically
from holmes_core.units import format_seconds
from planner.make_plan import make_plan


def plan_command(
    job: Annotated[Path, typer.Argument(help="job.yaml: what to train.")],
    inventory: Annotated[Path, typer.Option("--inventory", "-i", help="The probe's inventory.")] = Path(
        "inventory.json"
    ),
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the plan.")] = Path("plan.json"),
    usual_order: Annotated[
        bool, typer.Option("--usual-order", help="Place ranks in the usual order instead, to compare with.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON instead of tables.")] = False,
) -> None:
    """Place every training tasklet on a GPU by integer programming, and predict the step."""
    job_record = read_user_file(Job, job)
    inventory_record = read_file(Inventory, inventory)
    with err.status("planning") as status:

        def progress(settled: int, total: int, best_s: float | None) -> None:
            best = f", best step so far {format_seconds(best_s)}" if best_s is not None else ""
            status.update(f"{settled} of {total} placements settled{best}")

        plan = make_plan(
            inventory_record,
            job_record,
            _source(inventory, inventory_record, output),
            _source(job, job_record, output),
            "usual" if usual_order else "holmes",
            progress,
        )
    write_atomically(output, plan.to_json())
    if as_json:
        out.file.write(plan.to_json())
        return
    show_plan(plan)
    out.print(f"\nplan: {output}\nnext: holmes launch {output}", markup=False, soft_wrap=True)


def _source(path: Path, record: FileRecord, output: Path) -> Source:
    """Where the plan finds `path` again: relative to its own folder, so that both may move together."""
    relative = os.path.relpath(path.absolute(), output.absolute().parent)
    return Source(path=relative, digest=record.digest())
