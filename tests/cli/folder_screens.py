"""Screens of what folders hold: a run of islands, and checkpoints on hosts' own disks."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import typer

from holmes_cli.commands.checkpoint.checkpoint_command import CheckpointAction, checkpoint_command
from holmes_cli.islands.show_islands import show_islands
from holmes_core.records.plan import IslandsPlan, Plan
from holmes_core.records.run import Controller, Failure, Run
from launcher.journal.run_folder import EVENTS_FILE, RunFolder
from launcher.journal.step_metrics import StepMetrics
from tests.cli.test_checkpoint_command import save

LOST = "connection closed by host"


def islands_status(
    plan: IslandsPlan, run: Callable[[Plan], Run], step: Callable[[int, Plan], StepMetrics], time_s: float
) -> None:
    """Of the islands the first goes on, and the others are lost."""
    with _temporary_folder():
        whole = run(plan.islands[0]).model_copy(
            update={"state": "running", "controller": Controller(pid=1, start_ticks=1, host="node017")}
        )
        folder = Path("runs", whole.run_id)
        for number, island in enumerate(plan.islands):
            written = RunFolder(folder / f"island-{number}")
            written.write_record("plan.json", island)
            written.write_event(step(12 - number, island))
            changes: dict[str, object] = {"attempt": number}
            if number:
                node = island.nodes[0]
                failure = Failure(
                    host=node.host,
                    cluster=node.cluster,
                    rank=None,
                    exit_code=255,
                    message=LOST,
                    last_lines=(),
                    time_s=time_s,
                )
                changes |= {"state": "failed", "failures": (failure,)}
            written.write_record("run.json", whole.model_copy(update=changes))
            written.close()
        lost = {"event": "notice", "text": f"island 1 is lost: {LOST}", "time_s": time_s}
        (folder / EVENTS_FILE).write_text(json.dumps(lost) + "\n", encoding="utf-8")
        show_islands(whole, folder)


def checkpoints() -> None:
    """Two hosts have the older one whole, of the newer one a file is gone, and a third host's is damaged."""
    with _temporary_folder():
        for host in ("a1", "b1"):
            save(Path(host), 10, "__0_0.distcp", "__1_0.distcp")
        save(Path("a1"), 20, "__0_0.distcp")
        damaged = save(Path("b2"), 10, "__0_0.distcp")
        (damaged / "__0_0.distcp").write_bytes(b"first rbnk")
        with suppress(typer.Exit):
            checkpoint_command(CheckpointAction.VERIFY, [Path("a1"), Path("b1"), Path("b2")])


@contextmanager
def _temporary_folder() -> Iterator[None]:
    """As the working folder, so that what is shown of paths is always the same."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)
