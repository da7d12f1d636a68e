"""`python -m benchmarks.islands [wire] [loss] [goodput]`: what clusters gain as islands, on the bed. Needs root.

Four hosts in two clusters, 2 Gbit/s inside, 15 million parameters; compute is emulated, so that what is measured is
networks and the launcher. Bytes are those that leave by the hosts' slow interfaces, for the controller too: of plain
data parallelism, each cluster a replica, at 100 Mbit/s between clusters, of islands at 2 Mbit/s (int4, four fragments,
applied six steps later, five where a round has twenty steps). A share is that of the time without any wait for others.
Loss: as emulated layers learn nothing, the bed tells how many steps islands take in the time of one step of the best
plan that trains as one, at 5 Mbit/s between clusters; a small GPT takes so many (`islands_loss.py`). Goodput: the hosts
of one cluster lose links and processes for 15 s of every 60 s; steps over those its uptime allows. `--short` shows that
it all runs, by figures that mean little.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.figure import print_figure
from benchmarks.islands_loss import INNER_STEPS, STREAMING, final_loss
from benchmarks.two_clusters import EMULATED, FAST_MBPS, MODEL, SLOW_MBPS, holmes
from tests.testbed.bed import Bed
from tests.testbed.rank_processes import our_pids
from tests.testbed.rehearsal import Site, bed_site, only_run, standard_library_corpus

NARROW_MBPS, LOSS_MBPS = 2, 5
SECTION: dict[str, Any] = STREAMING | {"grace_s": 10.0}
OFTEN = {"inner_steps": 20, "delay_steps": 5, "grace_s": 3.0}  # an exchange, a wait for a lost one too, costs no step
EXACT_STEPS, PLAIN_STEPS = 4, 6
LOST_CLUSTER, DOWN_S, EVERY_S = "B", 15.0, 60.0


class Lengths(NamedTuple):
    """Rounds of islands, by their inner steps; steps of the small GPT as one, and seeds; minutes of goodput."""

    rounds: dict[int, int]
    steps: int
    seeds: int
    minutes: int


WHOLE, SHORT = Lengths({20: 5, 50: 3}, 400, 3, 10), Lengths({20: 1, 50: 1}, 50, 1, 1)


def main(written: Sequence[str] | None = None) -> None:
    """The parts that are named, or all; as `written` on the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.islands")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all unless some are named")
    parser.add_argument("--short", action="store_true")
    arguments = parser.parse_args(written)
    if unknown := set(arguments.parts) - PARTS.keys():
        parser.error(f"no such part: {', '.join(unknown)}")
    for name in arguments.parts or PARTS:
        PARTS[name](SHORT if arguments.short else WHOLE)


def wire(lengths: Lengths) -> None:
    """What islands send, what they wait for, and how that compares with the plan and with hosts that train as one."""
    plain_bytes = plain_step_bytes()
    with tempfile.TemporaryDirectory() as name, bed_site(Path(name), FAST_MBPS, NARROW_MBPS) as site:
        probe(site)
        for inner_steps in (20, 50):
            ran = islands(site, inner_steps, lengths.rounds[inner_steps])
            print_figure(f"islands.outer_bytes_ratio.h{inner_steps}", plain_bytes / ran.step_bytes, "x")
        print_figure("islands.share.2mbit", ran.share, "")
        print_figure("islands.over_exact.2mbit", ran.tokens_per_s / exact_tokens_per_s(site), "x")


def loss(lengths: Lengths) -> None:
    """Of how many seeds islands have the lower loss after the same time."""
    with tempfile.TemporaryDirectory() as name, bed_site(Path(name), FAST_MBPS, LOSS_MBPS) as site:
        probe(site)
        ran = islands(site, INNER_STEPS, lengths.rounds[INNER_STEPS])
        faster = ran.tokens_per_s / exact_tokens_per_s(site)
    steps = int(lengths.steps * faster / INNER_STEPS) * INNER_STEPS
    text, below = Path(sysconfig.get_path("stdlib")), 0
    print(f"{steps} steps of islands in the time of {lengths.steps} as one", flush=True)
    for seed in range(1, lengths.seeds + 1):
        as_one = final_loss(text, "*.py", lengths.steps, seed, None)
        apart = final_loss(text, "*.py", steps, seed, STREAMING)
        print(f"seed {seed}: as one {as_one:.4f}, islands {apart:.4f}", flush=True)
        below += apart < as_one
    print_figure("islands.loss.5mbit", below, "seeds")


