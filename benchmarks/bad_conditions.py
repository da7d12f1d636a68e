"""Launches in bad conditions: processes killed or stopped at any time, full and read-only disks, little of everything,
and a tunnel under attack. Each must end with the right verdict and leave nothing on any host.

`python -m benchmarks.bad_conditions [PART...]`: only those whose name holds one of the parts. Needs root, as beds do.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import yaml

from benchmarks.figure import print_figure
from benchmarks.hundred_launches import probed
from launcher.prepare.prepare import SILENCE_LIMIT_S
from tests.eventually import eventually
from tests.testbed.launch_ends import (
    CLEAN_WITHIN_S,
    ENDINGS,
    Ending,
    Running,
    Way,
    end_so,
    small_disk,
    with_checkpoints,
)
from tests.testbed.own_disks import on_host
from tests.testbed.rank_processes import agent_pids, rank_pids, torchrun_pids
from tests.testbed.rehearsal import Site, bed_site, only_run
from tests.testbed.strangers import Strangers

STEPS = {"steps": 300}
AWAY_S = 20.0
HOST = "b1"


class Condition(NamedTuple):
    """An ending, what holds on a host or around the launch meanwhile, and how the hosts are reached."""

    ending: Ending
    around: Callable[[Way, Path], AbstractContextManager[None]] = lambda _way, _folder: contextlib.nullcontext()
    activate: str | None = None
    encrypted: bool = False
    saves: bool = False

    def ending_in(self, folder: Path) -> Ending:
        """The ending of a launch of that folder, where its checkpoints go too."""
        return with_checkpoints(self.ending, folder, every_steps=50) if self.saves else self.ending


def killed_agent(host: str) -> Callable[[Running], None]:
    """Kill the host's agent as soon as there is one."""

    def kill(run: Running) -> None:
        assert eventually(lambda: len(agent_pids(run.bed, host)) == 2)
        _relay, agent = agent_pids(run.bed, host)
        os.kill(agent, signal.SIGKILL)

    return kill


def stopped_for(seconds: float, pids: Callable[[Running], list[int]]) -> Callable[[Running], None]:
    """Stop processes, and let them go on after that time."""

    def stop(run: Running) -> None:
        found = pids(run)
        for pid in found:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        for pid in found:
            os.kill(pid, signal.SIGCONT)

    return stop


def killed_controller(after_s: float) -> Callable[[Running], None]:
    def kill(run: Running) -> None:
        time.sleep(after_s)
        run.process.kill()

    return kill


def killed_rank(run: Running) -> None:
    (rank,) = rank_pids(run.bed, HOST)
    os.kill(rank, signal.SIGKILL)


def filled_runs(run: Running) -> None:
    with open(only_run(run.folder / "runs") / "filling", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 12))


@contextlib.contextmanager
def small_runs(_way: Way, folder: Path) -> Iterator[None]:
    """`runs/` is a disk of 4 MB."""
    runs = folder / "runs"
    runs.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", runs], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", runs], check=True)


def mounted(where: Callable[[Way], str], options: str) -> Callable[[Way, Path], AbstractContextManager[None]]:
    """A disk of these options on HOST."""

    @contextlib.contextmanager
    def mount(way: Way, _folder: Path) -> Iterator[None]:
        on_host(way.bed, HOST, "mkdir", "-p", where(way))
        on_host(way.bed, HOST, "mount", "-t", "tmpfs", "-o", options, "tmpfs", where(way))
        try:
            yield
        finally:
            on_host(way.bed, HOST, "umount", "--lazy", where(way))

    return mount


@contextlib.contextmanager
def strangers(way: Way, _folder: Path) -> Iterator[None]:
    """Whoever shares the network, and another user of the first host, try all that listens."""
    trying = Strangers(way.bed)
    trying.begin()
    try:
        yield
    finally:
        trying.end()


@contextlib.contextmanager
def garbage(way: Way, _folder: Path) -> Iterator[None]:
    """Datagrams of random bytes to where hosts take what is encrypted, 1,000 a second."""
    addresses = [host.slow_address for host in way.bed.hosts]
    program = f"""
import os, socket, time
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for number in range(120_000):
    sender.sendto(os.urandom(148), ({addresses!r}[number % {len(addresses)}], 51820 + number // 4 % 2))
    time.sleep(0.001)
"""
    command = ["ip", "netns", "exec", way.bed.controller_namespace, sys.executable, "-c", program]
    with subprocess.Popen(command) as process:
        try:
            yield
        finally:
            process.kill()


