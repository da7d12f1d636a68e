"""`python -m benchmarks.chatty_run [STEPS]`: runs whose ranks print two lines a step beside runs that print none.

Two hosts that are processes of this machine, one rank each, a small GPT in a pipeline; 10,000 steps unless told, thus
20,000 lines a rank. One run of each kind, then one of each in the other order, so that what else the machine does falls
on both. Memory is the controller's, read from the kernel; room is what is allocated, sampled on the nodes.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figure import print_figure
from holmes_core.records.record_file import read_file
from holmes_core.records.run import Run
from tests.testbed.rehearsal import Site, local_site, only_run, standard_library_corpus

STEPS = 10_000
PRINTING = (False, True, True, False)  # by turns
LINE = "x" * 100
SHAPE = {"num_layers": 2, "hidden_size": 64, "num_heads": 4, "seq_length": 64, "factory": "model.py:build"}
MODEL = f"""
import os
import sys

sys.path.insert(0, {str(Path(__file__).parents[1] / "examples" / "own-model-file")!r})
from own_model import build as build_whole

def build(stage_layers, job):
    model = build_whole(stage_layers, job)
    if os.environ["CHATTY"] == "1":
        model.register_forward_hook(lambda *_: print({LINE!r}))
    return model
"""
MICROBATCHES = 2  # of a step, and a line each
SAMPLED_S = 1.0


@dataclass(frozen=True)
class Trained:
    """What a run took: the median step and the mean between the first and the last, seconds; bytes at their most."""

    step_s: float
    mean_s: float
    memory_bytes: int
    node_bytes: int
    run_bytes: int


def main() -> None:
    """Four runs, and figures of those that print over those that do not."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else STEPS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["HOME"] = name  # what the nodes have is seen there
        site = local_site(folder)
        (folder / "model.py").write_text(MODEL, encoding="utf-8")
        _quiet(site, "probe", str(site.hosts_yaml), "-o", str(folder / "inventory.json"))
        runs: dict[bool, list[Trained]] = {False: [], True: []}
        for number, chatty in enumerate(PRINTING):
            runs[chatty].append(_trained(site, f"run{number}", steps, chatty))
            print("printing" if chatty else "silent", runs[chatty][-1], flush=True)
    plain, chatty_runs = runs[False], runs[True]
    print_figure("chatty_run.median_step_ratio", _mean_of(chatty_runs, "step_s") / _mean_of(plain, "step_s"), "x")
    print_figure("chatty_run.whole_run_ratio", _mean_of(chatty_runs, "mean_s") / _mean_of(plain, "mean_s"), "x")
    for what in ("memory_bytes", "node_bytes", "run_bytes"):
        print_figure(f"chatty_run.{what}", max(getattr(run, what) for run in chatty_runs) / 1e6, "MB")


def _mean_of(runs: list[Trained], what: str) -> float:
    return statistics.mean(float(getattr(run, what)) for run in runs)


def _trained(site: Site, name: str, steps: int, chatty: bool) -> Trained:
    """Plan and launch, looking at what the controller and the nodes take meanwhile."""
    job = {
        "model": SHAPE,
        "data": standard_library_corpus(),
        "global_batch_size": MICROBATCHES,
        "steps": steps,
        "device": "cpu",
        "compute": {"flops_per_s": 1e10},
        "parallel": {"pp": 2, "dp": 1, "micro_batch_size": 1},
        "launch": {"environment": {"CHATTY": str(int(chatty))}},
    }
    plan, runs = site.folder / f"{name}.json", site.folder / name
    _quiet(site, "plan", str(site.write_job(name, job)), "-i", str(site.folder / "inventory.json"), "-o", str(plan))
    memory_bytes = node_bytes = 0
    process = subprocess.Popen(
        site.command("launch", str(plan), "--runs", str(runs)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while process.poll() is None:
        memory_bytes = max(memory_bytes, _most_memory_bytes(process.pid))
        node_bytes = max(node_bytes, _room_bytes(site.folder / ".cache" / "holmes" / "runs"))
        time.sleep(SAMPLED_S)
    folder = only_run(runs)
    run = read_file(Run, folder / "run.json")
    assert (run.state, run.steps_done) == ("done", steps), run
    logs = sum(len(log.read_bytes().splitlines()) for log in folder.glob("logs/*.log*"))
    assert logs >= 2 * MICROBATCHES * steps * chatty, logs
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    first, last = json.loads(lines[0]), json.loads(lines[-1])
    mean_s = (last["time_s"] - first["time_s"]) / (last["step"] - first["step"])
    assert run.step_s is not None
    return Trained(run.step_s, mean_s, memory_bytes, node_bytes, _room_bytes(folder))


def _quiet(site: Site, *arguments: str) -> None:
    subprocess.run(site.command(*arguments), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _most_memory_bytes(pid: int) -> int:
    """The most that a process held so far; 0 once it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def _room_bytes(folder: Path) -> int:
    """What is allocated to the files below `folder`, as far as they are still there."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(Path(parent) / name).st_blocks * 512
            except FileNotFoundError:
                continue
    return total


if __name__ == "__main__":
    main()
