"""A run's folder of somebody else: each command that looks at it shows it, or says in a sentence what is wrong."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from holmes_core.records.record_file import write_signed
from holmes_core.records.run import Run
from launcher.journal.run_events import LogLine, NodeState, Notice
from launcher.journal.run_folder import PLAN_FILE, RUN_FILE, RunFolder, island_folders
from launcher.journal.run_store import StoredRun, remember
from tests.cli.conftest import Command, Done
from tests.cli.test_islands_status_page import islands_plan
from tests.cli.test_islands_status_page import write_run as write_islands
from tests.cli.test_status_page import step
from tests.launcher.plans import cpu_plan
from tests.planner.fleets import bed_job, cpu_inventory
from tests.seeds import few_of

RUN_ID = "20261125-120000-f00d"
LOOKS: dict[str, tuple[str, ...]] = {
    "status": ("status", "run"),
    "status --json": ("status", "run", "--json"),
    "status --html": ("status", "run", "--html", "page.html"),
    "status --tensorboard": ("status", "run", "--tensorboard", "tb"),
    "logs": ("logs", "run"),
    "plan --calibrate": ("plan", "job.yaml", "--calibrate", "run", "--time-limit", "5"),
}
READ_BY = [
    ("run.json", "status"),
    ("plan.json", "status --html"),
    ("plan.json", "plan --calibrate"),
    ("events.jsonl", "status --json"),
    ("events.jsonl.1", "status"),
    ("metrics.jsonl", "status --tensorboard"),
    ("metrics.jsonl", "plan --calibrate"),
    ("logs/a1-rank0.log", "logs"),
]


def write_honest(folder: Path, state: str = "done") -> Path:
    """A finished run of ten steps in `folder`/run, with the job and the inventory that its plan was made of."""
    plan = cpu_plan()
    run = RunFolder(folder / "run", RUN_ID)
    run.write_record(PLAN_FILE, plan)
    for node in plan.nodes:
        run.write_event(NodeState(node.host, node.cluster, "stepping"))
        run.write_event(LogLine(node.host, node.cluster, node.node_rank, "loss 1"))
    run.write_event(Notice("host b1 is slow"))
    for number in range(10):
        run.write_event(step(number))
    run.write_record(
        RUN_FILE,
        Run.model_validate(
            {
                **{"run_id": RUN_ID, "plan_digest": plan.digest(), "state": state, "started_at_s": 1.0},
                **{"ended_at_s": 99.0, "steps_done": 10, "first_loss": 5.0, "last_loss": 1.0},
                **{"step_s": 0.5, "tokens_per_s": 100.0},
            }
        ),
    )
    run.close()
    write_signed(folder / "inventory.json", cpu_inventory((2, 2)))
    (folder / "job.yaml").write_text(
        yaml.safe_dump(bed_job().model_dump(mode="json", exclude_defaults=True)), encoding="utf-8"
    )
    return run.path


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("honest")
    write_honest(folder)
    return folder


@pytest.fixture
def run(honest: Path, tmp_path: Path) -> Path:
    shutil.copytree(honest, tmp_path, dirs_exist_ok=True)
    return tmp_path / "run"


def edit_step(run: Path, **changes: object) -> None:
    """Change the fifth step."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    lines[4] = json.dumps({**json.loads(lines[4]), **changes})
    (run / "metrics.jsonl").write_text("\n".join([*lines, ""]), encoding="utf-8")


def check_manners(done: Done) -> None:
    assert "Traceback" not in done.stderr
    assert done.code in (0, 2), done
    if done.code == 2:
        assert done.stderr.count("hint: ") == 1, done
        assert len(done.stderr) < 6000


@pytest.mark.usefixtures("run")
def test_honest_folder_is_shown_by_each_command(command: Command) -> None:
    assert {name: command(*words).code for name, words in LOOKS.items()} == dict.fromkeys(LOOKS, 0)


@pytest.mark.parametrize("name", ["island-abc", "island-²", "island-", "island-01", "island-99999", "island--1"])
def test_folder_that_is_not_named_as_an_island_is_none(name: str, run: Path, command: Command) -> None:
    (run / name).mkdir()
    shutil.copy(run / "run.json", run / name)
    assert island_folders(run) == ()
    assert command("status", "run").code == 0


def test_links_are_no_islands_so_that_none_holds_itself(run: Path, command: Command) -> None:
    for name in ("island-0", "island-1"):
        (run / name).symlink_to(".")
    done = command("status", "run", "--json")
    assert (done.code, json.loads(done.stdout)["run"]["run_id"]) == (0, RUN_ID)


@pytest.mark.slow
def test_island_has_no_islands_of_its_own(tmp_path: Path, command: Command) -> None:
    folder = write_islands(tmp_path, islands_plan())
    shutil.copytree(folder / "island-0", folder / "island-0" / "island-0")
    assert [stored.islands for stored in StoredRun(folder, Run.model_construct()).islands] == [(), ()]
    assert command("status", str(folder)).code == 0


@pytest.mark.parametrize(("file", "look"), [case for case in READ_BY if case[1] != "logs"])
def test_text_nested_without_end_is_refused(file: str, look: str, run: Path, command: Command) -> None:
    with (run / file).open("w", encoding="utf-8") as opened:
        opened.write("[" * 90_000 + "\n")
    done = command(*LOOKS[look])
    check_manners(done)
    assert (done.code, file in done.stderr) == (2, True), done


