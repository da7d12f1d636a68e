"""`holmes status`."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from holmes_cli.commands.launched.find_run import AskedRun, asked_run
from holmes_cli.islands.show_islands import island_row, islands_sentences, refuse_whole, show_islands, state_as_json
from holmes_cli.screen.show_run import code_in_words, run_sentences, show_run, show_speed, state_in_words
from holmes_cli.screen.terminal import out, print_err, print_out
from holmes_core.errors import HolmesError
from holmes_core.records.plan import Plan
from holmes_core.records.record_file import write_atomically
from holmes_core.records.run import Run
from holmes_runtime.config.rank_metrics import AppliedOuterSync, RankNotice
from holmes_runtime.config.strict_json import encode
from launcher.journal.follow_folder import past_events, past_notices, read_plan
from launcher.journal.run_events import NodeState, Notice
from launcher.journal.run_store import StoredRun, find_run
from launcher.journal.step_file import read_steps, read_written
from launcher.journal.step_metrics import StepMetrics
from launcher.journal.tensorboard import require_tensorboard, write_event_file

MAX_STEPS = 1000
ALL_STEPS = 1 << 31
FOLLOW_S = 5.0


def status_command(
    run: AskedRun = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the state as JSON.")] = False,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write one self-contained page: loss, throughput, traffic.")
    ] = None,
    tensorboard: Annotated[
        Path | None,
        typer.Option("--tensorboard", metavar="DIR", help="Write the steps as TensorBoard's event file."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="With --html: rewrite the page as the run continues.")
    ] = False,
) -> None:
    """Show a run's progress: nodes, step, loss, speed against the plan, traffic, and what went wrong."""
    if follow and html is None:
        raise HolmesError("--follow: no page to rewrite", "name one with `--html PAGE`, or use `holmes attach`")
    if tensorboard:
        require_tensorboard()
    stored = asked_run(run)
    if stored.islands and tensorboard:
        refuse_whole(stored, "--tensorboard", "status")
    if html:
        _write_page(html, stored.folder, follow)
    if stored.islands:
        stored = find_run(str(stored.folder))  # re-read: the run may have ended while --follow was rewriting the page
        if as_json:
            out.file.write(state_as_json(stored) + "\n")
        else:
            show_islands(stored.run, stored.folder)
        return
    snapshot = _read(stored.folder)
    if tensorboard:
        run_id = snapshot.stored.run.run_id
        path = write_event_file(tensorboard / run_id, run_id, read_written(snapshot.stored.folder, ALL_STEPS))
        print_err(f"wrote {path}; view it with `tensorboard --logdir {tensorboard}`")
    if as_json:
        last = encode(StepMetrics, snapshot.steps[-1]) if snapshot.steps else None
        record = snapshot.stored.run.model_dump(mode="json")
        state = {"run": record, "watched": snapshot.stored.watched, "nodes": snapshot.nodes, "last_step": last}
        out.file.write(json.dumps({**state, "notices": snapshot.notices}) + "\n")
        return
    print_snapshot(snapshot)


class RunSnapshot(NamedTuple):
    """A snapshot of a run, read from its folder: at most `MAX_STEPS` of its steps, host states and notices."""

    stored: StoredRun
    plan: Plan
    steps: list[StepMetrics]
    nodes: dict[str, str]
    notices: list[str]


def _read(folder: Path) -> RunSnapshot:
    stored = find_run(str(folder))
    nodes, notices = dict[str, str](), list[str]()
    for _, event in past_events(stored.folder):
        if isinstance(event, NodeState):
            nodes[event.host] = event.state
        elif isinstance(event, Notice):
            notices.append(event.text)
        elif isinstance(event, RankNotice) and event.topic in ("data", "warning"):
            notices.append(event.sentence)
    plan = read_plan(stored.folder)
    nodes = {host: state_now(stored.run, plan, host, state) for host, state in nodes.items()}
    return RunSnapshot(stored, plan, read_steps(stored.folder, MAX_STEPS), nodes, notices)


def state_now(run: Run, plan: Plan, host: str, last: str) -> str:
    """Return a host's current state. Its agent's `last` report is stale once the run, and so the agent, has ended."""
    if any(failure.host == host and failure.host_lost for failure in run.failures):
        return "lost"
    if run.state != "running":
        return "ended"
    return last if host in {node.host for node in plan.nodes} else "left out of the plan"


def _write_page(html: Path, folder: Path, follow: bool) -> None:
    """Write the run's page; with `follow`, rewrite it every few seconds until the run ends."""
    if follow and _is_running(folder):
        print_err(f"updating {html} until the run ends; Ctrl-C stops the updates, not the run")
    with contextlib.suppress(KeyboardInterrupt):
        while follow and _is_running(folder):
            write_atomically(html, _page(folder, followed=True))
            time.sleep(FOLLOW_S)
    write_atomically(html, _page(folder))


def _is_running(folder: Path) -> bool:
    return find_run(str(folder)).watched in ("watched", "elsewhere")


def _page(folder: Path, followed: bool = False) -> str:
    """Return the page of a run, or of all its islands together."""
    from holmes_cli.islands.islands_page import IslandState, islands_status_page  # late, as Jinja2 is slow to import
    from holmes_cli.pages.status_page import status_page

    stored = find_run(str(folder))
    if not stored.islands:
        return status_page(*_read(folder), followed=followed)
    islands = [
        IslandState(island_row(island.folder, stored.run), *_read(island.folder), _outer_syncs(island.folder))
        for island in stored.islands
    ]
    notices = [text for _, text in past_notices(folder)]
    return islands_status_page(stored, islands, islands_sentences(stored.run, folder), notices, followed)


def _outer_syncs(folder: Path) -> list[AppliedOuterSync]:
    return [event for _, event in past_events(folder) if isinstance(event, AppliedOuterSync)]


def print_snapshot(snapshot: RunSnapshot) -> None:
    """Print the state of the run and its nodes, its notices, and its speed (while running) or its outcome."""
    stored = snapshot.stored
    print_out(f"run {stored.run.run_id}: {state_in_words(stored)}")
    if stored.run.code is not None:
        print_out(f"  {code_in_words(stored.run.code)}")
    for host, state in snapshot.nodes.items():
        print_out(f"  {host}: {state}")
    for notice in snapshot.notices:
        print_out(f"  {notice}")
    if stored.run.origin is not None:
        print_out(f"  {stored.run.origin}")
    if stored.run.state == "running":
        show_speed(snapshot.plan, snapshot.steps)
        for sentence in run_sentences(snapshot.plan, stored.run):
            print_out(sentence)
        print_out(f"run: {stored.folder}")
    else:
        show_run(snapshot.plan, stored.run, stored.folder)
