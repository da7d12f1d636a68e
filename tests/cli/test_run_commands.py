"""Runs are found, looked at and ended from any shell; a detached one outlives whoever started it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holmes_runtime.config.node_config import KEY_VARIABLE
from launcher.journal.run_folder import read_run
from tests.builders.local_runs import LONG, environment, holmes, nothing_is_left, write_plan
from tests.eventually import eventually
from tests.testbed.reaper import process_start_time

pytestmark = pytest.mark.process


def run_folder(folder: Path) -> Path:
    (path,) = (folder / "runs").iterdir()
    return path


def steps_done(folder: Path) -> int:
    return len((run_folder(folder) / "metrics.jsonl").read_text(encoding="utf-8").splitlines())


@pytest.fixture
def detached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The id of a detached run that has taken its first steps; it is ended whatever the test does.

    It has a variable of this shell.
    """
    write_plan(tmp_path, launch={"environment": {"TAKEN": None}}, **LONG)
    monkeypatch.setenv("TAKEN", "here")
    done = holmes(tmp_path, "launch", "plan.json", "--detach")
    assert done.returncode == 0, done.stderr
    try:
        assert eventually(lambda: steps_done(tmp_path) > 2)
        yield done.stdout.strip()
    finally:
        holmes(tmp_path, "stop", done.stdout.strip())
        assert nothing_is_left(tmp_path)


def kill_controller(folder: Path) -> None:
    controller = read_run(run_folder(folder)).controller
    assert controller is not None
    os.kill(controller.pid, signal.SIGKILL)
    assert eventually(lambda: process_start_time(controller.pid) is None)


def test_detached_run_is_listed_shown_followed_and_stopped_from_another_folder(tmp_path: Path, detached: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "home").symlink_to(tmp_path / "home")
    listed = [json.loads(line) for line in holmes(elsewhere, "ps", "--json").stdout.splitlines()]
    assert [(run["run_id"], run["watched"], run["state"]) for run in listed] == [(detached, "watched", "running")]
    status = json.loads(holmes(elsewhere, "status", detached[:-2], "--json").stdout)
    assert status["nodes"] == {"a1": "stepping", "b1": "stepping"}
    assert status["last_step"]["loss"] > 0
    assert "b1 rank 1 | rank 1 on b1" in holmes(elsewhere, "logs", detached, "--rank", "1").stdout
    words = [sys.executable, "-m", "holmes_cli", "status", detached, "--html", "page.html", "--follow"]
    following = subprocess.Popen(words, cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.DEVNULL)
    page = tmp_path / "page.html"
    assert eventually(lambda: page.exists() and "refresh" in page.read_text(encoding="utf-8"))
    stopped = holmes(elsewhere, "stop", detached)
    assert stopped.stdout == f"run {detached} is stopped\n"
    run = read_run(run_folder(tmp_path))
    assert (run.state, run.exit_code, run.controller) == ("stopped", 130, None)
    assert run.steps_done >= 2
    assert following.wait(timeout=600) == 0
    assert "refresh" not in page.read_text(encoding="utf-8")
    assert "stopped" in page.read_text(encoding="utf-8")
    assert holmes(elsewhere, "ps", "--json").stdout == ""
    assert nothing_is_left(tmp_path)


