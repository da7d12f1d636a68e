"""Predicted against measured steps of random plans on the bed: cuts, degrees, schedules, codecs and networks drawn.

Compute is emulated, so that what is judged is the simulation and the networks, not how many cores this machine has;
`real` as an argument trains models of the size of `make demo` instead. What a step costs beside its seconds and bytes
is calibrated just before: for each bed, or for each plan of real compute. A number is how many plans each network has;
`--write-docs` puts the table into docs/cost-model.md. Needs root.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from benchmarks.doc_table import write_table
from benchmarks.figure import print_figure
from holmes_core.records.plan import Plan
from holmes_core.records.record_file import read_file
from holmes_core.records.run import Run
from tests.testbed.rehearsal import Site, bed_site, measured_compute, only_run, standard_library_corpus

FAST_MBPS = 2000
PLANS_EACH, REAL_PLANS, STEPS, SEED = 8, 10, 5, 4
HEADINGS = (
    *("network across", "order", "pp", "dp", "b", "schedule", "cut", "codec"),
    *("predicted s", "measured s", "error", "load"),
)
MODEL = {"num_layers": 10, "hidden_size": 192, "num_heads": 4, "seq_length": 128}
REAL_MODEL = {"num_layers": 8, "hidden_size": 192, "num_heads": 4, "seq_length": 64}  # of `make demo`
CODECS = ("none", "none", "bf16", "int8", "int4")
Job = dict[str, Any]


@dataclass(frozen=True)
class Across:
    """The network between a bed's clusters: each host's rate, and a trunk that all share, if any, with its delay.

    `apart`: every host is a cluster of its own, so that all edges of a stage in the middle are on one slow NIC.
    """

    slow_mbps: int
    trunk_mbps: int | None = None
    delay_ms: float = 0.0
    apart: bool = False

    def __str__(self) -> str:
        trunk = f", trunk {self.trunk_mbps}" if self.trunk_mbps is not None else ""
        delay = f", {self.delay_ms:g} ms" if self.delay_ms else ""
        return f"{self.slow_mbps} Mbit/s{trunk}{delay}{', hosts apart' if self.apart else ''}"


NETWORKS = (
    *(Across(50), Across(100), Across(200), Across(200, 150), Across(200, 100, 5.0)),
    *(Across(20, apart=True), Across(50, apart=True)),
)
DEGREES = [(1, 2), (1, 4), (2, 1), (2, 2), (2, 2), (4, 1)]
DEGREES_APART = [(3, 1), (4, 1)]
REAL_NETWORK = Across(100)


@dataclass(frozen=True)
class Row:
    """One launch; `load` is the machine's over the minute in which it ran."""

    across: Across
    plan: Plan
    measured_s: float
    load: float

    @property
    def error(self) -> float:
        """Of the predicted step, as a part of the measured one."""
        return self.plan.prediction.step_s / self.measured_s - 1


def main() -> None:
    """All beds, the table, and the figures."""
    draw, is_real = random.Random(SEED), "real" in sys.argv
    each = next((int(argument) for argument in sys.argv[1:] if argument.isdigit()), None)
    if is_real:
        rows = list(rows_of(REAL_NETWORK, each or REAL_PLANS, draw, is_real))
    else:
        rows = [row for across in NETWORKS for row in rows_of(across, each or PLANS_EACH, draw, is_real)]
    show(rows, "real" if is_real else "emulated")
    figures = {
        "mean error": (100 * statistics.fmean(abs(row.error) for row in rows), "%"),
        "max error": (100 * max(abs(row.error) for row in rows), "%"),
        "rank correlation": (rank_correlation(rows), "1"),
    }
    table = "bed real" if is_real else "bed"
    for name, (value, unit) in figures.items():
        print_figure(f"validation_{table}.{name}".replace(" ", "_"), value, unit)
    if "--write-docs" in sys.argv:
        sums = "; ".join(f"{name} {value:.2f} {unit.strip('1')}".strip() for name, (value, unit) in figures.items())
        cells = [f"| {' | '.join(each)} |" for each in (HEADINGS, ["---"] * len(HEADINGS), *map(row_cells, rows))]
        write_table("cost-model.md", table, (f"{len(rows)} plans: {sums}.", "", *cells))


