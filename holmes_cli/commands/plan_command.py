"""`holmes plan`."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from holmes_cli.api import plan, plan_any_mode
from holmes_cli.job_overrides import read_job
from holmes_cli.screen.advice_record import plan_advice, with_advice
from holmes_cli.screen.change_tables import ablation_sheet, advice_sheet, explain_sheet, mode_sheets, what_if_sheet
from holmes_cli.screen.comparison_tables import comparison_sheets
from holmes_cli.screen.expert_tables import MAP_BEGINS, expert_map, expert_sheet
from holmes_cli.screen.plan_tables import Sheet, plan_sheets
from holmes_cli.screen.show_plan import (
    headline,
    islands_headline,
    islands_sheet,
    plan_sentences,
    show_islands,
    show_plan,
    show_sheet,
)
from holmes_cli.screen.terminal import err, out, print_err, print_out
from holmes_core.errors import HolmesError
from holmes_core.records.advice import LayerExperts
from holmes_core.records.compute import Calibration
from holmes_core.records.inventory import Inventory, refuse_sketch
from holmes_core.records.job import Job
from holmes_core.records.plain_data import MAX_JSON_BYTES
from holmes_core.records.plan import IslandsPlan, Order, Plan, SourceFile
from holmes_core.records.record import FileRecord
from holmes_core.records.record_file import read_any, read_signed, signed_parts, write_atomically, written
from holmes_core.records.regular_file import is_there, open_regular
from planner.advice.ablation import parse_features
from planner.advice.calibration import calibrate, calibrated
from planner.advice.plan_with_advice import PlanRequest, plan_with_advice
from planner.advice.what_if import what_if
from planner.experts.place_experts import check_routing
from planner.experts.routing_trace import Chosen, read_trace
from planner.make_plan import TIME_LIMIT_S
from planner.time_left import TimeLeft

_FOREIGN = "{} was not made here by you: `holmes launch` will show what the plan brings along, and ask"


def plan_command(
    job: Annotated[Path, typer.Argument(help="job.yaml: what to train.")],
    inventory: Annotated[
        Path, typer.Option("--inventory", "-i", envvar="HOLMES_INVENTORY", help="The probe's inventory.")
    ] = Path("inventory.json"),
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the plan.")] = Path("plan.json"),
    usual_order: Annotated[
        bool, typer.Option("--usual-order", help="Place ranks in the usual order instead, to compare with.")
    ] = False,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--what-if",
            metavar="CHANGE",
            help="Also plan for link:A-B=10Gb/s, fabric:A=400Gb/s, nic:HOST/NETDEV=25Gb/s, +host:NAME=like:HOST, "
            "-host:NAME, gpu:A=H100 or tp=4, several joined by commas; may be given many times.",
        ),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Also answer the usual questions: other degrees, idle hosts, wire, a week."),
    ] = False,
    without: Annotated[
        str | None,
        typer.Option(
            "--without",
            metavar="FEATURES",
            help="Also price the same plan without pipeline, uneven, overlap or several.",
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override a key of job.yaml, such as steps=10 or checkpoint.keep_last=5."
        ),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option("--calibrate", metavar="RUN", help="Use the speeds of compute and networks measured in a run."),
    ] = None,
    compare: Annotated[Path | None, typer.Option("--compare", help="Another plan.json to compare with.")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Also write a self-contained page of the plan.")] = None,
    time_limit: Annotated[
        float,
        typer.Option("--time-limit", min=0.0, help="Seconds for planning; then the best plan so far, with its gap."),
    ] = TIME_LIMIT_S,
    write_lp: Annotated[
        Path | None,
        typer.Option("--write-lp", metavar="FILE", help="Also write the integer program of the plan's degrees."),
    ] = None,
    routing: Annotated[
        Path | None,
        typer.Option(
            "--routing",
            metavar="FILE",
            help="Also place each layer's experts on ranks, by the experts that tokens chose.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan and all advice as JSON, not tables.")] = False,
) -> None:
    """Place every training tasklet on a GPU by integer programming, and predict the step."""
    written_to = {"--output": output, "--html": html, "--write-lp": write_lp}
    _refuse_inputs(written_to, filter(None, (job, inventory, routing)))
    left, job_record = TimeLeft(time_limit), read_job(job, overrides or ())
    signed = read_signed(Inventory, inventory)
    inventory_record = signed.record
    gc.freeze()  # modules and the inventory live to the end, so the collector need not visit them
    if not signed.is_own:
        print_err(_FOREIGN.format(inventory))
    if run is not None:
        refuse_sketch(inventory_record, inventory)
    other = read_any((Plan, IslandsPlan), compare).record if compare else None
    assert other is None or isinstance(other, Plan | IslandsPlan)
    known_job = _calibrated(job_record, calibrate(inventory_record, run)) if run else job_record
    changed = {text: what_if(text, inventory_record, known_job) for text in changes or ()}
    features = parse_features(without) if without is not None else ()
    order: Order = "usual" if usual_order else "holmes"
    sources = _source(inventory, inventory_record, output), _source(job, job_record, output, overrides or ())
    if known_job.islands is not None:
        given = {"--what-if": bool(changes), "--usual-order": usual_order}
        _check_options(
            {**given, "--explain": explain, "--without": without is not None, "--routing": routing is not None}
        )
        with err.status("planning") as status:
            best = plan_any_mode(inventory_record, known_job, *sources, left.seconds, write_lp, status.update)
        _write(output, best, signed.is_own)
        sheets = mode_sheets(best.modes) if best.modes is not None else ()
        compared = comparison_sheets(best, other, str(compare)) if other else ()
        _show_mode(best, inventory_record, output, html, as_json, (*sheets, *compared))
        for sheet in compared if as_json else ():
            show_sheet(sheet, err)
        return
    trace = _trace(routing, known_job, output)
    with err.status("planning") as status:

        def make(within_s: float) -> Plan:
            return plan(inventory_record, known_job, *sources, order, within_s, write_lp, status.update)

        request = PlanRequest(inventory_record, known_job, order, changed, make, left.seconds, explain, features, trace)
        answer = plan_with_advice(request, status.update)
    advice = [advice_sheet(answer.plan, answer.advised)]
    asked = [what_if_sheet(answer.plan, answer.what_ifs)] if answer.what_ifs else []
    asked += [explain_sheet(answer.answers)] if answer.answers else []
    asked += [ablation_sheet(answer.plan, answer.ablations)] if answer.ablations else []
    asked += [expert_sheet(answer.experts)] if answer.experts else []
    asked += comparison_sheets(answer.plan, other, str(compare)) if other else []
    if html:
        _write_page(html, answer.plan, inventory_record, [*advice, *asked], answer.advised.engine)
    _write(output, answer.plan, signed.is_own, answer.experts)
    if as_json:
        out.file.writelines(with_advice(output, plan_advice(answer, inventory_record)))
        for sheet in asked:
            show_sheet(sheet, err)
    else:
        show_plan(answer.plan, inventory_record, [*advice, *asked], answer.advised.engine)
        experts = _map_path(output) if answer.experts else None
        _show_files(output, html, experts, is_launched=known_job.is_launched and answer.plan.sketch is None)


def _refuse_inputs(outputs: Mapping[str, Path | None], inputs: Iterable[Path]) -> None:
    """Raise HolmesError if an output is a file that the command reads."""
    read = {path.resolve() for path in inputs}
    for option, path in outputs.items():
        if path is not None and path.resolve() in read:
            raise HolmesError(f"{option} {path}: is what this plan is made from", "name another file to write")


def _trace(path: Path | None, job: Job, output: Path) -> tuple[tuple[Chosen, ...], ...]:
    """Return the trace of `--routing`; none without it. Raises HolmesError where that or the map's place is wrong."""
    if path is None:
        return ()
    check_routing(job)
    written_map = _map_path(output)
    if is_there(written_map) and not _is_map(written_map):
        raise HolmesError(
            f"{written_map}: --routing writes its map there, but this file is not one of its maps",
            "move the file, or name the plan differently with -o",
        )
    return read_trace(path, job.model)


