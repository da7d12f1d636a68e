"""`holmes doctor -- COMMAND`: the command's output, exit code, signals and NCCL log, and what the doctor says of it."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from holmes_core.hosts.hosts_file import HostEntry, HostsFile
from prober.asking.recording import HostNotes, HostRecording, Recorded
from prober.nccl_logs.diagnose import SOUND
from prober.probe import ask_all
from prober.running.processes import MARK
from prober.running.watch_hosts import run_of
from prober.running.watch_script import ENVIRONMENT
from tests.builders.watched_runs import PIDS, Watched
from tests.cli.conftest import Command
from tests.eventually import eventually

ROOT = Path(__file__).parents[2]
PATIENCE_S = 300
RANK = ("env", "RANK=0", "WORLD_SIZE=1", sys.executable)


def words_of(*words: str) -> list[str]:
    return [sys.executable, "-m", "holmes_cli", "doctor", *words]


def environ_of(folder: Path, **variables: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NCCL_")}
    return {**kept, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder), "COLUMNS": "100", **variables}


def done(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = environ_of(folder, **variables)
    return subprocess.run(
        words_of(*words), cwd=folder, env=environ, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def record_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.stdout, done.stderr
    record: dict[str, Any] = json.loads(done.stdout)
    return record


def script(folder: Path, *lines: str) -> str:
    (folder / "train.py").write_text("\n".join(lines), encoding="utf-8")
    return str(folder / "train.py")


@pytest.mark.process
def test_command_that_ends_before_it_is_watched_gives_its_code_at_once(tmp_path: Path) -> None:
    ended = done(tmp_path, "--seconds", "600", "--json", "--", "sh", "-c", "echo its output; exit 3")
    record = record_of(ended)
    assert (ended.returncode, record["cause"], record["ranks"]) == (3, None, [])
    assert "exit code 3" in record["says"]
    assert "its output" in ended.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
def test_command_goes_on_after_the_diagnosis_and_its_code_is_the_doctors(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    train = script(
        tmp_path,
        "import os, pathlib, sys, time",
        "while pathlib.Path('go').exists(): time.sleep(0.1)",
        "print('input', sys.stdin.read())",
        "sys.exit(5)",
    )
    words = words_of("--seconds", "2", "--record", "kept", "--", *RANK, train)
    pipe = subprocess.PIPE
    environ = environ_of(tmp_path)
    process = subprocess.Popen(words, cwd=tmp_path, env=environ, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert process.stdin is not None
    assert process.stderr is not None
    assert process.stderr.readline().startswith("the command still runs")
    process.stdin.write("typed")
    (tmp_path / "go").unlink()
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 5
    assert said.index("1 of 1 ranks") < said.index("input typed")
    replayed = record_of(done(tmp_path, "--replay", "kept", "--json"))
    assert [rank["number"] for rank in replayed["ranks"]] == [0]


@pytest.mark.process
def test_ranks_that_end_while_they_are_watched_are_diagnosed_by_what_was_seen(tmp_path: Path) -> None:
    """The rank ends in the third snapshot of six, which an `ss` of the test counts."""
    (tmp_path / "ss").write_text(f"#!/bin/sh\necho >>{tmp_path}/counts\n", encoding="utf-8")
    (tmp_path / "ss").chmod(0o755)
    train = script(
        tmp_path,
        "import pathlib, time",
        "counts = pathlib.Path('counts')",
        "while not (counts.exists() and counts.stat().st_size > 2): time.sleep(0.1)",
        "raise SystemExit(7)",
    )
    path = f"{tmp_path}:{os.environ['PATH']}"
    ended = done(tmp_path, "--seconds", "10", "--json", "--", *RANK, train, PATH=path)
    record = record_of(ended)
    assert [rank["number"] for rank in record["ranks"]] == [0]
    assert "exit code 7" in record["notes"][-1]
    # Other tests keep this machine busy, which may be the verdict; a command that failed is never sound.
    assert record["cause"] != SOUND
    assert ended.returncode == (7 if record["cause"] is None else 1)


@pytest.mark.process
def test_nccl_log_of_a_command_that_failed_is_the_verdict_and_its_folder_is_removed(tmp_path: Path) -> None:
    train = script(
        tmp_path,
        "import os",
        "file = os.environ['NCCL_DEBUG_FILE'].replace('%h', 'h1').replace('%p', str(os.getpid()))",
        "line = 'h1:1:2 [0] NCCL INFO Bootstrap : Using docker0:172.17.0.1<0>'",
        "open(file, 'w').write('\\n'.join([line, line.replace('h1', 'h2')]))",
        "raise SystemExit(1)",
    )
    ended = done(tmp_path, "--seconds", "2", "--json", "--", sys.executable, train)
    assert (ended.returncode, record_of(ended)["cause"]) == (1, "wrong-interface")
    assert "exit code 1" in ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.process
@pytest.mark.parametrize(("name", "value"), [("NCCL_DEBUG", "WARN"), ("NCCL_DEBUG_FILE", "mine")])
def test_settings_of_nccls_log_by_the_user_stay(tmp_path: Path, name: str, value: str) -> None:
    ended = done(tmp_path, "--seconds", "2", "--", "sh", "-c", "env | grep ^NCCL_", **{name: value})
    assert ended.stdout.splitlines()[0] == f"{name}={value}"
    assert not ended.stdout.splitlines()[1].startswith("NCCL_")


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_to_the_doctor_alone_ends_the_command(tmp_path: Path, number: int) -> None:
    environ = environ_of(tmp_path)
    words = words_of("--seconds", "600", "--", "sh", "-c", "echo $$ >pid; exec sleep 3600")
    process = subprocess.Popen(words, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, start_new_session=True)
    assert eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip().isdigit())
    process.send_signal(number)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + number
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


COUNTS_SIGNALS = (
    "import pathlib, signal, time",
    "count = []",
    "signal.signal(signal.SIGINT, lambda *_: count.append(1))",
    "pathlib.Path('ready').touch()",
    "while not count: time.sleep(0.1)",
    "time.sleep(1)",
    "print('signals', len(count))",
    "raise SystemExit(9)",
)


def on_terminal(folder: Path, *lines: str) -> tuple[int, int]:
    """Start the doctor with a script that says `ready`, on a terminal; its PID and the terminal's other end."""
    train = script(folder, *lines)
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.execve(sys.executable, words_of("--seconds", "600", "--", sys.executable, train), environ_of(folder))
    assert eventually((folder / "ready").exists)
    return child, terminal


