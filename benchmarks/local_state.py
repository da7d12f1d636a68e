"""`python -m benchmarks.local_state`: what checkpoints on hosts' own disks cost, on the bed. Needs root.

Four hosts in two clusters, 2 Gbit/s inside and 100 Mbit/s across, 15 million parameters, 180 MB of state. Compute is
emulated, so that what is measured is disks and networks. A stall is what ten steps with a save among them take longer
than ten steps of runs that do not save, which are launched in turn: the median of runs of a hundred steps, and by
itself that of the first three saves, whose memory and files are new to the machine. Bytes are those of runs that save
less those of runs that do not, once as they are on the wire and once without the headers of Ethernet, IP and TCP, 66 of
a frame, those of acknowledgements included. A host is lost once where all share a folder and once, with its disk, where
none do.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.figure import print_figure
from benchmarks.two_clusters import EMULATED, FAST_MBPS, MODEL, SLOW_MBPS, holmes
from tests.testbed.bed import Bed
from tests.testbed.own_disks import on_host, own_disks
from tests.testbed.rehearsal import Site, bed_site, said_until, standard_library_corpus

WINDOW, STEPS = 10, 100  # steps that are compared and between two saves, and of a run; the first ten do not count
FIRST = 3  # windows by themselves
ROUNDS = 2  # runs of each kind
HEADER_BYTES = 14 + 20 + 32  # of a frame: Ethernet, IP, and TCP with timestamps
LOST, LOST_AFTER = "b2", 28  # the host that is lost, at a step by which the save after the 10th is done


class Trained(NamedTuple):
    """Of a whole run: what crossed between the clusters, and the seconds of each ten steps but the first.

    `again_segments`: those that TCP sent once more, whose bytes are among the others.
    """

    wire_bytes: int
    payload_bytes: int
    again_segments: int
    windows_s: list[float]


def main() -> None:
    """Runs for stalls and bytes in turn, and two for the loss of a host."""
    with tempfile.TemporaryDirectory() as name, bed_site(Path(name), FAST_MBPS, SLOW_MBPS) as site:
        assert site.bed is not None
        holmes(site, "probe", str(site.hosts_yaml), "-o", str(site.folder / "inventory.json"))
        plain, saving = [], []
        for number in range(ROUNDS):
            plain.append(trained(site, site.bed, f"plain-{number}", {}))
            with own_disks(site.bed, site.folder / f"disks-{number}"):
                path = site.folder / f"disks-{number}" / "saved"
                saving.append(trained(site, site.bed, f"saving-{number}", checkpoints(path)))
                state_bytes = bytes_of_state(site.bed, path)
        show_costs(plain, saving, state_bytes * STEPS // WINDOW)
        with own_disks(site.bed, site.folder / "others"):
            own_s = lost(site, site.bed, "own", site.folder / "others" / "saved")
        shared_s = lost(site, site.bed, "shared", site.folder / "shared")
        print_figure("local_state.resume_s", own_s, "s")
        print_figure("local_state.resume_extra_s", own_s - shared_s, "s")


def show_costs(plain: list[Trained], saving: list[Trained], saved_bytes: int) -> None:
    """The figures of runs that do not save and of those that do, each of which saves `saved_bytes` in all."""
    for figure, counted in (("stall_percent", slice(None)), ("stall_first_percent", slice(FIRST))):
        both = ((s for run in runs for s in run.windows_s[counted]) for runs in (plain, saving))
        plain_s, saving_s = map(statistics.median, both)
        print_figure(f"local_state.{figure}", 100 * (saving_s / plain_s - 1), "%")
    for figure, field in (("across_bytes_copies", "payload_bytes"), ("across_wire_copies", "wire_bytes")):
        more = [getattr(one, field) - getattr(other, field) for one, other in zip(saving, plain, strict=True)]
        print_figure(f"local_state.{figure}", statistics.median(more) / saved_bytes, "x")


def checkpoints(path: Path) -> dict[str, Any]:
    """The section of job.yaml."""
    return {"checkpoint": {"path": str(path), "every_steps": WINDOW}}


def planned(site: Site, name: str, steps: int, changes: dict[str, Any]) -> Path:
    """The plan of the job with `changes`."""
    job = {
        "model": MODEL,
        "data": standard_library_corpus(),
        "global_batch_size": 32,
        "steps": steps,
        "device": "cpu",
        "compute": EMULATED,
        "timeout_s": 300,
        **changes,
    }
    plan, inventory = site.folder / f"{name}.json", site.folder / "inventory.json"
    holmes(site, "plan", str(site.write_job(name, job)), "-i", str(inventory), "-o", str(plan))
    return plan


def trained(site: Site, bed: Bed, name: str, changes: dict[str, Any]) -> Trained:
    """Trains all steps in one run."""
    degrees = {"parallel": {"pp": 2, "dp": 2, "micro_batch_size": 2}}
    plan = planned(site, name, STEPS, {**degrees, **changes})
    before = sent(bed)
    command = site.command("launch", str(plan), "--runs", str(site.folder / f"runs-{name}"))
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    ends_s = []
    for step in range(1, STEPS + 1):
        said_until(process, f"step {step}/")
        ends_s.append(time.monotonic())
    process.communicate(timeout=120)
    windows_s = [ends_s[first + WINDOW - 1] - ends_s[first - 1] for first in range(WINDOW, STEPS, WINDOW)]
    wire_bytes, frames, again = (after - earlier for after, earlier in zip(sent(bed), before, strict=True))
    print(name, *(f"{each:.3f}" for each in windows_s), f"{wire_bytes} bytes, {again} segments again", flush=True)
    return Trained(wire_bytes, wire_bytes - HEADER_BYTES * frames, again, windows_s)


def sent(bed: Bed) -> tuple[int, int, int]:
    """Bytes and frames that all hosts have sent between the clusters so far, and TCP segments sent once more."""
    counted = []
    for host in bed.hosts:
        lines = on_host(bed, host.name, "cat", "/proc/net/dev").splitlines()
        columns = next(line for line in lines if line.strip().startswith(f"{host.slow_interface}:")).split()
        lines = on_host(bed, host.name, "cat", "/proc/net/snmp").splitlines()
        names, values = (line.split() for line in lines if line.startswith("Tcp:"))
        counted.append((int(columns[9]), int(columns[10]), int(values[names.index("RetransSegs")])))
    size, frames, again = (sum(each) for each in zip(*counted, strict=True))
    return size, frames, again


def bytes_of_state(bed: Bed, path: Path) -> int:
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
