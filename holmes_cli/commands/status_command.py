"""`holmes status`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from holmes_cli.screen.show_run import show_run, show_speed, state_in_words
from holmes_cli.screen.terminal import out
from holmes_core.records.record_file import write_atomically
from holmes_runtime.config.strict_json import encode
from launcher.journal.follow_folder import past_events, read_plan
from launcher.journal.run_events import NodeState, Notice
from launcher.journal.run_store import find_run
from launcher.journal.step_file import read_steps
from launcher.journal.step_metrics import StepMetrics

MOST_STEPS = 1000


def status_command(
    run: Annotated[str, typer.Argument(help="A run's id, the start of it, or its folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the state as JSON.")] = False,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write one self-contained page: loss, throughput, traffic.")
    ] = None,
) -> None:
    """Say how far a run is: nodes, step, loss, speed against the plan, traffic, and what went wrong."""
    stored = find_run(run)
    plan, events = read_plan(stored.folder), list(past_events(stored.folder))
    steps = read_steps(stored.folder, MOST_STEPS)
    nodes = {event.host: event.state for event in events if isinstance(event, NodeState)}
    notices = [event.text for event in events if isinstance(event, Notice)]
    if html:
        from holmes_cli.pages.status_page import status_page  # slow to import: it brings Jinja2

        write_atomically(html, status_page(stored, plan, steps, nodes, notices))
    if as_json:
        last = encode(StepMetrics, steps[-1]) if steps else None
        state = {"run": stored.run.model_dump(mode="json"), "watched": stored.watched, "nodes": nodes}
        out.file.write(json.dumps({**state, "last_step": last, "notices": notices}) + "\n")
        return
    out.print(f"run {stored.run.run_id}: {state_in_words(stored)}", markup=False, soft_wrap=True)
    for host, word in nodes.items():
        out.print(f"  {host}: {word}", markup=False, soft_wrap=True)
    for notice in notices:
        out.print(f"  {notice}", markup=False, soft_wrap=True)
    if stored.run.state == "running":
        show_speed(plan, steps)
    else:
        show_run(plan, stored.run, stored.folder)
