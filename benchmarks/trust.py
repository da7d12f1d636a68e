"""What encryption between clusters costs: tokens/s with over without, over a trunk of 50 Mbit/s. Needs root.

Two clusters of two hosts on the bed, 2 Gbit/s inside and a NIC of 200 Mbit/s each to the trunk, which they share; the
job of slow_links.py, compute emulated. Each is probed, planned and launched as a user would, with `security:` in
hosts.yaml and without, in turn; the middle of all steps but the first two of each run counts.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median

import yaml

from benchmarks.figure import print_figure
from benchmarks.slow_links import JOB, with_data
from holmes_core.records.plan import Plan
from holmes_core.records.record_file import read_file
from tests.testbed.rehearsal import Site, bed_site, only_run

TRUNK_MBPS, SLOW_MBPS, FAST_MBPS = 50, 200, 2000
CLUSTERS = ["ib-1", "roce-1"]  # as the probe names them
ASKED = ("clear", "wireguard")
ROUNDS = 2
STEPS, DROPPED = 8, 2


def main() -> None:
    """Runs all, and prints the share."""
    began_s = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as name,
        bed_site(Path(name), fast_mbps=FAST_MBPS, slow_mbps=SLOW_MBPS, trunk_mbps=TRUNK_MBPS) as site,
    ):
        plans = {asked: planned(site, asked) for asked in ASKED}
        tokens_per_s: dict[str, list[float]] = {asked: [] for asked in ASKED}
        for number in range(ROUNDS):
            for asked in ASKED:
                tokens_per_s[asked] += launched(site, plans[asked], site.folder / f"{asked}-{number}")
        for asked, rates in tokens_per_s.items():
            plan = read_file(Plan, plans[asked])
            predicted = plan.prediction.tokens_per_s
            print(f"{asked}: {median(rates):.0f} tokens/s, {predicted:.0f} predicted; {plan.schedule}, pp {plan.pp}")
    share = median(tokens_per_s["wireguard"]) / median(tokens_per_s["clear"])
    print_figure("trust.wireguard_share", share, "x")
    print(f"took {time.monotonic() - began_s:.0f} s")


def planned(site: Site, asked: str) -> Path:
    """The plan where hosts.yaml asks for that between clusters; it states the trunk between them."""
    hosts = yaml.safe_load(site.hosts_yaml.read_text(encoding="utf-8"))
    hosts |= {"security": {"between_clusters": asked}, "trunks": [{"between": CLUSTERS, "gbps": TRUNK_MBPS / 1000}]}
    hosts_yaml, inventory, plan = (site.folder / f"{asked}.{kind}" for kind in ("yaml", "inventory.json", "plan.json"))
    hosts_yaml.write_text(yaml.safe_dump(hosts), encoding="utf-8")
    run(site, "probe", str(hosts_yaml), "-o", str(inventory))
    job = site.write_job(f"job-{asked}", {**with_data(JOB), "steps": STEPS})
    run(site, "plan", str(job), "-i", str(inventory), "-o", str(plan))
    return plan


def launched(site: Site, plan: Path, runs: Path) -> list[float]:
    """Tokens/s of every step of a run that counts."""
    run(site, "launch", str(plan), "--runs", str(runs))
    lines = (only_run(runs) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["tokens_per_s"] for line in lines[DROPPED:]]


def run(site: Site, *arguments: str) -> None:
    """`holmes ARGUMENTS`, which must succeed."""
    done = subprocess.run(site.command(*arguments), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"holmes {arguments[0]} failed:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main()
