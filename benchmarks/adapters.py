"""Adapters trained on two clusters over a thin wire, against one cluster and against a wire that is not thin.

On the bed, one host of each cluster. Layers sleep, as on GPUs of their own: two ranks that compute share one machine's
memory and clock. Adapters, their gradients and the update's weights go over the wire as in a real run.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import yaml

from benchmarks.figure import print_figure
from benchmarks.two_clusters import holmes
from holmes_core.records.record_file import read_file
from holmes_core.records.run import Run
from tests.testbed.rehearsal import Site, bed_site, only_run, standard_library_corpus

FAST_MBPS, SLOW_MBPS = 2000, 20
MODEL = {"family": "llama", "num_layers": 8, "hidden_size": 512, "num_heads": 8, "seq_length": 256}
SLEEPS = {"forward_s_per_layer": 0.016, "backward_s_per_layer": 0.032}
LORA = {"lora": {"rank": 8, "targets": ["query", "value"]}}
STEPS, GLOBAL_BATCH_SIZE = 7, 32
ONE, TWO = ("a1",), ("a1", "b1")


def main() -> None:
    """Three launches: on one cluster, and on two over both wires."""
    with tempfile.TemporaryDirectory() as name, bed_site(Path(name), FAST_MBPS, SLOW_MBPS) as site:
        one, two = (measure(site, hosts) for hosts in (ONE, TWO))
    with tempfile.TemporaryDirectory() as name, bed_site(Path(name), FAST_MBPS, FAST_MBPS) as site:
        unshaped = measure(site, TWO)
    print_figure(f"adapters.two_clusters_over_one.{SLOW_MBPS}mbit", two / one, "x")
    print_figure(f"adapters.over_unshaped_wire.{SLOW_MBPS}mbit", two / unshaped, "x")


def measure(site: Site, hosts: tuple[str, ...]) -> float:
    """Probe, plan and launch on these hosts of the bed; return tokens per second."""
    name = "-".join(hosts)
    listed = yaml.safe_load(site.hosts_yaml.read_text(encoding="utf-8"))
    listed["hosts"] = [*hosts]
    path = site.hosts_yaml.with_name(f"{name}-hosts.yaml")
    path.write_text(yaml.safe_dump(listed), encoding="utf-8")
    job = {
        "model": MODEL,
        "data": standard_library_corpus(),
        "global_batch_size": GLOBAL_BATCH_SIZE,
        "steps": STEPS,
        "device": "cpu",
        "compute": {"emulate": SLEEPS},
        "parallel": {"dp": len(hosts), "pp": 1, "tp": 1, "micro_batch_size": 4},
        "trainable": LORA,
    }
    inventory, plan, runs = (str(site.folder / f"{name}-{what}") for what in ("inventory.json", "plan.json", "runs"))
    holmes(site, "probe", str(path), "-o", inventory)
    holmes(site, "plan", str(site.write_job(name, job)), "-i", inventory, "-o", plan)
    holmes(site, "launch", plan, "--runs", runs)
    run = read_file(Run, only_run(Path(runs)) / "run.json")
    assert run.tokens_per_s is not None
    print(f"{name}: {run.tokens_per_s:.0f} tokens/s, {run.step_s:.3f} s a step", flush=True)
    return run.tokens_per_s


if __name__ == "__main__":
    main()