def goodput(lengths: Lengths) -> None:
    """What is left of the steps where a cluster comes and goes."""
    with tempfile.TemporaryDirectory() as name, bed_site(Path(name), FAST_MBPS, SLOW_MBPS) as site:
        probe(site)
        print_figure("islands.goodput", steps_over_allowed(site, lengths.minutes), "")


PARTS = {"wire": wire, "loss": loss, "goodput": goodput}


class Ran(NamedTuple):
    """Bytes a step between clusters, the share of time without a wait for other islands, tokens/s of all."""

    step_bytes: float
    share: float
    tokens_per_s: float


def probe(site: Site) -> None:
    """The inventory beside the plans."""
    holmes(site, "probe", str(site.hosts_yaml), "-o", str(site.folder / "inventory.json"))


def planned(site: Site, name: str, changes: dict[str, Any], *options: str) -> Path:
    """The plan of the job with `changes`."""
    job = {
        "model": MODEL,
        "data": standard_library_corpus(),
        "global_batch_size": 32,
        "device": "cpu",
        "compute": EMULATED,
        "timeout_s": 300,
        **changes,
    }
    path = site.folder / f"{name}.json"
    inventory = str(site.folder / "inventory.json")
    holmes(site, "plan", str(site.write_job(name, job)), "-i", inventory, "-o", str(path), *options)
    return path


def plain_step_bytes() -> float:
    """Bytes that all hosts send between clusters in a step of plain data parallelism."""
    with tempfile.TemporaryDirectory() as name, bed_site(Path(name), FAST_MBPS, SLOW_MBPS) as site:
        probe(site)
        degrees = {"parallel": {"pp": 2, "dp": 2, "micro_batch_size": 2}, "steps": PLAIN_STEPS}
        moved, folder = launched(site, "plain", planned(site, "plain", degrees, "--usual-order"))
        print(f"plain data parallelism: {moved / PLAIN_STEPS / 1e6:.2f} MB a step, {median_step_s(folder):.2f} s")
        return moved / PLAIN_STEPS