def _map_path(output: Path) -> Path:
    """Return the path of the map of experts next to a plan."""
    return output.with_name(f"{output.stem}-experts.json")


def _is_map(path: Path) -> bool:
    """Return True for a file that begins as every map of experts from here."""
    try:
        with open_regular(path, MAX_JSON_BYTES) as file:
            return file.read(len(MAP_BEGINS)) == MAP_BEGINS.encode()
    except OSError:
        return False


def _check_options(given: Mapping[str, bool]) -> None:
    """Raise HolmesError for an option about one plan of all hosts, if the job allows islands."""
    wrong = [option for option, is_given in given.items() if is_given]
    if wrong:
        raise HolmesError(
            f"{' and '.join(wrong)}: job.yaml has `islands`, but this option is about plans that train as one",
            "leave the option out, or remove `islands` from job.yaml",
        )


def _show_mode(
    plan: Plan | IslandsPlan,
    inventory: Inventory,
    output: Path,
    html: Path | None,
    as_json: bool,
    sheets: Sequence[Sheet],
) -> None:
    """Show the plan of the fastest mode as tables, page or JSON, with `sheets` of other modes and plans."""
    if html and isinstance(plan, Plan):
        _write_page(html, plan, inventory, sheets)
    elif html and isinstance(plan, IslandsPlan):
        from holmes_cli.pages.plan_page import islands_page  # slow to import: it brings Jinja2

        write_atomically(html, islands_page(plan, islands_headline(plan, inventory), (islands_sheet(plan), *sheets)))
    if as_json:
        with open(output, encoding="utf-8") as written:
            out.file.writelines(written)
        return
    if isinstance(plan, Plan):
        show_plan(plan, inventory, sheets)
    else:
        show_islands(plan, inventory, (islands_sheet(plan), *sheets))
    _show_files(output, html, is_launched=plan.sketch is None)