@pytest.mark.process
@pytest.mark.parametrize("by", ["key", "kill"])
def test_interrupt_reaches_the_command_once_and_the_doctor_still_answers(tmp_path: Path, by: str) -> None:
    child, terminal = on_terminal(tmp_path, *COUNTS_SIGNALS)
    if by == "key":
        os.write(terminal, b"\x03")
    else:
        os.kill(child, signal.SIGINT)
    said = b""
    try:
        while piece := os.read(terminal, 65536):
            said += piece
    except OSError:  # the terminal's other end is closed
        pass
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 9
    assert b"signals 1" in said
    assert b"the command ended with exit code 9" in said
    assert b"Traceback" not in said


@pytest.mark.process
def test_terminal_that_hangs_up_ends_both_with_the_code_of_the_signal(tmp_path: Path) -> None:
    child, terminal = on_terminal(tmp_path, "import time", "open('ready', 'w').close()", "time.sleep(3600)")
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGHUP


@pytest.mark.parametrize(
    "words",
    [
        ("hosts.yaml", "--"),
        ("a1", "a2", "--", "true"),
        ("--log", "a.log", "--", "true"),
        ("--slurm", "12", "--", "true"),
        ("--replay", ".", "--", "true"),
        ("--replay", ".", "--anonymize", "copy", "--", "true"),
        ("--", "no-such-program-4711"),
        ("x.yaml", "--", "touch", "started"),
        ("--record", "used", "--", "touch", "started"),
    ],
)
def test_what_goes_with_no_command_is_refused_before_it_starts(
    command: Command, tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "used" / "a1").mkdir(parents=True)
    (tmp_path / "used" / "a1" / "recording.json").write_text("[]", encoding="utf-8")
    ended = command("doctor", *words)
    assert ended.code == 2
    assert ended.stderr.startswith("error: ")
    assert ended.stdout == ""
    assert not (tmp_path / "started").exists()


def test_run_of_the_started_command_goes_before_a_larger_one() -> None:
    watched = Watched()
    watched.process("a1", 70001, "python", 0.5)
    line = f"/proc/70001/environ:RANK=0\n/proc/70001/environ:WORLD_SIZE=1\n/proc/70001/environ:{MARK}=m1\n"
    watched.edit("a1", ENVIRONMENT, lambda text: text + line)
    hosts = {name: HostRecording(tuple(each), HostNotes(started="m1")) for name, each in watched.hosts.items()}
    assert [rank.pid for rank in run_of(hosts).ranks] == [70001]
    assert [rank.pid for rank in watched.run().ranks] == list(PIDS.values())


def test_hosts_that_never_answer_are_named_once_the_command_has_long_ended() -> None:
    hosts = HostsFile(hosts=(HostEntry(name="a1"), HostEntry(name="a2")))
    answered: list[str] = []

    def ask(entry: HostEntry, _: int) -> HostRecording:
        if entry.name == "a2":
            threading.Event().wait()
        return HostRecording((Recorded("id -u", "0", 0),))

    found = ask_all(hosts, ask, lambda name, _: answered.append(name), None, lambda: bool(answered))
    assert found["a1"].notes.failure is None
    assert found["a2"].notes.failure is not None
    assert "did not answer in time" in found["a2"].notes.failure.evidence
