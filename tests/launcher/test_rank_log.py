"""Logs and metrics do not grow without bound, and nothing is lost between their parts."""

from __future__ import annotations

import json
from pathlib import Path

from holmes_core.records.run import Run
from holmes_runtime.metrics import MetricsFile
from holmes_runtime.node.tail import Tail
from launcher.journal.follow_folder import follow_events, log_lines
from launcher.journal.rank_log import RankLog, part_before
from launcher.journal.run_events import Notice, to_line
from launcher.journal.run_folder import EVENTS_FILE, METRICS_FILE, RUN_FILE, RunFolder
from tests.cli.screens import bed_plan, step
from tests.launcher.plans import cpu_plan
from tests.launcher.test_step_metrics import report


def test_a_log_keeps_its_newest_part_and_the_one_before(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    path = tmp_path / "logs" / "a1-rank0.log"
    log = RankLog(path, part_bytes=100)
    for number in range(100):
        log.write(f"line {number:04}")
    log.close()
    log = RankLog(path, part_bytes=100)
    log.write("line 0100")
    log.close()
    assert path.stat().st_size <= 100
    assert part_before(path).stat().st_size <= 100
    kept = [line.line for line in log_lines(tmp_path, None)]
    assert kept == [f"line {number:04}" for number in range(101 - len(kept), 101)]
    assert len(kept) > 10


def test_who_follows_a_file_reads_the_part_before_to_its_end(tmp_path: Path) -> None:
    run = Run(run_id="r", plan_digest="", state="running", started_at_s=0.0)
    (tmp_path / RUN_FILE).write_text(run.to_json(), encoding="utf-8")
    log, following, seen = RankLog(tmp_path / EVENTS_FILE, part_bytes=300), follow_events(tmp_path), []
    for number in range(0, 60, 3):
        for each in range(number, number + 3):
            log.write(to_line(Notice(str(each))))
        seen += [next(following) for _ in range(3)]
    log.close()
    assert part_before(tmp_path / EVENTS_FILE).exists()
    assert seen == [Notice(str(number)) for number in range(60)]


def test_ranks_put_their_metrics_aside_and_the_agent_reads_all_of_them(tmp_path: Path) -> None:
    plan = cpu_plan()
    tail, seen = Tail(tmp_path / "metrics-rank0.jsonl"), []
    with MetricsFile(tmp_path, 0, most_bytes=2000) as file:
        for number in range(40):
            file.write(report(plan, 0, 1.0)._replace(step=number))
            if number % 3 == 0:
                seen += [json.loads(line)["step"] for line in tail.lines()]
    seen += [json.loads(line)["step"] for line in tail.rest()]
    assert seen == list(range(40))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics-rank0.jsonl", "metrics-rank0.jsonl.1"]


def test_metrics_say_when_a_step_was_done(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.write_event(step(0, bed_plan()))
    folder.close()
    line = json.loads((tmp_path / "run" / METRICS_FILE).read_text(encoding="utf-8"))
    assert line["time_s"] > 1.7e9
    assert line["step"] == 0
