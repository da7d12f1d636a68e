"""Predicted against measured steps of random plans on the bed: cuts, degrees, schedules, orders and networks drawn.

Compute is emulated, so that what is judged is the simulation and the networks, not how many cores this machine has.
`python -m benchmarks.validation_bed 3` runs three plans a network instead of ten; `--write-docs` puts the table into
docs/cost-model.md. Needs root.
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.doc_table import write_table
from benchmarks.figure import print_figure
from holmes_core.records.plan import Plan
from holmes_core.records.record_file import read_file
from holmes_core.records.run import Run
from tests.testbed.rehearsal import Site, bed_site, only_run, standard_library_corpus

FAST_MBPS, SLOW_MBPS = 2000, (50, 100, 200)
PLANS_EACH, STEPS, SEED = 10, 5, 4
HEADINGS = ("Mbit/s across", "order", "pp", "dp", "b", "schedule", "cut", "predicted s", "measured s", "error")
MODEL = {"num_layers": 10, "hidden_size": 192, "num_heads": 4, "seq_length": 128}


@dataclass(frozen=True)
class Row:
    """One launch."""

    slow_mbps: int
    plan: Plan
    measured_s: float

    @property
    def error(self) -> float:
        """Of the predicted step, as a part of the measured one."""
        return self.plan.prediction.step_s / self.measured_s - 1


def main() -> None:
    """Three beds, the same number of plans on each."""
    each = next((int(argument) for argument in sys.argv[1:] if argument.isdigit()), PLANS_EACH)
    draw = random.Random(SEED)
    rows = []
    for slow_mbps in SLOW_MBPS:
        with tempfile.TemporaryDirectory() as name, bed_site(Path(name), FAST_MBPS, slow_mbps) as site:
            holmes(site, "probe", str(site.hosts_yaml), "-o", str(site.folder / "inventory.json"))
            rows += [measure(site, slow_mbps, number, draw) for number in range(each)]
    show(rows)
    figures = {
        "mean error": (100 * statistics.fmean(abs(row.error) for row in rows), "%"),
        "max error": (100 * max(abs(row.error) for row in rows), "%"),
        "rank correlation": (rank_correlation(rows), "1"),
    }
    for name, (value, unit) in figures.items():
        print_figure(f"validation_bed.{name.replace(' ', '_')}", value, unit)
    if "--write-docs" in sys.argv:
        sums = "; ".join(f"{name} {value:.2f} {unit.strip('1')}".strip() for name, (value, unit) in figures.items())
        cells = [f"| {' | '.join(each)} |" for each in (HEADINGS, ["---"] * len(HEADINGS), *map(row_cells, rows))]
        write_table("cost-model.md", "bed", (f"{len(rows)} plans: {sums}.", "", *cells))


def random_job(draw: random.Random) -> dict[str, Any]:
    """A job whose degrees, cut, schedule and speed are drawn."""
    pp, dp = draw.choice([(1, 2), (1, 4), (2, 1), (2, 2), (2, 2), (4, 1)])
    schedules = ["gpipe", "1f1b", "zero-bubble", "interleaved"] if pp > 1 else ["1f1b"]
    parallel: dict[str, Any] = {"pp": pp, "dp": dp, "micro_batch_size": draw.choice([1, 2]), "recompute": "none"}
    parallel["schedule"] = draw.choice(schedules)
    if parallel["schedule"] == "interleaved":
        parallel["chunks"] = 2
    elif pp == 2:
        first = draw.randint(3, 7)
        parallel["layers"] = [first, MODEL["num_layers"] - first]
    forward_s = draw.choice([0.002, 0.004, 0.008])
    return {
        "model": MODEL,
        "data": standard_library_corpus(),
        "global_batch_size": draw.choice([16, 32]),
        "steps": STEPS,
        "device": "cpu",
        "compute": {"emulate": {"forward_s_per_layer": forward_s, "backward_s_per_layer": 2 * forward_s}},
        "parallel": parallel,
    }


def measure(site: Site, slow_mbps: int, number: int, draw: random.Random) -> Row:
    """Plan and launch one drawn job, in one of the two orders."""
    path, runs = site.folder / f"plan-{number}.json", site.folder / f"runs-{number}"
    job = site.write_job(f"job-{number}", random_job(draw))
    order = draw.choice([[], ["--usual-order"]])
    holmes(site, "plan", str(job), "-i", str(site.folder / "inventory.json"), "-o", str(path), *order)
    holmes(site, "launch", str(path), "--runs", str(runs))
    run = read_file(Run, only_run(runs) / "run.json")
    assert run.step_s is not None
    row = Row(slow_mbps, read_file(Plan, path), run.step_s)
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
    degrees = (str(plan.pp), str(plan.dp), str(plan.micro_batch_size), plan.schedule, cut)
    seconds = (f"{plan.prediction.step_s:.3f}", f"{row.measured_s:.3f}", f"{row.error:+.1%}")
    return (str(row.slow_mbps), plan.order, *degrees, *seconds)


def show(rows: list[Row]) -> None:
    """The table for people."""
    table = Table(title=f"{FAST_MBPS} Mbit/s inside, compute emulated", title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading)
    for row in rows:
        table.add_row(*row_cells(row))
    Console(highlight=False, width=120).print(table)


if __name__ == "__main__":
    main()
