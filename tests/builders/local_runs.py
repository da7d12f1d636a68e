"""Hosts that are processes of this machine: a job for two of them, its plan, and the commands on it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from holmes_cli.api import plan
from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job
from holmes_core.records.record_file import read_file, read_user_file, write_signed
from tests.free_ports import free_port

ROOT = Path(__file__).parent.parent.parent
HOSTS: dict[str, Any] = {
    "transport": "local",
    "python": sys.executable,
    "speeds_gbps": {"lo": 20},
    "hosts": [{"name": "a1", "cluster": "a"}, {"name": "b1", "cluster": "b"}],
}
# Of a run that is still under way when a test ends it: a rehearsal, whose ranks mostly sleep.
LONG: dict[str, Any] = {
    "steps": 100000,
    "compute": {"emulate": {"forward_s_per_layer": 0.01, "backward_s_per_layer": 0.02}},
}


def small_job(folder: Path, **changes: Any) -> dict[str, Any]:
    text = folder / "text.txt"
    text.write_text("It is a capital mistake to theorize before one has data. " * 50, encoding="utf-8")
    base = {
        "model": {"num_layers": 2, "hidden_size": 16, "num_heads": 2, "seq_length": 16},
        "data": {"path": str(text)},
        "global_batch_size": 4,
        "steps": 4,
        "device": "cpu",
        "compute": {"flops_per_s": 1e10},
        "parallel": {"pp": 2, "dp": 1, "micro_batch_size": 1},
        "master_port": free_port(),
    }
    return {**base, **changes}


def environment(folder: Path) -> dict[str, str]:
    """A home of its own, so that what is left there is seen."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    return {**os.environ, "HOME": str(home), "PYTHONPATH": str(ROOT), "COLUMNS": "160"}


def holmes(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holmes_cli", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=600, check=False
    )


def write_inputs(folder: Path, **changes: Any) -> None:
    """hosts.yaml of the local hosts and a job.yaml for them in `folder`."""
    (folder / "hosts.yaml").write_text(yaml.safe_dump(HOSTS), encoding="utf-8")
    (folder / "job.yaml").write_text(yaml.safe_dump(small_job(folder, **changes)), encoding="utf-8")


@cache
def probed() -> tempfile.TemporaryDirectory[str]:
    """A folder with one probe of the local hosts for all tests of this process, and the home that has its key."""
    folder = tempfile.TemporaryDirectory()
    write_inputs(Path(folder.name))
    done = holmes(Path(folder.name), "probe", "hosts.yaml")
    assert done.returncode == 0, done.stderr
    return folder


def write_plan(folder: Path, **changes: Any) -> None:
    """inventory.json and plan.json of the local hosts in `folder`, planned in this process."""
    write_inputs(folder, **changes)
    shutil.copy(Path(probed().name) / "inventory.json", folder)
    shutil.copytree(Path(probed().name) / "home", folder / "home", dirs_exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder / "home"))  # where the key is
        patch.delenv("XDG_STATE_HOME", raising=False)
        inventory, own_job = read_file(Inventory, folder / "inventory.json"), read_user_file(Job, folder / "job.yaml")
        write_signed(folder / "plan.json", plan(inventory, own_job))


def nothing_is_left(folder: Path) -> bool:
    return list((folder / "home" / ".cache" / "holmes" / "runs").glob("*")) == []
