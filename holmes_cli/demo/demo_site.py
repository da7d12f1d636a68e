"""The site of a demo: its folder, its hosts, text to train on, and the compute speed of a core."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import holmes_runtime
from holmes_cli.own_process import holmes_words

LOCAL_HOSTS = ("a1", "a2", "b1", "b2")


@dataclass(frozen=True)
class DemoSite:
    """The place where commands run: `prefix` goes before each, `folder` holds the files."""

    folder: Path
    hosts_yaml: Path
    prefix: tuple[str, ...] = ()

    def command(self, *arguments: str) -> list[str]:
        """Return the whole command line of `holmes ARGUMENTS`."""
        return [*self.prefix, *holmes_words(*arguments)]

    def write_job(self, name: str, job: dict[str, Any]) -> Path:
        """Write `job` as NAME.yaml in the folder, and return its path."""
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(job, sort_keys=False), encoding="utf-8")
        return path

    def show(self, *arguments: str) -> None:
        """Print `holmes ARGUMENTS` as one would type it, run it, and raise CalledProcessError if it fails."""
        print(f"\n$ holmes {shlex.join(arguments)}", flush=True)
        subprocess.run(self.command(*arguments), check=True)


def write_local_hosts(folder: Path) -> Path:
    """Write hosts.yaml with four names for this machine, in two pinned clusters, over the loopback."""
    hosts = {
        "transport": "local",
        "python": sys.executable,
        "speeds_gbps": {"lo": round(loopback_gbps(), 1)},
        "hosts": [{"name": name, "cluster": name[0]} for name in LOCAL_HOSTS],
    }
    path = folder / "hosts.yaml"
    path.write_text(yaml.safe_dump(hosts, sort_keys=False), encoding="utf-8")
    return path


def standard_library_corpus() -> dict[str, str]:
    """Return the `data:` of a job that trains on real text every machine has: the sources of its own Python."""
    return {"path": sysconfig.get_path("stdlib"), "pattern": "*.py"}


def measured_compute(model: dict[str, int], micro_batch_size: int, at_once: int, rounds: int = 3) -> dict[str, Any]:
    """Return the `compute:` of a job for `at_once` slots of this machine, as Holmes' own calibration measures it."""
    arguments = ["--micro-batch-size", str(micro_batch_size), "--rounds", str(rounds), "--slots", str(at_once)]
    for key in ("hidden_size", "num_heads", "seq_length"):
        arguments += [f"--{key.replace('_', '-')}", str(model[key])]
    command = [sys.executable, "-m", f"{holmes_runtime.__name__}.calibrate", *arguments]
    quiet = {**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR"}  # torch warns where the machine's own address has no name
    # in `/`: Python imports from the folder it is started in before its own
    answer = subprocess.run(command, cwd="/", stdout=subprocess.PIPE, text=True, check=True, env=quiet).stdout
    compute: dict[str, Any] = yaml.safe_load(answer)["compute"]
    return compute


def loopback_gbps(size_bytes: int = 256 * 1024**2) -> float:
    """Return the gigabits per second of one TCP stream over the loopback, measured by sending `size_bytes`."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = threading.Thread(target=_send, args=(server.getsockname(), size_bytes))
        started = time.perf_counter()
        sender.start()
        connection, _ = server.accept()
        with connection:
            while connection.recv(1 << 20):
                pass
        sender.join()
        return size_bytes * 8 / 1e9 / (time.perf_counter() - started)


def _send(address: tuple[str, int], size_bytes: int) -> None:
    chunk = bytes(1 << 20)
    with socket.create_connection(address) as connection:
        for _ in range(size_bytes // len(chunk)):
            connection.sendall(chunk)
