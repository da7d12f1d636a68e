"""`python -m benchmarks.on_gpus`: every step that this machine can run, one after the other, and a report.

The report is written anew after each step. Ends with 0 if every step that could be run has passed, with 1 if one failed
or there is no GPU. `--device cpu` runs all of them on processes with tiny shapes, which shows that the steps work.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.on_gpus.machine import Device, Machine, read_machine
from benchmarks.on_gpus.report import Failed, Outcome, write_report
from benchmarks.on_gpus.scale import SCALES
from benchmarks.on_gpus.steps import BY_HAND, STEPS, Bench, Step


def run_step(step: Step, bench: Bench, machine: Machine) -> Outcome:
    """Runs `step`, unless this machine has too little for it."""
    few = (
        f"needs {step.least_gpus} GPUs, there are {len(machine.gpus)}" if len(machine.gpus) < step.least_gpus else None
    )
    why = machine.fault or few
    if bench.device == "cuda" and why is not None:
        return Outcome(step.name, step.shows, "left out", why, 0.0, ())
    began_s = time.monotonic()
    try:
        figures = step.run(bench)
    except Exception as error:  # whatever it is, it belongs into the report, and the other steps are run
        why, seen = (str(error), error.figures) if isinstance(error, Failed) else (repr(error), ())
        return Outcome(step.name, step.shows, "failed", why, time.monotonic() - began_s, seen)
    return Outcome(step.name, step.shows, "passed", "", time.monotonic() - began_s, tuple(figures))


def main(command_line: Sequence[str] | None = None, machine: Machine | None = None) -> int:
    """Runs the steps on `machine`, this one if it is not given; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.on_gpus")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("-o", "--output", type=Path, default=Path("gpu-report"), help="folder of the report")
    given = parser.parse_args(command_line)
    device: Device = given.device
    machine = machine or read_machine()
    outcomes = []
    by_hand = [
        Outcome(name, what, "left out", "by hand, or on several hosts", 0.0, ()) for name, what in BY_HAND.items()
    ]
    with tempfile.TemporaryDirectory(prefix="holmes-on-gpus-") as name:
        bench = Bench(Path(name), device, SCALES[device], machine.gpus)
        for step in STEPS:
            outcomes.append(run_step(step, bench, machine))
            print(f"{step.name}: {outcomes[-1].state} {outcomes[-1].why}".rstrip(), flush=True)
            for figure in outcomes[-1].figures:
                print(f"  {figure.name}: {figure.value:.6g} {figure.unit}".rstrip(), flush=True)
            report = write_report(given.output, machine, device, [*outcomes, *by_hand])
    print(f"report: {report}")
    if device == "cuda" and machine.fault is not None:
        print(f"nothing was run: {machine.fault}", file=sys.stderr)
        return 1
    return int(any(outcome.state == "failed" for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
