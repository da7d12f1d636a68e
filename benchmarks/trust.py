"""What encryption between clusters costs: tokens/s with over without, over a trunk of 50 Mbit/s. Needs root.

Two clusters of two hosts on the bed, 2 Gbit/s inside and a NIC of 200 Mbit/s each to the trunk, which they share; the
job of slow_links.py, compute emulated, as one and as islands that wait for all they exchange. Each is probed, planned
and launched as a user would, with `security:` in hosts.yaml and without, in turn. Of hosts that train as one the middle
of all steps but the first two of each run counts, of islands the middle of the times from one exchange to the next,
without the first and the last, which carries all parameters.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import harmonic_mean, median
from typing import Any

import yaml

from benchmarks.figure import print_figure
from benchmarks.slow_links import JOB, with_data
from holmes_core.records.plan import IslandsPlan, Plan
from holmes_core.records.record_file import read_file
from tests.testbed.rehearsal import Site, bed_site, only_run

TRUNK_MBPS, SLOW_MBPS, FAST_MBPS = 50, 200, 2000
CLUSTERS = ["ib-1", "roce-1"]  # as the probe names them
ASKED = ("clear", "wireguard")
ROUNDS = 2
STEPS, DROPPED = 8, 2
ISLANDS = {"inner_steps": 10, "codec": "int8", "fragments": 2, "delay_steps": 0}
ISLAND_STEPS, APART = 30, 5  # in all, and between two exchanges


def main() -> None:
    """Runs all, and prints the shares."""
    began_s = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as name,
        bed_site(Path(name), fast_mbps=FAST_MBPS, slow_mbps=SLOW_MBPS, trunk_mbps=TRUNK_MBPS) as site,
    ):
        print_figure("trust.wireguard_share", share(site, "one", {"steps": STEPS}), "x")
        apart = {"steps": ISLAND_STEPS, "islands": ISLANDS}
        print_figure("trust.wireguard_islands_share", share(site, "islands", apart), "x")
    print(f"took {time.monotonic() - began_s:.0f} s")


def share(site: Site, mode: str, changes: dict[str, Any]) -> float:
    """Tokens/s of the job with `changes` inside the tunnel, over those in the clear."""
    plans = {asked: planned(site, mode, asked, changes) for asked in ASKED}
    kind: type[Plan | IslandsPlan] = IslandsPlan if "islands" in changes else Plan
    tokens_per_s: dict[str, list[float]] = {asked: [] for asked in ASKED}
    for number in range(ROUNDS):
        for asked in ASKED:
            runs = site.folder / f"{mode}-{asked}-{number}"
            run(site, "launch", str(plans[asked]), "--runs", str(runs))
            folder = only_run(runs)
            tokens_per_s[asked] += of_islands(folder) if kind is IslandsPlan else rates(folder)[DROPPED:]
    for asked, each in tokens_per_s.items():
        predicted = read_file(kind, plans[asked]).prediction.tokens_per_s
        print(
            f"{mode}, {asked}: {median(each):.0f} tokens/s, {predicted:.0f} predicted; {min(each):.0f}-{max(each):.0f}"
        )
    return median(tokens_per_s["wireguard"]) / median(tokens_per_s["clear"])


def planned(site: Site, mode: str, asked: str, changes: dict[str, Any]) -> Path:
    """The plan where hosts.yaml asks for that between clusters; it states the trunk between them."""
    hosts = yaml.safe_load(site.hosts_yaml.read_text(encoding="utf-8"))
    hosts |= {"security": {"between_clusters": asked}, "trunks": [{"between": CLUSTERS, "gbps": TRUNK_MBPS / 1000}]}
    hosts_yaml, inventory, plan = (
        site.folder / f"{mode}-{asked}.{kind}" for kind in ("yaml", "inventory.json", "plan.json")
    )
    hosts_yaml.write_text(yaml.safe_dump(hosts), encoding="utf-8")
    run(site, "probe", str(hosts_yaml), "-o", str(inventory))
    job = site.write_job(f"job-{mode}-{asked}", {**with_data(JOB), **changes})
    run(site, "plan", str(job), "-i", str(inventory), "-o", str(plan))
    return plan


def rates(folder: Path) -> list[float]:
    """Tokens/s of every step of a run or an island."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["tokens_per_s"] for line in lines]


def of_islands(folder: Path) -> list[float]:
    """Tokens/s of all islands of a run together from one exchange to the next."""
    islands = [rates(island) for island in folder.glob("island-*")]
    starts = range(APART, ISLAND_STEPS - APART, APART)
    return [sum(harmonic_mean(each[start : start + APART]) for each in islands) for start in starts]


def run(site: Site, *arguments: str) -> None:
    """`holmes ARGUMENTS`, which must succeed."""
    done = subprocess.run(site.command(*arguments), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"holmes {arguments[0]} failed:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main()