def test_detached_run_outlives_its_controller_and_is_watched_again_by_a_shell_with_its_variables(
    tmp_path: Path, detached: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_controller(tmp_path)
    before = steps_done(tmp_path)
    assert "unwatched" in holmes(tmp_path, "status", detached).stdout
    assert steps_done(tmp_path) == before
    monkeypatch.delenv("TAKEN")
    refused = holmes(tmp_path, "attach", detached)
    assert refused.returncode == 2
    assert "launch.environment.TAKEN: no value is given, and this shell has no such variable" in refused.stderr
    assert read_run(run_folder(tmp_path)).state == "running"
    monkeypatch.setenv("TAKEN", "here")
    attach = [sys.executable, "-m", "holmes_cli", "attach", detached]
    looking = subprocess.Popen(attach, cwd=tmp_path, env=environment(tmp_path), stderr=subprocess.PIPE, text=True)
    assert looking.stderr is not None
    assert next(line for line in looking.stderr if line.startswith("step "))  # it has come to watching
    assert eventually(lambda: steps_done(tmp_path) > before + 2)
    looking.send_signal(signal.SIGINT)
    assert "the run continues" in looking.communicate(timeout=600)[1]
    lines = (run_folder(tmp_path) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [json.loads(line)["step"] for line in lines]
    assert steps[0] == 0
    assert set(range(steps[-1] + 1)) - set(steps) <= {before, before + 1}  # the step under way when it was killed
    assert read_run(run_folder(tmp_path)).state == "running"
    done = holmes(tmp_path, "stop", detached)  # by the ids that the run has written down
    assert (done.returncode, done.stdout) == (0, f"run {detached} is stopped\n")
    assert nothing_is_left(tmp_path)
    run = read_run(run_folder(tmp_path))
    assert run.steps_done >= len(set(steps))
    assert run.first_loss == json.loads(lines[0])["loss"]


def test_detached_run_that_ended_without_its_controller_is_stopped_with_the_verdict_of_its_nodes(
    tmp_path: Path,
) -> None:
    steps, checkpoint = 400, tmp_path / "checkpoint"
    write_plan(tmp_path, steps=steps, checkpoint={"path": str(checkpoint), "every_steps": steps})
    detached = holmes(tmp_path, "launch", "plan.json", "--detach").stdout.strip()
    try:
        assert eventually(lambda: steps_done(tmp_path) > 0)
        kill_controller(tmp_path)
        before = steps_done(tmp_path)
        assert before < steps
        assert eventually(lambda: (checkpoint / "latest").exists())
        done = holmes(tmp_path, "stop", detached)
        assert (done.returncode, done.stdout) == (0, f"run {detached} had ended: done, {steps} steps\n"), done
    finally:
        holmes(tmp_path, "stop", detached)
    run = read_run(run_folder(tmp_path))
    assert (run.state, run.exit_code, run.steps_done, run.safe_steps) == ("done", 0, steps, steps)
    assert steps_done(tmp_path) > before
    assert nothing_is_left(tmp_path)


def test_two_runs_side_by_side_leave_each_other_alone(tmp_path: Path, detached: str) -> None:
    other = holmes(tmp_path, "launch", "plan.json", "--detach", "--runs", "others")
    assert other.returncode == 0, other.stderr
    assert holmes(tmp_path, "stop", other.stdout.strip()).returncode == 0
    before = steps_done(tmp_path)
    assert eventually(lambda: steps_done(tmp_path) > before + 2)
    assert read_run(run_folder(tmp_path)).run_id == detached


def test_events_as_json_and_the_file_for_prometheus_tell_the_whole_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_plan(tmp_path)
    monkeypatch.setenv("HOLMES_PROMETHEUS", str(tmp_path))
    done = holmes(tmp_path, "launch", "plan.json", "--json")
    assert done.returncode == 0, done.stderr
    *events, end = [json.loads(line) for line in done.stdout.splitlines()]
    assert (end["event"], end["run"]["state"]) == ("end", "done")
    assert tmp_path / end["folder"] == run_folder(tmp_path)
    assert [event["step"] for event in events if event["event"] == "step"] == [0, 1, 2, 3]
    assert {event["state"] for event in events if event["event"] == "node"} >= {"preflight", "ranks up", "ended"}
    exported = (tmp_path / f"holmes-{run_folder(tmp_path).name}.prom").read_text(encoding="utf-8")
    assert re.search(r'^holmes_run_state\{run="[\w-]+",state="done"\} 1$', exported, re.MULTILINE)
    assert re.search(r'^holmes_run_steps_done\{run="[\w-]+"\} 4$', exported, re.MULTILINE)
    shown = holmes(tmp_path, "status", str(run_folder(tmp_path)), "--html", "page.html", "--tensorboard", "events")
    assert shown.returncode == 0
    assert [path.stat().st_size > 500 for path in (tmp_path / "events").glob("*/events.out.tfevents.*")] == [True]
    assert (tmp_path / "page.html").read_text(encoding="utf-8").count('<polyline class="curve') >= 3


def test_variables_secrets_and_the_run_s_key_reach_the_ranks_and_no_output(tmp_path: Path) -> None:
    secret, value = "s3cr3t-word", 'it\'s $(touch canary) "é"'
    (tmp_path / "token").write_text(secret, encoding="utf-8")
    launch = {"environment": {"MINE": value, "TAKEN": None}, "secrets": {"TOKEN": str(tmp_path / "token")}}
    write_plan(tmp_path, launch=launch, **LONG)
    done = holmes(tmp_path, "launch", "plan.json", "--dry-run")
    assert done.returncode == 2
    assert "launch.environment.TAKEN: no value is given" in done.stderr
    taken = {**environment(tmp_path), "TAKEN": "from here"}
    command = [sys.executable, "-m", "holmes_cli", "launch", "plan.json"]
    dry_run = [*command, "--dry-run", "--json"]
    dry = subprocess.run(dry_run, cwd=tmp_path, env=taken, capture_output=True, text=True, check=True)
    variables = json.loads(json.loads(dry.stdout.splitlines()[-1])["files"]["node.json"])["environment"]
    assert (variables["MINE"], variables["TAKEN"]) == (value, "from here")
    assert secret not in dry.stdout
    process = subprocess.Popen(command, cwd=tmp_path, env=taken, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert next(line for line in process.stderr if line.startswith("step 1/"))
    ranks = list(rank_environments(run_folder(tmp_path).name))
    command_lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if readable(path)]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=600)
    assert process.returncode == 130
    assert len(ranks) == 2
    for variables in ranks:
        assert (variables["MINE"], variables["TAKEN"], variables["TOKEN"]) == (value, "from here", secret)
    (key,) = {variables[KEY_VARIABLE] for variables in ranks}
    assert len(bytes.fromhex(key)) == 32
    written = "".join(path.read_text(encoding="utf-8") for path in run_folder(tmp_path).glob("*.*"))
    for kept in (secret, key):
        assert not any(kept.encode() in line for line in command_lines)
        assert kept not in written
    assert list(tmp_path.rglob("canary")) == []
    assert nothing_is_left(tmp_path)


def readable(path: Path) -> bool:
    with contextlib.suppress(OSError):
        path.read_bytes()
        return True
    return False


def rank_environments(run_id: str) -> Iterator[dict[str, str]]:
    """The environment of every rank of the run, with its process id as PID."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if b"holmes_runtime.train" in words and b"holmes_runtime.torchrun" not in words:
                lines = (entry / "environ").read_bytes().decode().split("\0")
                variables = dict(line.split("=", 1) for line in lines if "=" in line)
                if run_id in variables.get("HOLMES_METRICS_DIR", ""):
                    yield {**variables, "PID": entry.name}


def test_verdict_on_a_killed_rank_is_not_buried_under_its_peers_tracebacks(tmp_path: Path) -> None:
    write_plan(tmp_path, **LONG)
    command = [sys.executable, "-m", "holmes_cli", "launch", "plan.json"]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment(tmp_path), stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    run_id = next(process.stderr).removeprefix("run ").partition(":")[0]
    assert next(line for line in process.stderr if line.startswith("step 2/"))
    (killed,) = [ranks for ranks in rank_environments(run_id) if ranks["RANK"] == "1"]
    os.kill(int(killed["PID"]), signal.SIGKILL)
    said = process.communicate(timeout=600)[1]
    assert process.returncode == 137
    before, verdict = said.split("error: ")
    assert "Traceback" not in before
    assert "the kernel counts no out-of-memory kill" in verdict
    assert verdict.startswith("host b1 (b): rank 1 failed first: signal 9")
    assert "Traceback" in (run_folder(tmp_path) / "logs" / "a1-rank0.log").read_text(encoding="utf-8")
    assert nothing_is_left(tmp_path)


def test_a_command_of_the_job_is_told_how_the_run_ended_and_a_missing_one_refuses_the_launch(tmp_path: Path) -> None:
    keep = "import sys; open('heard', 'w').write(sys.stdin.read())"
    write_plan(tmp_path, launch={"on_end": [sys.executable, "-c", keep]})
    assert holmes(tmp_path, "launch", "plan.json").returncode == 0
    heard = run_folder(tmp_path) / "heard"
    assert eventually(lambda: heard.exists() and heard.read_text(encoding="utf-8").endswith("\n"))
    told = json.loads(heard.read_text(encoding="utf-8"))
    assert (told["event"], told["cause"], told["run"]["state"]) == ("end", None, "done")
    assert (told["run_id"], told["folder"]) == (run_folder(tmp_path).name, str(run_folder(tmp_path)))
    write_plan(tmp_path, launch={"on_end": ["no-such-program-here"]})
    refused = holmes(tmp_path, "launch", "plan.json", "--runs", "others")
    assert refused.returncode == 2
    assert "launch.on_end: no-such-program-here: no such program on this machine" in refused.stderr
    assert not (tmp_path / "others").exists()
