"""`holmes status` and `holmes logs` without a run take the one that was started last, and say which that is."""

from __future__ import annotations

from pathlib import Path

import pytest

from holmes_core.records.record_file import write_signed
from holmes_core.records.run import Run
from launcher.journal.run_events import LogLine
from launcher.journal.run_folder import PLAN_FILE, RUN_FILE, RunFolder
from launcher.journal.run_store import remember
from tests.cli.conftest import Command
from tests.launcher.plans import cpu_plan


def started(folder: Path, run_id: str, started_at_s: float) -> None:
    """A run that has ended, and whose rank 0 printed the run's id."""
    run, plan = RunFolder(folder / run_id), cpu_plan()
    run.write_record(PLAN_FILE, plan)
    run.write_event(LogLine(plan.nodes[0].host, "a", 0, f"printed by {run_id}"))
    run.close()
    ended = Run(run_id=run_id, plan_digest=plan.digest(), state="done", exit_code=0, started_at_s=started_at_s)
    write_signed(folder / run_id / RUN_FILE, ended)
    remember(folder / run_id)


@pytest.mark.parametrize("name", ["status", "logs"])
def test_without_a_run_the_last_one_is_taken_and_named(command: Command, tmp_path: Path, name: str) -> None:
    for run_id, started_at_s in (("a", 2.0), ("z", 1.0)):
        started(tmp_path, run_id, started_at_s)

    of_last, of_named = command(name), command(name, "a")

    assert (of_last.code, of_named.code) == (0, 0), of_last.stderr
    assert "the last run: a" in of_last.stderr
    assert of_last.stdout == of_named.stdout
    assert of_named.stdout != command(name, "z").stdout


@pytest.mark.parametrize("name", ["status", "logs"])
def test_without_any_run_there_is_none_to_show(command: Command, name: str) -> None:
    done = command(name)

    assert done.code == 2
    assert "no run" in done.stderr


def test_stop_takes_no_run_but_the_one_it_is_given(command: Command, tmp_path: Path) -> None:
    started(tmp_path, "a", 1.0)

    assert command("stop").code == 2