def rows_of(across: Across, num_plans: int, draw: random.Random, is_real: bool) -> Iterator[Row]:
    """Random plans on one bed, whose links are measured where there is a trunk."""
    with (
        tempfile.TemporaryDirectory() as name,
        bed_site(Path(name), FAST_MBPS, across.slow_mbps, across.trunk_mbps, across.delay_ms) as site,
    ):
        if across.apart:
            hosts = yaml.safe_load(site.hosts_yaml.read_text(encoding="utf-8"))
            hosts["hosts"] = [{"name": name, "cluster": f"site-{name}"} for name in hosts["hosts"]]
            site.hosts_yaml.write_text(yaml.safe_dump(hosts), encoding="utf-8")
        links = [] if across.trunk_mbps is None else ["--links"]
        holmes(site, "probe", str(site.hosts_yaml), "-o", str(site.folder / "inventory.json"), *links)
        overheads = None if is_real else measured_compute(MODEL, 1, at_once=1, rounds=1)["overheads"]
        for number in range(num_plans):
            job = random_job(draw, REAL_MODEL if is_real else MODEL, DEGREES_APART if across.apart else DEGREES)
            yield measure(site, across, number, with_compute(job, draw, overheads), draw)


def random_job(draw: random.Random, model: dict[str, int], degrees: Sequence[tuple[int, int]]) -> Job:
    """A job whose degrees, one of `degrees`, cut, schedule and codec are drawn."""
    pp, dp = draw.choice(degrees)
    schedules = ["gpipe", "1f1b", "zero-bubble", "interleaved"] if pp > 1 else ["1f1b"]
    if degrees is DEGREES_APART:
        schedules = ["gpipe", "1f1b", "eager", "eager"]
    parallel: dict[str, Any] = {
        "tp": 1,
        "pp": pp,
        "dp": dp,
        "micro_batch_size": draw.choice([1, 2]),
        "recompute": "none",
    }
    parallel["schedule"] = draw.choice(schedules)
    if parallel["schedule"] == "interleaved":
        parallel["chunks"] = 2
    elif pp == 2:
        first = draw.randint(3, model["num_layers"] - 3)
        parallel["layers"] = [first, model["num_layers"] - first]
    return {
        "model": model,
        "data": standard_library_corpus(),
        "global_batch_size": draw.choice([16, 32]),
        "steps": STEPS,
        "device": "cpu",
        "wire": {"edges": draw.choice(CODECS)},
        "parallel": parallel,
    }


def with_compute(job: Job, draw: random.Random, overheads: dict[str, float] | None) -> Job:
    """The job with emulated compute of a drawn speed and `overheads`; without those with real compute, measured now."""
    fixed = job["parallel"]
    if overheads is None:
        return {**job, "compute": measured_compute(job["model"], fixed["micro_batch_size"], fixed["pp"] * fixed["dp"])}
    forward_s = draw.choice([0.002, 0.004, 0.008])
    emulate = {"forward_s_per_layer": forward_s, "backward_s_per_layer": 2 * forward_s}
    return {**job, "compute": {"emulate": emulate, "overheads": overheads}}


def measure(site: Site, across: Across, number: int, job: Job, draw: random.Random) -> Row:
    """Plan and launch one job, in one of the two orders."""
    path, runs = site.folder / f"plan-{number}.json", site.folder / f"runs-{number}"
    job_yaml = site.write_job(f"job-{number}", job)
    order = draw.choice([[], ["--usual-order"]])
    holmes(site, "plan", str(job_yaml), "-i", str(site.folder / "inventory.json"), "-o", str(path), *order)
    holmes(site, "launch", str(path), "--runs", str(runs))
    run = read_file(Run, only_run(runs) / "run.json")
    assert run.step_s is not None
    row = Row(across, read_file(Plan, path), run.step_s, os.getloadavg()[0])
    print(*row_cells(row), flush=True)
    return row


def holmes(site: Site, *arguments: str) -> None:
    """Run one command; its output is shown only when it fails."""
    done = subprocess.run(site.command(*arguments), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"holmes {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")


def rank_correlation(rows: list[Row]) -> float:
    """Spearman's, of predicted and measured steps."""
    predicted, measured = [row.plan.prediction.step_s for row in rows], [row.measured_s for row in rows]
    return statistics.correlation(*([sorted(values).index(v) for v in values] for values in (predicted, measured)))


def row_cells(row: Row) -> tuple[str, ...]:
    """One launch as a line of the table."""
    plan = row.plan
    cut = "-".join(str(stage.num_layers) for stage in plan.stages)
    codecs = sorted({group.codec for group in plan.groups} - {"none"})
    degrees = (str(plan.pp), str(plan.dp), str(plan.micro_batch_size), plan.schedule, cut, ", ".join(codecs) or "none")
    seconds = (f"{plan.prediction.step_s:.3f}", f"{row.measured_s:.3f}", f"{row.error:+.1%}", f"{row.load:.1f}")
    return (str(row.across), plan.order, *degrees, *seconds)


def show(rows: list[Row], compute: str) -> None:
    """The table for people."""
    table = Table(title=f"{FAST_MBPS} Mbit/s inside, compute {compute}", title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading)
    for row in rows:
        table.add_row(*row_cells(row))
    Console(highlight=False, width=140).print(table)


if __name__ == "__main__":
    main()
