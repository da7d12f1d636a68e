"""The page of a run of islands, written by `holmes status --html` from made-up run folders."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from holmes_cli.islands.islands_view import LinesOfIslands
from holmes_core.records.islands import island_name
from holmes_core.records.plan import IslandsPlan
from holmes_core.records.record_file import write_signed
from holmes_core.records.run import Controller, Failure, Run
from holmes_runtime.config.rank_metrics import AppliedOuterSync, RankNotice
from launcher.journal.run_events import NodeState, Notice, to_line
from launcher.journal.run_folder import PLAN_FILE, RUN_FILE, RunFolder, read_run
from launcher.journal.run_store import this_process
from launcher.journal.step_file import METRICS_FILE
from planner.islands.uniform_links import with_uniform_links
from tests.cli.browser import NEEDS_BROWSER, hidden_parts
from tests.cli.conftest import Command
from tests.cli.test_status_page import step
from tests.planner.fleets import GBPS, bed_job, cpu_inventory
from tests.planner.islands_jobs import planned_mode

RUN_ID = "20261125-120000-abcd"
SAID = "<script>alert(1)</script>"
ISLANDS = {"inner_steps": 10, "fragments": 2, "delay_steps": 2}


def islands_plan() -> IslandsPlan:
    job = bed_job(parallel={}, steps=100, islands=ISLANDS, checkpoint={"path": "/data/ck", "every_steps": 10})
    plan = planned_mode(with_uniform_links(cpu_inventory([2, 2]), 0.002 * GBPS, 0.02), job)
    assert isinstance(plan, IslandsPlan)
    return plan


@pytest.fixture(scope="module")
def plan() -> IslandsPlan:
    return islands_plan()


def write_run(runs: Path, plan: IslandsPlan, state: str = "done", controller: Controller | None = None) -> Path:
    """Island 0 has gone to the end. Island 1 came back once, and was cut off at step 60."""
    whole = RunFolder(runs / RUN_ID)
    common = Run.model_validate(
        {"run_id": RUN_ID, "plan_digest": plan.digest(), "state": state, "started_at_s": 0.0, "ended_at_s": 300.0}
    ).model_copy(update={"controller": controller})
    whole.write_record(PLAN_FILE, plan)
    whole.write_event(Notice("island 1: host b1 is lost"))
    lost = Failure(
        host="b1",
        cluster="b",
        rank=1,
        exit_code=1,
        message=SAID,
        last_lines=("last words",),
        time_s=1.0,
        host_lost=True,
    )
    states = (
        {"steps_done": 100, "origin": "no whole checkpoint in /data/ck: starting at step 1", "safe_steps": 100},
        {
            **{"steps_done": 60, "steps_skipped": 20, "attempt": 1, "safe_steps": 50, "failures": (lost,)},
            **{"origin": "resumed after step 20 from /data/ck", "state": "failed"},
        },
    )
    for number, (island, changes) in enumerate(zip(plan.islands, states, strict=True)):
        name = island_name(number)
        folder = RunFolder(whole.path / name, f"{RUN_ID}-{name}")
        folder.write_record(PLAN_FILE, island)
        for node in island.nodes:
            folder.write_event(NodeState(node.host, node.cluster, "stepping"))
        for at in range(0, 100 if number == 0 else 60, 2):
            if number == 0 or not 20 <= at < 40:
                folder.write_event(replace(step(at), loss=5.0 - at / 40 + number, interfaces=()))
        islands = (0, 1) if number == 0 else (0,)
        folder.write_event(
            AppliedOuterSync(4 + number, number == 1, islands, 4096, 3_000_000, 3_000_000, 1.5, 0.25, "00")
        )
        if number == 1:
            folder.write_event(Notice("host b1 is lost"))
            folder.write_event(RankNotice(0, "warning", "the disk of b2 is nearly full", None))
        folder.write_record(RUN_FILE, common.model_copy(update={"run_id": folder.run_id, **changes}))
        folder.close()
    missing = (1,) if state == "done" else ()
    whole.write_record(RUN_FILE, common.model_copy(update={"steps_done": 100, "missing_islands": missing}))
    whole.close()
    return whole.path


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_loss_that_is_not_finite_is_said_to_be_so(
    tmp_path: Path, command: Command, plan: IslandsPlan, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script of one's own goes on after it, and its run with it."""
    folder = write_run(tmp_path, plan)
    island, diverged = folder / island_name(0), replace(step(98), loss=None, interfaces=())
    with open(island / METRICS_FILE, "a", encoding="utf-8") as steps:
        steps.write(to_line(diverged) + "\n")

    done = command("status", str(folder), "--html", "page.html")
    LinesOfIslands(plan).show(0, diverged)

    assert done.code == 0, done.stderr
    assert "not finite" in done.stdout
    assert f"step 99/{plan.islands[0].job.steps}  loss not finite" in capsys.readouterr().err


