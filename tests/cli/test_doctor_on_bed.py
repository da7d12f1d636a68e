"""`holmes doctor hosts.yaml` on two hosts of the bed while a training runs there, and with one rank stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.eventually import eventually
from tests.testbed.needs_bed import NEEDS_BED
from tests.testbed.rehearsal import Site, bed_site

pytestmark = NEEDS_BED

HOSTS = ("a1", "a2")
TRAINING = """
import itertools, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(512, 512))
for step in itertools.count():
    model(torch.ones(8, 512)).sum().backward()
    open(f"{sys.argv[1]}/steps-{dist.get_rank()}", "w").write(str(step))
    time.sleep(0.05)  # two cores are shared with other tests
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with bed_site(tmp_path_factory.mktemp("doctor")) as site:
        yield site


@pytest.fixture(scope="module")
def ranks(site: Site) -> Iterator[dict[int, int]]:
    """Yield the PIDs of the two ranks of a training on two hosts that has made steps."""
    assert site.bed is not None
    (site.folder / "train.py").write_text(TRAINING, encoding="utf-8")
    address = site.bed.host("a1").fast_address
    started = []
    for number, name in enumerate(HOSTS):
        options = ["--nnodes=2", f"--node-rank={number}", f"--master-addr={address}", "--master-port=29533"]
        words = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            *options,
            str(site.folder / "train.py"),
            str(site.folder),
        ]
        variables = {"GLOO_SOCKET_IFNAME": site.bed.host(name).fast_interface, "OMP_NUM_THREADS": "1"}
        command = site.bed.on_host_command(
            name, ["env", *(f"{key}={value}" for key, value in variables.items()), *words]
        )
        started.append(subprocess.Popen(command, cwd=site.folder, start_new_session=True))
    try:
        steps = [site.folder / f"steps-{rank}" for rank in (0, 1)]
        assert eventually(lambda: all(step.exists() for step in steps) or _one_ended(started))
        assert not _one_ended(started)
        yield {rank: pid for rank in (0, 1) for pid in [_pid_of(site, HOSTS[rank], rank)]}
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for name in HOSTS:
            for pid in site.bed.guest_pids(name):
                if b"train.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)


def _one_ended(processes: list[subprocess.Popen[bytes]]) -> bool:
    return any(process.poll() is not None for process in processes)


def _pid_of(site: Site, host: str, rank: int) -> int:
    assert site.bed is not None
    variable = f"RANK={rank}".encode()
    return next(pid for pid in site.bed.guest_pids(host) if variable in _variables(pid))


def _variables(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def diagnosed(site: Site, *words: str) -> dict[str, Any]:
    hosts = yaml.safe_load(site.hosts_yaml.read_text(encoding="utf-8"))
    hosts["hosts"] = [host for host in hosts["hosts"] if (host if isinstance(host, str) else host["name"]) in HOSTS]
    (site.folder / "two.yaml").write_text(yaml.safe_dump(hosts), encoding="utf-8")
    command = site.command("doctor", "two.yaml", "--json", *words)
    done = subprocess.run(command, cwd=site.folder, capture_output=True, text=True, timeout=600, check=False)
    assert done.stdout, done.stderr
    record: dict[str, Any] = json.loads(done.stdout)
    return record


def test_ranks_of_both_hosts_and_the_interface_between_them_are_seen_while_it_trains(
    site: Site, ranks: dict[int, int]
) -> None:
    record = diagnosed(site, "--seconds", "10")
    assert [(each["number"], each["host"], each["pid"]) for each in record["ranks"]] == [
        (rank, HOSTS[rank], pid) for rank, pid in ranks.items()
    ]
    between = {(path["sender"], path["receiver"], path["interface"]) for path in record["paths"] if path["sent_bytes"]}
    assert {("a1", "a2", "ib0"), ("a2", "a1", "ib0")} <= between
    assert record["cause"] in ("none", "cpu-taken")  # other tests may hold the CPUs
    assert record["notes"] == []


def test_rank_that_is_stopped_is_the_verdict_with_its_host(site: Site, ranks: dict[int, int]) -> None:
    os.kill(ranks[1], signal.SIGSTOP)
    try:
        record = diagnosed(site, "--seconds", "5")
    finally:
        os.kill(ranks[1], signal.SIGCONT)
    assert record["cause"] == "stopped-process"
    assert f"rank 1 on a2 (PID {ranks[1]})" in record["says"]
