"""Probe, plan, launch and train a small GPT on two clusters; if their networks differ, also in the usual rank order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from holmes_cli.demo.demo_site import LOCAL_HOSTS, DemoSite, measured_compute, standard_library_corpus
from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.records.plan import InterfaceTraffic, Plan
from holmes_core.records.record_file import read_file
from holmes_core.records.run import MeasuredTraffic, Run
from holmes_runtime.node.admission.socket_filter import may_filter

MODEL = {"num_layers": 8, "hidden_size": 192, "num_heads": 4, "seq_length": 64}
MICRO_BATCH_SIZE = 2
STEPS = 8


def run_demo(site: DemoSite, networks_differ: bool, steps: int = STEPS) -> None:
    """Run the three commands and print a summary; if `networks_differ`, run the usual order as well.

    Local processes share one loopback, whose bytes cannot be told apart, and no order is slower than another.
    """
    if not site.prefix and not may_filter():
        raise HolmesError(
            "the kernel lets only root attach socket filters, by which ranks keep strangers out: nothing trains here",
            "run the demo as root, or in a container or user namespace that has CAP_NET_ADMIN",
            ANSWER_IS_NO,
        )
    compute = measured_compute(MODEL, MICRO_BATCH_SIZE, at_once=len(LOCAL_HOSTS))
    gigaflops, action_ms = compute["flops_per_s"] / 1e9, compute["overheads"]["action_s"] * 1e3
    print(
        f"Measured just now, four training processes at once: a core computes {gigaflops:.1f} GFLOP/s, and a forward or"
    )
    print(f"backward of a stage takes {action_ms:.2f} ms beside computing.")
    job = {
        "model": MODEL,
        "data": standard_library_corpus(),
        "global_batch_size": 16,
        "steps": steps,
        "optimizer": {"learning_rate": 5e-4},
        "device": "cpu",
        "compute": compute,
        "parallel": {"pp": 2, "dp": 2, "micro_batch_size": MICRO_BATCH_SIZE},
    }
    job_yaml = str(site.write_job("job", job))
    inventory, plan = str(site.folder / "inventory.json"), str(site.folder / "plan.json")
    site.show("probe", str(site.hosts_yaml), "-o", inventory)
    site.show("plan", job_yaml, "-i", inventory, "-o", plan)
    site.show("launch", plan, "--runs", str(site.folder / "runs"))
    plans = {"Holmes": (Path(plan), site.folder / "runs")}
    if networks_differ:
        usual = site.folder / "plan-usual.json"
        print(
            "\nNow the same job in the usual rank order: each cluster holds whole replicas, gradients cross clusters."
        )
        site.show("plan", job_yaml, "-i", inventory, "-o", str(usual), "--usual-order")
        site.show("launch", str(usual), "--runs", str(site.folder / "runs-usual"))
        plans["usual order"] = (usual, site.folder / "runs-usual")
    show_summary({name: (read_file(Plan, path), read_run(runs)) for name, (path, runs) in plans.items()})


def read_run(runs: Path) -> Run:
    """Return the record of the one run in `runs`."""
    return read_file(Run, only_run(runs) / "run.json")


def only_run(runs: Path) -> Path:
    """Return the folder of the one run in `runs`."""
    found: Sequence[Path] = sorted(runs.iterdir())
    assert len(found) == 1, found
    return found[0]


def _across(traffic: Sequence[InterfaceTraffic | MeasuredTraffic]) -> str:
    """Return the bytes per step on the network all clusters share."""
    return f"{sum(port.sent_bytes or 0 for port in traffic if port.network == 'shared') / 1e6:.2f} MB"


def show_summary(results: dict[str, tuple[Plan, Run]]) -> None:
    """Print one line per order, and the ratio if there are both."""
    out = Console(highlight=False, width=110)
    table = Table(title="\nSummary", title_justify="left")
    for heading in ("order", "stages on", "loss", "tokens/s", "predicted", "across clusters a step", "planned"):
        table.add_column(heading)
    for name, (plan, run) in results.items():
        table.add_row(
            name,
            " | ".join(" + ".join(stage.clusters) for stage in plan.stages),
            f"{run.first_loss:.3f} -> {run.last_loss:.3f}",
            f"{run.tokens_per_s:.0f}",
            f"{plan.prediction.tokens_per_s:.0f}",
            _across(run.traffic) if "usual order" in results else "not told apart",
            _across(plan.prediction.traffic),
        )
    out.print(table)
    if "usual order" in results:
        ours, usual = results["Holmes"][1].tokens_per_s, results["usual order"][1].tokens_per_s
        assert ours is not None
        assert usual is not None
        out.print(f"Holmes over the usual order: {ours / usual:.2f}x, with the same losses.")
