"""A full disk on the machine where `holmes` runs costs the run's logs, and not the run."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.journal.run_folder import read_run
from tests.builders.local_runs import environment, nothing_is_left, write_plan
from tests.cli.test_run_commands import run_folder

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a small disk")]

LAST_STEP = 100


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """`runs/` as a disk of 4 MB."""
    folder = tmp_path / "runs"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def fill(folder: Path) -> None:
    """Take all the room there is, and what comes free while it lasts."""
    with open(folder / "filling", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 12))


def test_a_disk_that_becomes_full_ends_no_run_and_the_verdict_is_written(tmp_path: Path, small_disk: Path) -> None:
    write_plan(tmp_path, steps=LAST_STEP)
    command = [sys.executable, "-m", "holmes_cli", "launch", "plan.json"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(tmp_path), stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        assert next(line for line in run.stderr if line.startswith("step 1/"))
        fill(small_disk)
        said = run.stderr.read()

    assert run.returncode == 0, said
    assert said.count("the disk is full: the run continues, and its logs end here") == 1
    assert f"step {LAST_STEP}/{LAST_STEP}" in said
    (small_disk / "filling").unlink()
    ended = read_run(run_folder(tmp_path))
    assert (ended.state, ended.exit_code) == ("done", 0)
    assert nothing_is_left(tmp_path)
