"""`holmes launch` of a plan of islands: each ends and comes back alone, and one command shows and ends all."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.journal.run_folder import read_run
from tests.builders.local_runs import HOSTS, LONG, environment, holmes, nothing_is_left, small_job
from tests.eventually import eventually

pytestmark = pytest.mark.process

SLOW = HOSTS | {"speeds_gbps": {"lo": 1e-4}}  # so that islands are the fastest plan
ROUND = {"inner_steps": 8, "fragments": 2, "delay_steps": 1, "grace_s": 2.0}


@pytest.fixture
def planned(tmp_path: Path) -> Path:
    return plan_islands(tmp_path)


def plan_islands(folder: Path, **changes: Any) -> Path:
    """plan.json of two islands of a local host each."""
    (folder / "hosts.yaml").write_text(yaml.safe_dump(SLOW), encoding="utf-8")
    base = {
        "parallel": {"micro_batch_size": 1, "pp": 1},
        "compute": {"flops_per_s": 1e6},
        "islands": ROUND,
        "steps": 32,
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(small_job(folder, **{**base, **changes})), encoding="utf-8")
    for arguments in (("probe", "hosts.yaml"), ("plan", "job.yaml")):
        done = holmes(folder, *arguments)
        assert done.returncode == 0, done.stderr
    return folder


@contextmanager
def launched(folder: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    words, nowhere = [sys.executable, "-m", "holmes_cli", "launch", "plan.json", *options], subprocess.DEVNULL
    with subprocess.Popen(words, cwd=folder, env=environment(folder), stdout=nowhere, stderr=nowhere) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.wait(timeout=600)


def run_folder(folder: Path) -> Path:
    (path,) = (folder / "runs").iterdir()
    return path


def steps_done(island: Path) -> int:
    metrics = island / "metrics.jsonl"
    return len(metrics.read_text(encoding="utf-8").splitlines()) if metrics.exists() else 0


def exchanges(island: Path) -> list[dict[str, Any]]:
    """The outer syncs that an island has reported; none before it has any events."""
    events = island / "events.jsonl"
    lines = events.read_text(encoding="utf-8").splitlines() if events.exists() else []
    return [event for event in map(json.loads, lines) if event["event"] == "exchange"]


def agent_of(folder: Path, island: str) -> int:
    """The process id that the agent of the island's newest attempt has written down."""
    (run,) = (folder / "home" / ".cache" / "holmes" / "runs").glob(f"*-{island}")
    newest = max(run.iterdir(), key=lambda attempt: int(attempt.name.partition("-")[0]))
    return int(json.loads((newest / "agent.json").read_text(encoding="utf-8"))["pid"])


def test_islands_train_apart_and_have_the_same_state_after_every_exchange(planned: Path) -> None:
    done = holmes(planned, "launch", "plan.json")
    assert done.returncode == 0, done.stderr
    folder = run_folder(planned)
    run = read_run(folder)
    assert (run.state, run.exit_code) == ("done", 0)
    digests = []
    for name in ("island-0", "island-1"):
        island = read_run(folder / name)
        assert (island.state, island.run_id) == ("done", f"{run.run_id}-{name}")
        assert island.steps_done == json.loads((folder / name / "plan.json").read_text())["job"]["steps"]
        digests.append([(each["exchange"], each["islands"], each["digest"]) for each in exchanges(folder / name)])
    assert digests[0] == digests[1]
    assert {tuple(islands) for _, islands, _ in digests[0]} == {(0, 1)}
    assert [number for number, _, _ in digests[0]] == list(range(len(digests[0])))
    assert nothing_is_left(planned)