@pytest.mark.parametrize(
    "line",
    [
        '{"event": [], "time_s": 1}',
        '{"event": {}, "time_s": 1}',
        '{"event": "notice", "time_s": 1e308, "text": ""}',
        '{"event": "notice", "time_s": -1e10, "text": ""}',
        '{"event": "notice", "time_s": 1, "text": "\\ud800"}',
        '{"event": "notice", "time_s": NaN, "text": ""}',
        "[1]",
        "\\ud800",
        "\ufeff{}",
    ],
)
def test_line_that_is_no_event_is_refused(line: str, run: Path, command: Command) -> None:
    with (run / "events.jsonl").open("a", encoding="utf-8") as opened:
        opened.write(line + "\n")
    done = command("status", "run")
    check_manners(done)
    assert done.code == 2
    assert "run/events.jsonl: cannot be read: " in done.stderr


@pytest.mark.parametrize("key", few_of(1, ["loss", "eval_loss", "grad_norm", "mfu", "tokens_per_s", "learning_rate"]))
@pytest.mark.parametrize("value", [1e308, -1e308, 5e-324, 3.5e38])
def test_step_of_a_diverging_run_is_shown(key: str, value: float, run: Path, command: Command) -> None:
    edit_step(run, **{key: value})
    for look in ("status", "status --json", "status --html", "status --tensorboard"):
        assert command(*LOOKS[look]).code == 0, look


def test_tensorboard_without_its_package_is_wrong_usage_and_writes_nothing(
    run: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.record_writer", None)
    before = sorted(tmp_path.rglob("*"))

    done = command("status", str(run), "--html", "page.html", "--tensorboard", "tb")

    assert done.code == 2
    assert "`pip install tensorboard`" in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_loss_beyond_four_bytes_is_infinite_in_tensorboard(run: Path, command: Command, tmp_path: Path) -> None:
    edit_step(run, loss=-1e308)
    assert command(*LOOKS["status --tensorboard"]).code == 0
    (written,) = (tmp_path / "tb").rglob("events*")
    assert struct.pack("<f", float("-inf")) in written.read_bytes()


@pytest.mark.parametrize(
    ("key", "value"),
    [("step", -5), ("step", 2**60), ("step_s", 0), ("step_s", 1e308), ("memory_bytes", -1), ("loss", float("nan"))],
)
def test_step_that_no_run_has_is_refused(key: str, value: float, run: Path, command: Command) -> None:
    edit_step(run, **{key: value})
    for look in ("status", "status --html", "status --tensorboard"):
        done = command(*LOOKS[look])
        check_manners(done)
        assert (done.code, f"metrics.jsonl: cannot be read: {key}: " in done.stderr) == (2, True), done


def pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def link_to(target: str) -> Callable[[Path], None]:
    def place(path: Path) -> None:
        path.unlink(missing_ok=True)
        path.symlink_to(target)

    return place


def terabyte(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


PLACES = {
    "pipe": pipe,
    "device": link_to("/dev/zero"),
    "link out": link_to("../job.yaml"),
    "link to nothing": link_to("nothing"),
    "link to itself": lambda path: link_to(path.name)(path),
    "terabyte": terabyte,
}


@pytest.mark.parametrize(("file", "look"), READ_BY)
@pytest.mark.parametrize("kind", PLACES)
def test_what_is_no_file_of_the_folder_is_neither_waited_for_nor_read(
    kind: str, file: str, look: str, run: Path, command: Command
) -> None:
    PLACES[kind](run / file)
    done = command(*LOOKS[look])
    check_manners(done)
    assert (done.code, file in done.stderr) == (2, True), done


def test_runs_are_listed_though_the_metrics_of_one_are_a_pipe(run: Path, command: Command) -> None:
    pipe(run / "metrics.jsonl")
    remember(run)
    done = command("ps", "--all")
    assert (done.code, bool(re.search(r"10/10", done.stdout))) == (0, True), done


def test_runs_are_listed_though_the_plan_of_one_is_not_read(run: Path, command: Command) -> None:
    (run / "plan.json").write_text("{}", encoding="utf-8")
    remember(run)
    done = command("ps", "--all")
    assert (done.code, "plan.json cannot be read" in done.stdout) == (0, True), done


def test_run_of_a_plan_with_a_key_that_plans_had_is_shown(run: Path, command: Command) -> None:
    plan = run / "plan.json"
    plan.write_text(
        plan.read_text(encoding="utf-8").replace('"solver":', '"unequal": null, "solver":'), encoding="utf-8"
    )
    assert '"unequal"' in plan.read_text(encoding="utf-8")
    done = command("status", "run")
    assert done.code == 0, done


def test_name_longer_than_any_file_has_is_no_run(command: Command) -> None:
    done = command("status", "a" * 4000)
    check_manners(done)
    assert done.code == 2


def test_line_of_a_log_that_does_not_end_is_shown_cut(run: Path, command: Command) -> None:
    (run / "logs" / "a1-rank0.log").write_text("x" * 3_000_000, encoding="utf-8")
    done = command("logs", "run", "--rank", "0")
    assert (done.code, len(done.stdout) < 300_000, "characters more)" in done.stdout) == (0, True, True)
