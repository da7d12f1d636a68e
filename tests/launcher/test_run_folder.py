"""A run's folder is written by one process at a time, and tells others how far the run is."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest

from holmes_cli.screen.show_run import state_in_words
from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.records.run import Controller, Run, Settings
from launcher.journal.follow_folder import log_lines
from launcher.journal.run_events import LogLine
from launcher.journal.run_folder import RunFolder
from launcher.journal.run_store import StoredRun
from launcher.journal.step_file import METRICS_FILE

RUN = Run(run_id="r", plan_digest="sha256:0", state="running", settings=Settings(), attempt=0, started_at_s=0.0)


def test_a_second_controller_is_kept_out_until_the_first_is_done(tmp_path: Path) -> None:
    first = RunFolder(tmp_path / "r")
    with pytest.raises(HolmesError, match="another process watches this run") as refused:
        RunFolder(tmp_path / "r")
    assert refused.value.exit_code == ANSWER_IS_NO
    first.close()
    RunFolder(tmp_path / "r").close()


def test_a_controller_that_was_killed_keeps_nobody_out(tmp_path: Path) -> None:
    killed = "import os, pathlib, sys; from launcher.journal.run_folder import RunFolder; "
    killed += "folder = RunFolder(pathlib.Path(sys.argv[1])); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", killed, str(tmp_path / "r")], check=False)
    RunFolder(tmp_path / "r").close()


@pytest.mark.parametrize(
    ("metrics", "steps"),
    [("", 0), ('{"step": 0}\n{"step": 41}\n', 42), ('{"step": 7}\n{"step": 8, "lo', 8), ("not JSON\n", 0)],
)
def test_how_far_a_run_is_stands_in_its_metrics_while_it_lasts(tmp_path: Path, metrics: str, steps: int) -> None:
    (tmp_path / METRICS_FILE).write_text(metrics, encoding="utf-8")
    assert StoredRun(tmp_path, RUN).steps_done == steps


def test_a_run_without_metrics_has_done_what_its_record_says(tmp_path: Path) -> None:
    assert StoredRun(tmp_path, RUN.model_copy(update={"steps_done": 3})).steps_done == 3


@pytest.mark.parametrize(("age_s", "said"), [(7200.0, "; nothing written for 2.0 h"), (30.0, "")])
def test_a_run_watched_on_a_machine_that_may_be_gone_tells_how_long_it_is_silent(
    tmp_path: Path, age_s: float, said: str
) -> None:
    (tmp_path / METRICS_FILE).write_text("", encoding="utf-8")
    os.utime(tmp_path / METRICS_FILE, (time.time() - age_s,) * 2)
    run = RUN.model_copy(update={"controller": Controller(pid=1, start_ticks=1, host="node017")})
    assert state_in_words(StoredRun(tmp_path, run)) == f"running, watched on node017{said}"


def test_a_line_is_kept_behind_the_time_it_came_and_read_without_it(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "r")
    before = datetime.now(timezone.utc)
    for text in ("loss 1", "", "2026-01-01T00:00:00.000Z its own"):
        folder.write_event(LogLine("a1", "a", 0, text))
    folder.close()
    lines = list(log_lines(folder.path, None))
    assert [line.event.line for line in lines] == ["loss 1", "", "2026-01-01T00:00:00.000Z its own"]
    for line in lines:
        assert line.when is not None
        assert abs((datetime.fromisoformat(line.when.replace("Z", "+00:00")) - before).total_seconds()) < 60


def test_a_log_of_before_lines_had_times_is_read(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a1-rank0.log").write_text("loss 1\n", encoding="utf-8")
    assert [(line.when, line.event.line) for line in log_lines(tmp_path, None)] == [(None, "loss 1")]