def steps_and_losses(island: Path) -> list[tuple[int, float]]:
    lines = (island / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [(step["step"], step["loss"]) for step in map(json.loads, lines)]


def test_islands_go_back_to_an_older_step_together_or_not_at_all(tmp_path: Path) -> None:
    saving = {"path": str(tmp_path / "ck"), "every_steps": 5, "keep_last": 10}
    plan_islands(tmp_path, checkpoint=saving, islands=ROUND | {"grace_s": 60.0})  # neither goes on without the other
    assert holmes(tmp_path, "launch", "plan.json").returncode == 0
    first = run_folder(tmp_path)
    for step, *detach in ((15,), (5, "--detach")):
        runs = f"back-to-{step}"
        done = holmes(tmp_path, "launch", "plan.json", "--resume-step", str(step), "--runs", runs, *detach)
        assert done.returncode == 0, done.stderr
        (again,) = (tmp_path / runs).iterdir()
        assert eventually(lambda: read_run(again).state == "done")  # noqa: B023
        for name in ("island-0", "island-1"):
            assert steps_and_losses(again / name) == steps_and_losses(first / name)[step:]

    shutil.rmtree(tmp_path / "ck" / "island-1" / "step-00000010")
    before = sorted((tmp_path / "ck").rglob("*"))
    refused = holmes(tmp_path, "launch", "plan.json", "--resume-step", "10", "--runs", "refused")
    assert refused.returncode == 2
    assert f"step 10 of island 1 in {tmp_path}/ck/island-1 of b1; those that have it: island 0" in refused.stderr
    assert "all islands have --resume-step 5, 15, 20, 25, 30, 32" in refused.stderr
    assert sorted((tmp_path / "ck").rglob("*")) == before
    assert list((tmp_path / "refused").iterdir()) == []
    assert nothing_is_left(tmp_path)


@pytest.mark.exhaustive  # one of detached islands is killed, too
def test_an_island_that_is_killed_comes_back_while_the_other_goes_on(tmp_path: Path) -> None:
    plan_islands(tmp_path, **LONG)
    with launched(tmp_path) as process:
        assert eventually(lambda: any(steps_done(each) > 10 for each in (tmp_path / "runs").glob("*/island-1")))
        folder = run_folder(tmp_path)
        os.kill(agent_of(tmp_path, "island-1"), signal.SIGKILL)
        assert eventually(lambda: any(each["has_joined"] for each in exchanges(folder / "island-1")))
        before = steps_done(folder / "island-1")
        assert eventually(lambda: steps_done(folder / "island-1") > before + 10)
        first = read_run(folder / "island-0")
        assert (first.state, first.attempt) == ("running", 0)
        assert read_run(folder / "island-1").attempt == 1
        status = json.loads(holmes(tmp_path, "status", run_folder(tmp_path).name, "--json").stdout)
        assert any("island 1: lost: host b1" in notice["text"] for notice in status["notices"])
        listed = [json.loads(line) for line in holmes(tmp_path, "ps", "--json").stdout.splitlines()]
        assert [run["run_id"] for run in listed] == [folder.name]
        refused = holmes(tmp_path, "stop", str(folder / "island-1"))
        assert refused.returncode == 2
        assert f"is an island of {folder.name}" in refused.stderr
        stopped = holmes(tmp_path, "stop", folder.name)
        assert stopped.stdout == f"run {folder.name} is stopped\n"
        assert process.wait(timeout=600) == 130
    assert {read_run(folder / name).state for name in ("island-0", "island-1")} == {"stopped"}
    assert nothing_is_left(tmp_path)


def test_detached_islands_outlive_the_shell_and_are_looked_at_and_stopped_as_a_whole(tmp_path: Path) -> None:
    plan_islands(tmp_path, **LONG)
    run_id = launched_detached(tmp_path)
    folder = run_folder(tmp_path)
    try:
        assert eventually(lambda: all(exchanges(folder / name) for name in ("island-0", "island-1")))
        listed = [json.loads(line) for line in holmes(tmp_path, "ps", "--json").stdout.splitlines()]
        assert [(run["run_id"], run["watched"]) for run in listed] == [(run_id, "watched")]
        assert f"run {run_id}: running (detached)" in holmes(tmp_path, "status", run_id, "--html", "page.html").stdout
        assert "island-1" in (tmp_path / "page.html").read_text(encoding="utf-8")
        with looking(tmp_path, "attach", run_id) as shown, looking(tmp_path, "logs", "-f", run_id) as printed:
            assert eventually(lambda: all(f"\nisland {number}: step " in shown() for number in (0, 1)))
            lines = ("island 0: a1 rank 0 | ", "island 1: b1 rank 0 | ")
            assert eventually(lambda: all(line in printed() for line in lines))
            os.kill(agent_of(tmp_path, "island-1"), signal.SIGKILL)
            assert eventually(lambda: any(each["has_joined"] for each in exchanges(folder / "island-1")))
            assert eventually(lambda: "island 1: lost: host b1" in shown())
            attempts = [read_run(folder / name).attempt for name in ("island-0", "island-1")]
            assert (attempts, read_run(folder / "island-0").state) == ([0, 1], "running")
            refused = holmes(tmp_path, "stop", str(folder / "island-1"))
            assert refused.returncode == 2
            assert f"is an island of {folder.name}" in refused.stderr
            assert eventually(lambda: read_run(folder / "island-1").steps_skipped > 0)
            stopped = holmes(tmp_path, "stop", run_id)
            assert stopped.stdout == f"run {run_id} is stopped\n"
            assert eventually(lambda: f"run {run_id}: stopped" in shown())
    finally:
        holmes(tmp_path, "stop", run_id)
    assert {read_run(folder / name).state for name in ("island-0", "island-1")} == {"stopped"}
    assert nothing_is_left(tmp_path)


@pytest.mark.exhaustive  # test_run_commands.py has the verdict, and agents of islands miss a controller as others do
def test_detached_islands_end_without_their_controller_and_are_not_said_to_go_on(tmp_path: Path) -> None:
    plan_islands(tmp_path, **LONG)
    run_id = launched_detached(tmp_path)
    assert eventually(lambda: all(steps_done(run_folder(tmp_path) / name) for name in ("island-0", "island-1")))
    controller = read_run(run_folder(tmp_path)).controller
    assert controller is not None
    with looking(tmp_path, "attach", run_id) as shown:
        assert eventually(lambda: "island 1: step " in shown())
        os.kill(controller.pid, signal.SIGKILL)
        assert eventually(lambda: "its controller was killed" in shown())
    assert eventually(lambda: nothing_is_left(tmp_path))
    for words in (("ps",), ("status", run_id)):
        said = holmes(tmp_path, *words).stdout.replace("\n", " ")
        assert "its controller was killed" in said
    assert holmes(tmp_path, "attach", run_id).returncode == 1
    assert holmes(tmp_path, "stop", run_id).stdout == f"run {run_id} is stopped\n"
    assert {read_run(each).state for each in (run_folder(tmp_path), run_folder(tmp_path) / "island-0")} == {"stopped"}


def launched_detached(folder: Path) -> str:
    done = holmes(folder, "launch", "plan.json", "--detach")
    assert done.returncode == 0, done.stderr
    return str(done.stdout.strip())


@contextmanager
def looking(folder: Path, *arguments: str) -> Iterator[Callable[[], str]]:
    """Give what a command that only looks has printed so far, on either stream."""
    path = folder / f"{arguments[0]}.txt"
    words = [sys.executable, "-m", "holmes_cli", *arguments]
    with (
        open(path, "w", encoding="utf-8") as file,
        subprocess.Popen(words, cwd=folder, env=environment(folder), stdout=file, stderr=file) as process,
    ):
        try:
            yield lambda: path.read_text(encoding="utf-8")
        finally:
            process.kill()


def test_what_islands_cannot_do_is_refused_before_anything_is_touched(planned: Path) -> None:
    for words, said in (
        (("--on-loss", "replan"), "an island keeps its plan"),
        (("--replan-when-slow",), "an island keeps its plan"),
    ):
        refused = holmes(planned, "launch", "plan.json", *words)
        assert refused.returncode == 2
        assert said in refused.stderr
    refused = holmes(planned, "emit", "plan.json", "--to", "files", "-o", "out")
    assert refused.returncode == 2
    assert "a plan of islands" in refused.stderr
    assert not (planned / "runs").exists()


def test_a_check_that_fails_in_one_island_starts_none(planned: Path) -> None:
    (planned / "text.txt").unlink()
    refused = holmes(planned, "launch", "plan.json")
    assert refused.returncode == 1
    assert "preflight check inputs failed" in refused.stderr
    assert list((planned / "runs").iterdir()) == []
    assert nothing_is_left(planned)


def test_islands_read_the_data_of_their_own_clusters_which_each_of_their_hosts_must_have(tmp_path: Path) -> None:
    own = {cluster: tmp_path / f"{cluster}.txt" for cluster in "ab"}
    for cluster, path in own.items():
        path.write_text(f"{cluster} is not the site of the other. " * 100, encoding="utf-8")
    data = {cluster: str(path) for cluster, path in own.items()}
    changes = {"islands": {"inner_steps": "all", "data": data, "grace_s": 60.0}}
    plan_islands(tmp_path, compute={"flops_per_s": 1e10}, **changes)
    (tmp_path / "text.txt").unlink()  # neither reads data.path
    own["b"].rename(tmp_path / "b.bak")

    refused = holmes(tmp_path, "launch", "plan.json")
    assert refused.returncode == 1
    assert "preflight check inputs failed" in refused.stderr
    assert "b1" in refused.stderr
    assert str(own["b"]) in refused.stderr
    assert str(own["a"]) not in refused.stderr
    assert f"copy or mount {own['b']} on each host of island 1 (b1)" in refused.stderr.replace("\n", " ")
    assert "every host" not in refused.stderr

    (tmp_path / "b.bak").rename(own["b"])
    done = holmes(tmp_path, "launch", "plan.json")
    assert done.returncode == 0, done.stderr
    found = [exchanges(run_folder(tmp_path) / name) for name in ("island-0", "island-1")]
    assert [[(each["exchange"], each["islands"]) for each in island] for island in found] == [[(0, [0, 1])]] * 2
    assert found[0][0]["digest"] == found[1][0]["digest"]
    assert nothing_is_left(tmp_path)
