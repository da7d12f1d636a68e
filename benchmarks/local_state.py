"""`python -m benchmarks.local_state`: what checkpoints on hosts' own disks cost, on the bed. Needs root.

Four hosts in two clusters, 2 Gbit/s inside and 100 Mbit/s across, 15 million parameters, 180 MB of state. Compute is
emulated, so that what is measured is disks and networks. A stall is what ten steps after a save take longer than ten
steps of a run that does not save; bytes are those of a run that saves less those of one that does not; and a host is
lost once where all share a folder and once, with its disk, where none do.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.figure import print_figure
from benchmarks.two_clusters import EMULATED, FAST_MBPS, MODEL, SLOW_MBPS, holmes
from tests.testbed.bed import Bed
from tests.testbed.own_disks import on_host, own_disks
from tests.testbed.rehearsal import Site, bed_site, said_until, standard_library_corpus

WINDOW, ROUNDS = 10, 2  # steps in a row that are compared, and how often
STEPS = 2 * WINDOW * (ROUNDS + 1)
LOST, LOST_AFTER = "b2", 38  # the host that is lost, at a step by which the save after the 20th is done


def main() -> None:
    """Two runs for stalls and bytes, two for the loss of a host."""
    with tempfile.TemporaryDirectory() as name, bed_site(Path(name), FAST_MBPS, SLOW_MBPS) as site:
        assert site.bed is not None
        holmes(site, "probe", str(site.hosts_yaml), "-o", str(site.folder / "inventory.json"))
        plain_bytes, plain_s = trained(site, site.bed, "plain", {})
        with own_disks(site.bed, site.folder / "disks"):
            path = site.folder / "disks" / "saved"
            saving_bytes, saving_s = trained(site, site.bed, "saving", checkpoints(path))
            copies = (saving_bytes - plain_bytes) / (STEPS // (2 * WINDOW)) / state_bytes(site.bed, path)
        stall = statistics.median(saving_s[::2]) / statistics.median(plain_s) - 1
        print_figure("local_state.stall_percent", 100 * stall, "%")
        print_figure("local_state.across_bytes_copies", copies, "x")
        with own_disks(site.bed, site.folder / "others"):
            own_s = lost(site, site.bed, "own", site.folder / "others" / "saved")
        shared_s = lost(site, site.bed, "shared", site.folder / "shared")
        print_figure("local_state.resume_s", own_s, "s")
        print_figure("local_state.resume_extra_s", own_s - shared_s, "s")


def checkpoints(path: Path) -> dict[str, Any]:
    """The section of job.yaml: a save, and as many steps again as one is compared over."""
    return {"checkpoint": {"path": str(path), "every_steps": 2 * WINDOW}}


def planned(site: Site, name: str, steps: int, changes: dict[str, Any]) -> Path:
    """The plan of the job with `changes`."""
    job = {
        "model": MODEL,
        "data": standard_library_corpus(),
        "global_batch_size": 32,
        "steps": steps,
        "device": "cpu",
        "compute": EMULATED,
        "timeout_s": 120,
        **changes,
    }
    plan, inventory = site.folder / f"{name}.json", site.folder / "inventory.json"
    holmes(site, "plan", str(site.write_job(name, job)), "-i", str(inventory), "-o", str(plan))
    return plan


def trained(site: Site, bed: Bed, name: str, changes: dict[str, Any]) -> tuple[int, list[float]]:
    """Bytes a whole run sends between the clusters, and the seconds of each ten steps, the first after a save."""
    degrees = {"parallel": {"pp": 2, "dp": 2, "micro_batch_size": 2}}
    plan = planned(site, name, STEPS, {**degrees, **changes})
    before = sent_bytes(bed)
    command = site.command("launch", str(plan), "--runs", str(site.folder / f"runs-{name}"))
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    ends_s = []
    for step in range(1, STEPS + 1):
        said_until(process, f"step {step}/")
        ends_s.append(time.monotonic())
    process.communicate(timeout=120)
    seconds = [ends_s[first + WINDOW - 1] - ends_s[first - 1] for first in range(2 * WINDOW, STEPS, WINDOW)]
    print(name, *(f"{each:.3f}" for each in seconds), flush=True)
    return sent_bytes(bed) - before, seconds


def sent_bytes(bed: Bed) -> int:
    """What all hosts have sent between the clusters so far."""
    return sum(bed.counters(host.name)[host.slow_interface][1] for host in bed.hosts)


def state_bytes(bed: Bed, path: Path) -> int:
    """Of all that one checkpoint holds, fp32."""
    newest = on_host(bed, "a1", "cat", f"{path}/latest").strip()
    index = json.loads(on_host(bed, "a1", "cat", f"{path}/{newest}/pieces.json"))["index"]
    return sum(4 * math.prod(tensor["shape"]) for tensor in index["tensors"])


def lost(site: Site, bed: Bed, name: str, path: Path) -> float:
    """Seconds from the loss of a host and of its disk, if it has one of its own, to the next step of the others."""
    plan = planned(site, name, 1000, checkpoints(path))
    command = site.command("launch", str(plan), "--runs", str(site.folder / f"runs-{name}"), "--on-loss", "replan")
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        said_until(process, f"step {LOST_AFTER}/")
        bed.set_link(LOST, bed.host(LOST).slow_interface, up=False)
        lost_s = time.monotonic()
        if name == "own":
            on_host(bed, LOST, "rm", "-r", str(path))
        said_until(process, f"plan without {LOST}: ")
        said = said_until(process, "step ")
        seconds = time.monotonic() - lost_s
        print(f"{name}: {seconds:.1f} s to {said.splitlines()[-1]}", flush=True)
        return seconds
    finally:
        process.kill()
        process.wait()
        time.sleep(20)  # the agents end their ranks once the controller has been silent for so long
        bed.set_link(LOST, bed.host(LOST).slow_interface, up=True)


if __name__ == "__main__":
    main()