def conditions() -> Iterator[Condition]:
    """Thirty-four of them."""
    known = {ending.name: ending for ending in ENDINGS}
    silent_s = SILENCE_LIMIT_S + CLEAN_WITHIN_S
    for name in ("rank killed", "torchrun killed", "controller killed"):
        yield from (Condition(replace(known[name], name=f"{name}, {which}")) for which in ("once", "again"))
    for name in ("agent stopped", "disk full", "home full", "Ctrl-C twice", "interface down"):
        yield Condition(known[name])
    for host in ("a1", "b2"):
        lost = Ending(f"agent of {host} killed", 1, f"error: host {host}", killed_agent(host))
        yield Condition(lost)
    for host in ("a1", "a2", "b1", "b2"):
        name = f"agent of {host} killed in preflight"
        yield Condition(Ending(name, 1, f"host {host}", killed_agent(host), when="run ", begins=False))
    for after_s in (0.5, 2.0, 4.0):
        name = f"controller killed {after_s:g} s after its start"
        early = Ending(
            name, -signal.SIGKILL, "", killed_controller(after_s), when="run ", limit_s=silent_s, begins=False
        )
        yield Condition(early)
    for name, pids in (
        ("rank", lambda run: rank_pids(run.bed, HOST)),
        ("torchrun", lambda run: torchrun_pids(run.bed, HOST)),
    ):
        yield Condition(Ending(f"{name} stopped for a while", 0, "", stopped_for(AWAY_S, pids), job=STEPS))
    ten_seconds = stopped_for(10.0, lambda run: [run.process.pid])
    yield Condition(Ending("controller stopped for a while", 0, "", ten_seconds, job=STEPS))
    yield Condition(Ending("SIGTERM", 130, "no rank is left running", lambda run: run.process.terminate()))
    restarted = Ending("rank killed, with a restart", 0, "", killed_rank, job=STEPS, options=("--restarts", "1"))
    yield Condition(restarted, saves=True)
    full = Ending("runs/ full", 0, "", filled_runs, job=STEPS)
    yield Condition(full, small_runs)
    refused = Ending("cache read-only", 1, f"host {HOST}", begins=False)
    yield Condition(refused, mounted(lambda way: str(way.cache(HOST)), "ro"))
    little = Ending("/dev/shm of 1 MB", 0, "", job=STEPS, options=("--force", "shared-memory"))
    yield Condition(little, mounted(lambda _: "/dev/shm", "size=1m"))
    yield Condition(Ending("TMPDIR read-only", 0, "", job=STEPS), activate="export TMPDIR=/sys")
    yield Condition(Ending("64 open files", 0, "", job=STEPS), activate="ulimit -n 64")
    yield Condition(Ending("6 GB of addresses", 0, "", job=STEPS), activate="ulimit -v 6000000")
    yield Condition(Ending("tunnel and strangers", 0, "", job=STEPS), strangers, encrypted=True)
    yield Condition(Ending("tunnel and garbage", 0, "", job=STEPS), garbage, encrypted=True)
    yield Condition(replace(known["rank killed"], name="tunnel, garbage and a rank killed"), garbage, encrypted=True)


def reached_so(site: Site, condition: Condition) -> Path:
    """The inventory of the site's hosts, reached as the condition says."""
    hosts = yaml.safe_load(site.hosts_yaml.read_text(encoding="utf-8"))
    hosts = hosts if isinstance(hosts, dict) else {"hosts": hosts}
    if condition.encrypted:
        hosts["security"] = {"between_clusters": "wireguard"}
    if condition.activate:
        hosts["activate"] = condition.activate
    name = "".join(letter if letter.isalnum() else "-" for letter in condition.ending.name)
    path = site.folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(hosts), encoding="utf-8")
    return probed(replace(site, hosts_yaml=path), f"{name}.json")


def main(parts: Sequence[str]) -> int:
    """Print a line a launch; return how many were not as they should be."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background job; launches inherit it
    faults = count = 0
    with (
        tempfile.TemporaryDirectory() as name,
        small_disk(Path(name) / "small") as disk,
        bed_site(Path(name)) as site,
    ):
        for condition in conditions():
            if parts and not any(part in condition.ending.name for part in parts):
                continue
            folder, way = site.folder / f"launch-{count}", Way(site)
            folder.mkdir()
            inventory = reached_so(site, condition)
            with condition.around(way, folder):
                wrong = end_so(way, condition.ending_in(folder), folder, inventory, disk)
            count, faults = count + 1, faults + bool(wrong)
            print(f"{count} {condition.ending.name}: {'; '.join(wrong) or 'as it should be'}", flush=True)
    print_figure("bad_conditions.faults", faults, f"of {count} launches")
    return faults


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*")
    sys.exit(bool(main(parser.parse_args().parts)))