@pytest.mark.slow
def test_one_page_has_the_state_weights_checkpoint_and_exchange_of_each_island(
    tmp_path: Path, command: Command, plan: IslandsPlan
) -> None:
    folder = write_run(tmp_path, plan)

    done = command("status", str(folder), "--html", "page.html")

    assert done.code == 0, done.stderr
    page = text_of(tmp_path / "page.html")
    table = page[page.index('<table id="islands">') :].partition("</table>")[0]
    first, second = table.split("<td>island-1</td>")
    assert f"<td>99/{plan.islands[0].job.steps}</td>" in first
    assert "starting at step 1" in first
    assert "the one after step 100 is whole in /data/ck" in first
    assert "outer sync 5 of islands 0, 1: 3.00 MB sent in 1.50 s" in first
    assert f"<td>failed, cut off</td><td>2</td><td>59/{plan.islands[1].job.steps}</td>" in second
    assert "resumed after step 20 from /data/ck" in second
    assert "joined late in 1 outer sync" in second
    assert "20 of 59 steps were taken by others" in page
    assert "the common model is that of island-0" in page
    assert page.count("host b1 is lost") == 1  # the island's notice is in the whole's already
    assert "island 1: the disk of b2 is nearly full" in page


def test_losses_of_all_islands_are_in_one_chart_each_over_its_own_steps(
    tmp_path: Path, command: Command, plan: IslandsPlan
) -> None:
    command("status", str(write_run(tmp_path, plan)), "--html", "page.html")

    figure = text_of(tmp_path / "page.html").split("<figure>")[1]
    curves = re.findall(r'class="curve c(\d)" points="([^"]+)"><title>([^<]+)<', figure)
    assert [(colour, name, len(points.split())) for colour, points, name in curves] == [
        ("0", "island-0", 50),
        ("1", "island-1", 20),
    ]


def test_page_of_islands_fetches_nothing_and_escapes_what_ranks_said(
    tmp_path: Path, command: Command, plan: IslandsPlan
) -> None:
    command("status", str(write_run(tmp_path, plan)), "--html", "page.html")

    page = text_of(tmp_path / "page.html")
    assert re.findall(r"(?:src|href)=|@import|url\(|<script>|http-equiv", page) == []
    assert "&lt;script&gt;alert(1)" in page
    assert "last words" in page


def test_page_of_islands_is_followed_until_the_run_has_ended(
    tmp_path: Path, command: Command, plan: IslandsPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run(tmp_path, plan, "running", this_process())
    seen: list[str] = []

    def end_it(_seconds: float) -> None:
        seen.append(text_of(tmp_path / "page.html"))
        write_signed(folder / RUN_FILE, read_run(folder).model_copy(update={"state": "done", "controller": None}))

    monkeypatch.setattr("holmes_cli.commands.launched.status_command.time.sleep", end_it)
    done = command("status", str(folder), "--html", "page.html", "--follow")

    assert done.code == 0, done.stderr
    assert ['http-equiv="refresh"' in page for page in (*seen, text_of(tmp_path / "page.html"))] == [True, False]
    assert "done" in done.stdout.splitlines()[0]


def test_tensorboard_of_the_whole_is_refused_with_an_island_to_name(
    tmp_path: Path, command: Command, plan: IslandsPlan
) -> None:
    done = command("status", str(write_run(tmp_path, plan)), "--tensorboard", "board", "--html", "page.html")

    assert done.code == 2
    assert "--tensorboard" in done.stderr
    assert "island-0" in done.stderr
    assert not (tmp_path / "page.html").exists()


@pytest.mark.process
@NEEDS_BROWSER
@pytest.mark.parametrize("width", [500, 1000])
def test_browser_shows_all_of_the_page_of_islands(
    tmp_path: Path, command: Command, plan: IslandsPlan, width: int
) -> None:
    command("status", str(write_run(tmp_path, plan)), "--html", "page.html")
    assert hidden_parts(tmp_path / "page.html", width) == ""