def _show_files(output: Path, html: Path | None, experts: Path | None = None, is_launched: bool = True) -> None:
    pages = f"page: {html}\n" if html else ""
    pages += f"experts: {experts}: convert the checkpoint by it (docs/planning.md)\n" if experts else ""
    following = f"\nnext: holmes launch {output}" if is_launched else ""
    print_out(f"\n{pages}plan: {output}{following}")


def _write(output: Path, plan: Plan | IslandsPlan, is_own: bool, experts: Sequence[LayerExperts] = ()) -> None:
    """Write the plan, signed if all its inputs are this user's own, and the map of its experts: both or neither."""
    map_path = _map_path(output)
    with written(map_path, expert_map(experts)) if experts else nullcontext():
        write_atomically(output, signed_parts(plan) if is_own else plan.json_parts(), private=True)
    if not experts and _is_map(map_path):
        print_err(f"{map_path}: the map of an earlier plan, not of this one: delete it, or plan with --routing again")


def _calibrated(job: Job, calibration: Calibration) -> Job:
    """Return the job with the run's calibration, and print it."""
    part = calibration.network_efficiency
    networks = "are as the inventory has them" if part == 1.0 else f"give {part:.0%} of their bandwidth"
    print_err(
        f"calibrated with {calibration.run}: compute takes {calibration.compute_factor:.2f} times the model's seconds, "
        f"networks {networks}"
    )
    return calibrated(job, calibration)


def _write_page(
    path: Path, plan: Plan, inventory: Inventory, sheets: Sequence[Sheet], engine: Sequence[str] = ()
) -> None:
    """Write a page with every table of the screen, and pictures; `sheets` follow the plan's own tables."""
    from holmes_cli.pages.plan_page import plan_page  # slow to import: it brings Jinja2

    sentences = (*headline(plan, inventory), *plan_sentences(plan, inventory, engine))
    page = plan_page(plan, inventory, sentences, (*plan_sheets(plan, inventory), *sheets))
    write_atomically(path, page)


def _source(path: Path, record: FileRecord, output: Path, overrides: Sequence[str] = ()) -> SourceFile:
    """Return the path to `path` relative to the plan's folder, so that both may move together."""
    relative = os.path.relpath(path.absolute(), output.absolute().parent)
    return SourceFile(path=relative, digest=record.source_digest(), overrides=tuple(overrides))
