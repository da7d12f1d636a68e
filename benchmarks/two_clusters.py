"""The plan against the usual rank order, on the bed: 2 Gbit/s inside a cluster, 100 Mbit/s across, 15 M parameters.

Compute is emulated (a layer sleeps 8 ms forward, 16 ms backward; 8 micro-batches) for the ratio, so that step times
depend on plan and network and not on how many cores there are; and real (4 micro-batches) for the losses, which must
not depend on the order.
"""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.figure import print_figure
from holmes_core.records.plan import Plan
from holmes_core.records.record_file import read_file
from holmes_core.records.run import Run
from tests.testbed.rehearsal import Site, bed_site, measured_compute, only_run, standard_library_corpus

FAST_MBPS, SLOW_MBPS = 2000, 100
MODEL = {"num_layers": 10, "hidden_size": 352, "num_heads": 4, "seq_length": 128}
MICRO_BATCH_SIZE, STEPS = 2, 7
EMULATED = {"emulate": {"forward_s_per_layer": 0.004, "backward_s_per_layer": 0.008}}  # a sample
GLOBAL_BATCH_SIZE = {"emulated": 32, "real": 16}


@dataclass(frozen=True)
class Row:
    """One launch: its plan and what came of it."""

    compute: str
    order: str
    plan: Plan
    run: Run

    @property
    def tokens_per_s(self) -> float:
        assert self.run.tokens_per_s is not None
        return self.run.tokens_per_s

    @property
    def predicted_over_measured(self) -> float:
        """Predicted step time over the measured one."""
        assert self.run.step_s is not None
        return self.plan.prediction.step_s / self.run.step_s


def main() -> None:
    """Four launches on one bed: both orders, emulated and real."""
    with tempfile.TemporaryDirectory() as name, bed_site(Path(name), FAST_MBPS, SLOW_MBPS) as site:
        holmes(site, "probe", str(site.hosts_yaml), "-o", str(site.folder / "inventory.json"))
        real = measured_compute(MODEL, MICRO_BATCH_SIZE, at_once=4)
        rows = [
            measure(site, compute, settings, order)
            for compute, settings in (("emulated", EMULATED), ("real", real))
            for order in ("holmes", "usual")
        ]
    show(rows)
    plan_row, usual_row, real_plan, real_usual = rows
    print_figure("two_clusters.over_usual_order.100mbit", plan_row.tokens_per_s / usual_row.tokens_per_s, "x")
    print_figure(
        "two_clusters.over_usual_order_real_compute.100mbit", real_plan.tokens_per_s / real_usual.tokens_per_s, "x"
    )
    print_figure("two_clusters.predicted_over_measured", plan_row.predicted_over_measured, "x")
    print_figure("two_clusters.predicted_over_measured_usual", usual_row.predicted_over_measured, "x")
    assert real_plan.run.last_loss is not None
    assert real_usual.run.last_loss is not None
    print_figure("two_clusters.loss_difference", abs(real_plan.run.last_loss - real_usual.run.last_loss), "nats")


def measure(site: Site, compute: str, settings: dict[str, Any], order: str) -> Row:
    """Plan and launch the job once."""
    job = {
        "model": MODEL,
        "data": standard_library_corpus(),
        "global_batch_size": GLOBAL_BATCH_SIZE[compute],
        "steps": STEPS,
        "device": "cpu",
        "compute": settings,
        "parallel": {"pp": 2, "dp": 2, "micro_batch_size": MICRO_BATCH_SIZE},
    }
    path, runs = site.folder / f"{compute}-{order}.json", site.folder / f"runs-{compute}-{order}"
    inventory = str(site.folder / "inventory.json")
    options = ["--usual-order"] if order == "usual" else []
    holmes(site, "plan", str(site.write_job(compute, job)), "-i", inventory, "-o", str(path), *options)
    holmes(site, "launch", str(path), "--runs", str(runs))
    return Row(compute, order, read_file(Plan, path), read_file(Run, only_run(runs) / "run.json"))


def holmes(site: Site, *arguments: str) -> None:
    """Run one command; its output is shown only when it fails."""
    done = subprocess.run(site.command(*arguments), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"holmes {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")


def show(rows: list[Row]) -> None:
    """The table for people."""
    table = Table(title=f"{FAST_MBPS} Mbit/s inside, {SLOW_MBPS} Mbit/s across, pp=2 dp=2", title_justify="left")
    for heading in ("compute", "order", "step s", "tokens/s", "predicted / measured", "MB a step across", "loss"):
        table.add_column(heading)
    for row in rows:
        across = sum(port.sent_bytes or 0 for port in row.run.traffic if port.network == "shared") / 1e6
        loss = f"{row.run.last_loss:.5f}" if row.compute == "real" else "-"
        ratio = f"{row.predicted_over_measured:.2f}"
        seconds = f"{row.run.step_s:.3f}"
        table.add_row(row.compute, row.order, seconds, f"{row.tokens_per_s:.0f}", ratio, f"{across:.1f}", loss)
    Console(highlight=False, width=120).print(table)


if __name__ == "__main__":
    main()
