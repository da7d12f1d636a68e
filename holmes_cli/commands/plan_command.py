"""`holmes plan`."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.status import Status

from holmes_cli.screen.change_tables import advice_sheet, what_if_sheet
from holmes_cli.screen.comparison_tables import comparison_sheets
from holmes_cli.screen.plan_tables import plan_sheets
from holmes_cli.screen.show_plan import plan_sentences, show_plan, show_sheet
from holmes_cli.screen.terminal import err, out
from holmes_core.errors import HolmesError
from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Calibration, Job
from holmes_core.records.plan import Order, Plan, Source
from holmes_core.records.record import FileRecord
from holmes_core.records.record_file import read_file, read_user_file, write_atomically
from holmes_core.units import format_seconds
from planner.advice.advise import advise, try_more_hosts
from planner.advice.calibration import calibrate, calibrated
from planner.advice.changes import apply_changes
from planner.advice.what_if import parse_changes
from planner.layout.reprice import plan_timeline
from planner.make_plan import TIME_LIMIT_S, make_plan
from planner.search.branch_and_bound import Progress


def plan_command(
    job: Annotated[Path, typer.Argument(help="job.yaml: what to train.")],
    inventory: Annotated[Path, typer.Option("--inventory", "-i", help="The probe's inventory.")] = Path(
        "inventory.json"
    ),
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the plan.")] = Path("plan.json"),
    usual_order: Annotated[
        bool, typer.Option("--usual-order", help="Place ranks in the usual order instead, to compare with.")
    ] = False,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--what-if",
            metavar="CHANGE",
            help="Also plan for link:A-B=10Gb/s, fabric:A=400Gb/s, nic:HOST/NETDEV=25Gb/s, +host:NAME=like:HOST or "
            "-host:NAME, several joined by commas; may be given many times.",
        ),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option("--calibrate", metavar="RUN", help="Learn from a run's folder how fast compute and networks are."),
    ] = None,
    compare: Annotated[Path | None, typer.Option("--compare", help="Another plan.json to compare with.")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Also write a self-contained page of the plan.")] = None,
    time_limit: Annotated[
        float, typer.Option("--time-limit", min=0.0, help="Seconds to search; then the best so far, with its gap.")
    ] = TIME_LIMIT_S,
    write_lp: Annotated[
        Path | None, typer.Option("--write-lp", metavar="FILE", help="Also write the last integer program.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON instead of tables.")] = False,
) -> None:
    """Place every training tasklet on a GPU by integer programming, and predict the step."""
    job_record = read_user_file(Job, job)
    inventory_record = read_file(Inventory, inventory)
    other = read_file(Plan, compare) if compare else None
    changed = {text: _changed(inventory_record, text) for text in changes or ()}
    sources = (_source(inventory, inventory_record, output), _source(job, job_record, output))
    order: Order = "usual" if usual_order else "holmes"
    if run is not None:
        job_record = _calibrated(job_record, calibrate(inventory_record, run))
    wants_advice = html is not None or not as_json
    more_hosts = try_more_hosts(inventory_record, job_record) if wants_advice else {}
    with ExitStack() as stack:
        for background in more_hosts.values():
            stack.enter_context(background)
        status = stack.enter_context(err.status("planning"))
        plan = make_plan(inventory_record, job_record, *sources, order, _progress(status), time_limit, write_lp)
        outcomes = {}
        for change, as_changed in changed.items():
            status.update(f"planning with {change}")
            outcomes[change] = _plan_or_error(as_changed, job_record, sources, order)
        status.update("trying what would help most")
        with_more_hosts_s = {change: background.result() for change, background in more_hosts.items()}
        advised = advise(inventory_record, plan, with_more_hosts_s) if wants_advice else None
    asked = [what_if_sheet(plan, outcomes)] if outcomes else []
    asked += comparison_sheets(plan, other, str(compare)) if other else []
    advice = [advice_sheet(plan, advised)] if advised else []
    if html:
        from holmes_cli.pages.plan_page import plan_page  # slow to import: it brings Jinja2

        sheets = (*plan_sheets(plan, inventory_record), *advice, *asked)
        spans = plan_timeline(inventory_record, plan)
        write_atomically(html, plan_page(plan, inventory_record, spans, plan_sentences(plan, inventory_record), sheets))
    write_atomically(output, plan.json_parts())
    if as_json:
        with open(output, encoding="utf-8") as written:
            out.file.writelines(written)
    else:
        show_plan(plan, inventory_record)
    for sheet in asked if as_json else (*advice, *asked):
        show_sheet(sheet, err if as_json else out)  # with --json standard output is the plan alone
    if as_json:
        return
    if html:
        out.print(f"\npage: {html}", markup=False, soft_wrap=True, end="")
    out.print(f"\nplan: {output}\nnext: holmes launch {output}", markup=False, soft_wrap=True)


def _changed(inventory: Inventory, text: str) -> Inventory:
    return apply_changes(inventory, parse_changes(text, inventory))


def _calibrated(job: Job, calibration: Calibration) -> Job:
    """The job as the run knows it; says so."""
    err.print(
        f"calibrated with {calibration.run}: compute takes {calibration.compute_factor:.2f} times the model's seconds, "
        f"networks give {calibration.network_efficiency:.0%} of their bandwidth",
        markup=False,
        soft_wrap=True,
    )
    return calibrated(job, calibration)


def _plan_or_error(inventory: Inventory, job: Job, sources: tuple[Source, Source], order: Order) -> Plan | HolmesError:
    """What a change leads to; that nothing fits is an answer too."""
    try:
        return make_plan(inventory, job, *sources, order)
    except HolmesError as error:
        return error


def _progress(status: Status) -> Progress:
    def show(settled: int, total: int, best_s: float | None) -> None:
        best = f", best step so far {format_seconds(best_s)}" if best_s is not None else ""
        status.update(f"{settled} of {total} placements settled{best}")

    return show


def _source(path: Path, record: FileRecord, output: Path) -> Source:
    """Where the plan finds `path` again: relative to its own folder, so that both may move together."""
    relative = os.path.relpath(path.absolute(), output.absolute().parent)
    return Source(path=relative, digest=record.digest())
