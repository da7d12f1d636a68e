"""Logs and metrics do not grow without bound, and nothing is lost between their parts."""

from __future__ import annotations

import json
import resource
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from holmes_core.errors import HolmesError
from holmes_core.records.run import Run, Settings
from holmes_runtime.metrics import MetricsFile
from holmes_runtime.node.tail import Tail
from launcher.journal import follow_folder
from launcher.journal.bounded_log import BoundedLog, part_before
from launcher.journal.follow_folder import follow_events, log_lines
from launcher.journal.run_events import Notice, RunEvent, from_line, to_line
from launcher.journal.run_folder import EVENTS_FILE, RUN_FILE, RunFolder
from launcher.journal.run_record import RunRecord
from launcher.journal.step_file import METRICS_FILE, StepFile, read_steps
from launcher.journal.step_metrics import StepMetrics
from tests.cli.screens import bed_plan, step
from tests.launcher.plans import cpu_plan
from tests.launcher.test_skipped_steps import Shown
from tests.launcher.test_step_metrics import report


def test_a_log_keeps_its_newest_part_and_the_one_before(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    path = tmp_path / "logs" / "a1-rank0.log"
    log = BoundedLog(path, part_bytes=100)
    for number in range(100):
        log.write(f"line {number:04}")
    log.close()
    log = BoundedLog(path, part_bytes=100)
    log.write("line 0100")
    log.close()
    assert path.stat().st_size <= 100
    assert part_before(path).stat().st_size <= 100
    kept = [line.event.line for line in log_lines(tmp_path, None)]
    assert kept == [f"line {number:04}" for number in range(101 - len(kept), 101)]
    assert len(kept) > 10


def test_who_follows_a_file_reads_the_part_before_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow_folder, "POLL_S", 0.01)
    run = Run(run_id="r", plan_digest="", state="running", settings=Settings(detached=True), started_at_s=0.0)
    (tmp_path / RUN_FILE).write_text(run.to_json(), encoding="utf-8")
    StepFile(tmp_path).close()
    log, following, seen = BoundedLog(tmp_path / EVENTS_FILE, part_bytes=300), follow_events(tmp_path), []
    for number in range(0, 60, 3):
        for each in range(number, number + 3):
            log.write(to_line(Notice(str(each))))
        seen += [next(following)[1] for _ in range(3)]
    log.close()
    assert part_before(tmp_path / EVENTS_FILE).exists()
    assert seen == [Notice(str(number)) for number in range(60)]


@pytest.mark.slow
def test_steps_take_bounded_room_show_the_whole_course_and_who_follows_sees_each_once(tmp_path: Path) -> None:
    run = Run(run_id="r", plan_digest="", state="running", settings=Settings(detached=True), started_at_s=0.0)
    (tmp_path / RUN_FILE).write_text(run.to_json(), encoding="utf-8")
    (tmp_path / EVENTS_FILE).touch()
    steps, following, plan = StepFile(tmp_path, most_bytes=20_000), follow_events(tmp_path), bed_plan()
    seen: list[RunEvent] = []
    for number in range(1000):
        loss = 2.0 if number % 10 == 9 else None  # those that are evaluated
        steps.write(replace(step(number, plan), eval_loss=loss))
        if number % 7 == 0:
            seen += [next(following)[1] for _ in range(number + 1 - len(seen))]
    steps.close()
    assert [each.step for each in seen if isinstance(each, StepMetrics)] == list(range(995))
    assert (tmp_path / METRICS_FILE).stat().st_size <= 20_000
    kept = read_steps(tmp_path, most=1000)
    assert (kept[0].step, kept[-1].step) == (0, 999)
    assert [each.step for each in kept[-10:]] == list(range(990, 1000))
    assert any(each.step < 500 and each.eval_loss is not None for each in kept)
    assert len(read_steps(tmp_path, most=5)) == 5


def test_a_file_that_holds_no_steps_is_refused(tmp_path: Path) -> None:
    (tmp_path / METRICS_FILE).write_text("junk\n", encoding="utf-8")
    with pytest.raises(HolmesError, match=r"metrics\.jsonl: cannot be read: "):
        read_steps(tmp_path, most=2)


def test_ranks_put_their_metrics_aside_and_the_agent_reads_all_of_them(tmp_path: Path) -> None:
    plan = cpu_plan()
    tail, seen = Tail(tmp_path / "metrics-rank0.jsonl"), []
    with MetricsFile(tmp_path, 0, max_bytes=2000) as file:
        for number in range(40):
            file.write(report(plan, 0, 1.0)._replace(step=number))
            if number % 3 == 0:
                seen += [json.loads(line)["step"] for line in tail.lines()]
    seen += [json.loads(line)["step"] for line in tail.rest()]
    assert seen == list(range(40))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics-rank0.jsonl", "metrics-rank0.jsonl.1"]


@pytest.mark.parametrize(
    ("first_step", "steps", "last"), [(0, 3, "done"), (3, 0, "done"), (0, 2, "stopped after 2 of 3 steps")]
)
def test_a_rank_prints_its_steps_where_it_is_asked_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], first_step: int, steps: int, last: str
) -> None:
    line = report(cpu_plan(), 0, 1.0)._replace(loss=5.5321, eval_loss=None, tokens_per_s=1234.4, step_s=0.0521)
    with MetricsFile(tmp_path, 0, prints_of=3) as file, MetricsFile(tmp_path, 1) as silent:
        for number in range(steps):
            file.write(line._replace(step=number))
            silent.write(line._replace(step=number))
        file.end(first_step)
        silent.end(first_step)

    printed = [f"step {number + 1}/3  loss 5.5321  1234 tokens/s  0.0521 s" for number in range(steps)]
    assert capsys.readouterr().out.splitlines() == [*printed, last]


def test_metrics_say_when_a_step_was_done(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.write_event(step(0, bed_plan()))
    folder.close()
    line = json.loads((tmp_path / "run" / METRICS_FILE).read_text(encoding="utf-8"))
    assert line["time_s"] > 1.7e9
    assert line["step"] == 0


def test_a_full_disk_leaves_out_lines_whole_and_ends_no_run(tmp_path: Path) -> None:
    view = Shown()
    folder = RunFolder(tmp_path / "run")
    record = RunRecord(folder, view, Settings())
    record.say("before")
    before = (folder.path / EVENTS_FILE).read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 5, limits[1]))
    try:
        record.say("this has room for a part alone")
        record.say("nor has this")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert (folder.path / EVENTS_FILE).read_bytes() == before
    assert sum("the disk is full: the run continues" in text for text in view.notices) == 1
    record.say("after")
    folder.close()
    events = [from_line(line).event for line in (folder.path / EVENTS_FILE).read_text().splitlines()]
    assert [event.text for event in events if isinstance(event, Notice)] == ["before", "after"]