def islands(site: Site, inner_steps: int, rounds: int) -> Ran:
    """Trains as islands for so many rounds."""
    apart = min(SECTION["delay_steps"], inner_steps // SECTION["fragments"])
    name, section = f"islands-{inner_steps}", SECTION | {"inner_steps": inner_steps, "delay_steps": apart}
    plan_file = island_plan(site, name, section, rounds * inner_steps)
    moved, folder = launched(site, name, plan_file)
    shares, tokens_per_s, steps, round_s, exchanges_s = [], 0.0, 0, 0.0, list[float]()
    for island in sorted(folder.glob("island-*")):
        plan = json.loads((island / "plan.json").read_text())
        seconds = step_seconds(island)[1:]  # the first meets the others
        shares.append(statistics.median(seconds) * len(seconds) / sum(seconds))
        tokens = plan["job"]["global_batch_size"] * MODEL["seq_length"]
        tokens_per_s += tokens * len(seconds) / sum(seconds)
        steps = max(steps, len(seconds) + 1)
        round_s = max(round_s, sum(seconds) / len(seconds) * inner_steps)
        exchanges_s += exchange_seconds(island)
    print(f"{name}: {moved / steps / 1e3:.1f} kB a step, shares {shares}, {tokens_per_s:.0f} tokens/s")
    predicted = json.loads(plan_file.read_text())["prediction"]
    predicted_s = predicted["round_s"] + predicted["end_s"] / rounds
    print(
        f"{name}: a round of {round_s:.1f} s, predicted {predicted_s:.1f} s; an exchange of "
        f"{statistics.median(exchanges_s):.2f} s, predicted {predicted['exchange_s'] / section['fragments']:.2f} s",
        flush=True,
    )
    return Ran(moved / steps, min(shares), tokens_per_s)


def exchange_seconds(island: Path) -> list[float]:
    """Of every exchange of an island."""
    lines = map(json.loads, (island / "events.jsonl").read_text(encoding="utf-8").splitlines())
    return [line["duration_s"] for line in lines if line["event"] == "exchange"]


def island_plan(site: Site, name: str, section: dict[str, Any], steps: int) -> Path:
    """A plan that is one of islands."""
    path = planned(site, name, {"islands": section, "steps": steps})
    kind = json.loads(path.read_text())["kind"]
    if kind != "islands_plan":
        raise SystemExit(f"{path}: {kind}; islands were to be the fastest")
    return path


def exact_tokens_per_s(site: Site) -> float:
    """Of the best plan that trains as one over the same wire."""
    _, folder = launched(site, "exact", planned(site, "exact", {"steps": EXACT_STEPS}))
    seconds = median_step_s(folder)
    print(f"exact: {seconds:.1f} s a step", flush=True)
    return 32 * MODEL["seq_length"] / seconds


def launched(site: Site, name: str, plan: Path) -> tuple[int, Path]:
    """Bytes that a whole run sends between the clusters, and its folder."""
    assert site.bed is not None
    before, runs = sent_bytes(site.bed), site.folder / f"runs-{name}"
    holmes(site, "launch", str(plan), "--runs", str(runs))
    return sent_bytes(site.bed) - before, only_run(runs)


def sent_bytes(bed: Bed) -> int:
    """What all hosts have sent by their slow interfaces so far."""
    return sum(bed.counters(host.name)[host.slow_interface][1] for host in bed.hosts)


def step_seconds(folder: Path) -> list[float]:
    """Of every step that a run or an island has taken."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["step_s"] for line in lines]


def median_step_s(folder: Path) -> float:
    """Without the first step."""
    return statistics.median(step_seconds(folder)[1:])


def steps_over_allowed(site: Site, minutes: int) -> float:
    """Steps that two islands take over those their uptime allows, where one is gone for a quarter of the time."""
    assert site.bed is not None
    plan = island_plan(site, "goodput", SECTION | OFTEN, 100000)
    runs = site.folder / "runs-goodput"
    command = site.command("launch", str(plan), "--runs", str(runs), "--json")
    with open(site.folder / "said", "w") as said, subprocess.Popen(command, stdout=said, stderr=said) as process:
        while not (folders := sorted(runs.glob("*/island-*/metrics.jsonl"))) or len(folders) < 2:
            time.sleep(1.0)
        first, second = (folder.parent for folder in folders)
        while min(len(step_seconds(first)), len(step_seconds(second))) < 20:
            time.sleep(1.0)
        before, began_s, usual_s = taken(first, second), time.monotonic(), median_step_s(first)
        for minute in range(minutes):
            wait_until(began_s + minute * EVERY_S + EVERY_S - DOWN_S)
            go_down(site.bed, up=False)
            wait_until(began_s + (minute + 1) * EVERY_S)
            go_down(site.bed, up=True)
            print(minute, *(len(step_seconds(each)) for each in (first, second)), flush=True)
        steps = taken(first, second) - before
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=120)
    allowed_s = minutes * (2 * EVERY_S - DOWN_S)
    return steps * usual_s / allowed_s


def taken(*islands: Path) -> int:
    """Steps that islands have taken together."""
    return sum(len(step_seconds(island)) for island in islands)


def wait_until(at_s: float) -> None:
    """Of the monotonic clock."""
    time.sleep(max(0.0, at_s - time.monotonic()))


def go_down(bed: Bed, up: bool) -> None:
    """The cluster's hosts lose their links and all that runs there, or have their links again."""
    for host in bed.hosts:
        if host.cluster == LOST_CLUSTER:
            bed.set_link(host.name, host.slow_interface, up=up)
            for pid in [] if up else our_pids(bed, host.name):
                os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
