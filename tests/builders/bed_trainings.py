"""Trainings by torchrun on hosts of the bed, and `holmes doctor` on them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.eventually import eventually
from tests.testbed.rehearsal import Site

HSDP = """
import itertools, sys, time
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
for step in itertools.count():
    model(torch.ones(8, 256)).sum().backward()
    open(f"{sys.argv[1]}/steps-{dist.get_rank()}", "w").write(str(step))
    time.sleep(0.05)
"""


@contextlib.contextmanager
def training(
    site: Site, text: str, nproc: Mapping[str, int], port: int, *options: str, is_wide: bool = False
) -> Iterator[dict[int, int]]:
    """A training on hosts, in this order of node ranks, that has made steps; the PIDs of its ranks.

    It uses the fast network of its cluster, or the slow one to everywhere.
    """
    folder = site.folder / f"run-{port}"
    started = []
    for name in nproc:
        words = torchrun(site, text, nproc, name, port, *options, is_wide=is_wide)
        with open(folder / f"{name}.log", "wb") as log:
            started.append(subprocess.Popen(on_host(site, name, words), cwd=folder, stdout=log, start_new_session=True))
    try:
        assert eventually(lambda: has_stepped(folder, nproc) or _one_ended(started))
        assert not _one_ended(started)
        owners = [name for name, count in nproc.items() for _ in range(count)]
        yield {rank: _pid_of(site, name, rank, port) for rank, name in enumerate(owners)}
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        end_ranks(site, nproc, folder)


def torchrun(
    site: Site, text: str, nproc: Mapping[str, int], name: str, port: int, *options: str, is_wide: bool = False
) -> list[str]:
    """Return the words that start the ranks of host `name`, and write their script."""
    assert site.bed is not None
    folder = site.folder / f"run-{port}"
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(text, encoding="utf-8")
    (folder / "mode").write_text("sound", encoding="utf-8")
    first, own = site.bed.host(next(iter(nproc))), site.bed.host(name)
    address = first.slow_address if is_wide else first.fast_address
    variables = [f"GLOO_SOCKET_IFNAME={own.slow_interface if is_wide else own.fast_interface}", "OMP_NUM_THREADS=1"]
    launch = [f"--nnodes={len(nproc)}", f"--node-rank={list(nproc).index(name)}", f"--master-addr={address}"]
    script = [f"--master-port={port}", f"--nproc-per-node={nproc[name]}", str(folder / "train.py"), str(folder)]
    return ["env", *variables, sys.executable, "-m", "torch.distributed.run", *launch, *script, *options]


def on_host(site: Site, name: str, words: list[str]) -> list[str]:
    """Return `words` as run on the host."""
    assert site.bed is not None
    return site.bed.on_host_command(name, words)


def has_stepped(folder: Path, nproc: Mapping[str, int]) -> bool:
    """Return True once every rank has made a step."""
    return all((folder / f"steps-{rank}").exists() for rank in range(sum(nproc.values())))


def end_ranks(site: Site, nproc: Mapping[str, int], folder: Path) -> None:
    """End what the training started on its hosts."""
    assert site.bed is not None
    for name in nproc:
        for pid in site.bed.guest_pids(name):
            with contextlib.suppress(OSError):
                if str(folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)


def diagnosed(site: Site, *words: str, hosts: tuple[str, ...] = ("a1", "a2")) -> dict[str, Any]:
    """Return the record of these hosts."""
    every = yaml.safe_load(site.hosts_yaml.read_text(encoding="utf-8"))
    every["hosts"] = [host for host in every["hosts"] if (host if isinstance(host, str) else host["name"]) in hosts]
    (site.folder / "some.yaml").write_text(yaml.safe_dump(every), encoding="utf-8")
    command = site.command("doctor", "some.yaml", "--json", *words)
    done = subprocess.run(command, cwd=site.folder, capture_output=True, text=True, timeout=600, check=False)
    assert done.stdout, done.stderr
    record: dict[str, Any] = json.loads(done.stdout)
    return record


def verdict(record: dict[str, Any]) -> dict[str, Any]:
    """Return the first finding; the second where the first is that other tests hold the cores."""
    return record["findings"][0] if record["cause"] == "cpu-taken" and record["findings"] else record


def _one_ended(processes: list[subprocess.Popen[bytes]]) -> bool:
    return any(process.poll() is not None for process in processes)


def _pid_of(site: Site, host: str, rank: int, port: int) -> int:
    assert site.bed is not None
    variables = {f"RANK={rank}".encode(), f"MASTER_PORT={port}".encode()}
    return next(pid for pid in sorted(site.bed.guest_pids(host)) if variables <= set(_variables(pid)))


def _variables(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
