"""A host that prints gigabytes is named, and the machine where `holmes` runs hardly notices."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from tests.builders.local_runs import HOSTS, environment, write_inputs

pytestmark = pytest.mark.process

MAX_MEMORY_BYTES = 300 << 20
FLOOD = f"yes '{'a line of a library that warns ' * 8}' | head -c 671088640"  # twice what may be held
LIMIT_S = 300.0


class Measured(NamedTuple):
    """A command that has ended, and the most memory that its own process held."""

    code: int
    stdout: str
    stderr: str
    memory_bytes: int


def holmes(folder: Path, *arguments: str) -> Measured:
    command = [sys.executable, "-m", "holmes_cli", *arguments]
    with open(folder / "stdout", "w+") as stdout, open(folder / "stderr", "w+") as stderr:
        process = subprocess.Popen(command, cwd=folder, env=environment(folder), stdout=stdout, stderr=stderr)
        deadline, most = time.monotonic() + LIMIT_S, 0
        while process.poll() is None:
            assert time.monotonic() < deadline
            status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
            most = max([most, *(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))])
            time.sleep(0.05)
        stdout.seek(0)
        stderr.seek(0)
        return Measured(process.returncode, stdout.read(), stderr.read(), most << 10)


def flooding(folder: Path, words: str, lines: str) -> None:
    """Have b1's Python do what `lines` of shell say wherever its words match `words`."""
    python = folder / "python-of-b1"
    python.write_text(
        f'#!/bin/sh\ncase "$*" in {words}) {lines};; esac\nexec {sys.executable} "$@"\n', encoding="utf-8"
    )
    python.chmod(0o755)
    a1, b1 = HOSTS["hosts"]
    hosts = HOSTS | {"hosts": [a1, b1 | {"python": str(python)}]}
    (folder / "hosts.yaml").write_text(yaml.safe_dump(hosts), encoding="utf-8")


def plan_flooding(folder: Path, lines: str, **changes: object) -> None:
    write_inputs(folder, **changes)
    flooding(folder, "*holmes_runtime.node.agent*", lines)
    for arguments in (("probe", "hosts.yaml"), ("plan", "job.yaml")):
        done = holmes(folder, *arguments)
        assert done.code == 0, done.stderr


def test_probe_of_a_host_that_prints_gigabytes(tmp_path: Path) -> None:
    write_inputs(tmp_path)
    flooding(tmp_path, "*-c*", f"for part in 1 2 3 4 5 6 7 8 9; do {FLOOD}; done")
    done = holmes(tmp_path, "probe", "hosts.yaml")
    assert "PROBE-TRUNCATED" in done.stdout
    assert "its answer is longer than 64 MiB" in done.stdout
    assert "Traceback" not in done.stderr
    assert done.memory_bytes < MAX_MEMORY_BYTES, done.memory_bytes


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (f"{FLOOD} >&2; echo 'the reason' >&2; exit 7", "the reason"),
        (f"{FLOOD}; exit 7", "(exit code 7)"),
        ("exec tr '\\0' x </dev/zero", "it sent more than 16 MiB"),
    ],
    ids=["errors", "lines", "one line"],
)
def test_launch_where_an_agent_prints_gigabytes_and_does_not_start(tmp_path: Path, lines: str, reason: str) -> None:
    plan_flooding(tmp_path, lines)
    done = holmes(tmp_path, "launch", "plan.json")
    assert done.code == 1
    assert "b1" in done.stderr
    assert reason in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    assert done.memory_bytes < MAX_MEMORY_BYTES, done.memory_bytes


def test_run_beside_gigabytes_of_standard_error_is_done(tmp_path: Path) -> None:
    plan_flooding(tmp_path, f"{{ {FLOOD} >&2; }} &")
    done = holmes(tmp_path, "launch", "plan.json")
    assert done.code == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert done.memory_bytes < MAX_MEMORY_BYTES, done.memory_bytes


def test_run_in_which_a_host_begins_to_send_a_line_without_an_end_fails_by_that_host(tmp_path: Path) -> None:
    plan_flooding(tmp_path, "{ sleep 8; exec tr '\\0' x </dev/zero; } &", steps=100_000)
    done = holmes(tmp_path, "launch", "plan.json")
    assert done.code == 1
    assert "host b1" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.memory_bytes < MAX_MEMORY_BYTES, done.memory_bytes
