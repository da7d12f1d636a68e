"""Every step that this machine can run, one after the other, and a report.

The report is written anew after each step, and keeps what an earlier call wrote of steps that this one leaves out, if
GPUs and torch are the same. Ends with 0 if no step failed, with 1 if one did or there is no GPU.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.on_gpus.bench import Bench
from benchmarks.on_gpus.machine import Device, Machine, read_machine
from benchmarks.on_gpus.report import Failed, Outcome, Skipped, read_outcomes, write_report
from benchmarks.on_gpus.scale import SCALES, Scale
from benchmarks.on_gpus.steps import BY_HAND, STEPS, Step

OUT_OF_TIME = "the time for this call was over"


def why_skipped(step: Step, device: Device, machine: Machine) -> str | None:
    """Return the reason why this machine cannot run `step`; None if it can."""
    if device == "cpu":
        return None
    if machine.fault is not None:
        return machine.fault
    if len(machine.gpus) < step.least_gpus:
        return f"needs {step.least_gpus} GPUs, there are {len(machine.gpus)}"
    if step.shares_gpu and not machine.is_shared:
        return f"compute mode {machine.compute_mode} lets one process use the GPU"
    return None


def run_step(step: Step, bench: Bench, machine: Machine) -> Outcome:
    """Run `step`, unless this machine has too little for it or a step that it needs has not passed."""
    why = why_skipped(step, bench.device, machine) or _lacking(step, bench.outcomes)
    if why is None and time.monotonic() >= bench.end_s:
        why = OUT_OF_TIME
    if why is not None:
        return Outcome(step.name, step.shows, "skipped", why, 0.0, ())
    began_s = time.monotonic()
    try:
        figures = step.run(bench)
    except Skipped as error:
        return Outcome(step.name, step.shows, "skipped", str(error), time.monotonic() - began_s, ())
    except Exception as error:  # whatever it is, it belongs into the report, and the other steps are run
        why, seen, notes = (
            (str(error), error.figures, error.notes) if isinstance(error, Failed) else (repr(error), (), ())
        )
        return Outcome(step.name, step.shows, "failed", why, time.monotonic() - began_s, seen, notes)
    notes = tuple(getattr(figures, "notes", ()))
    return Outcome(step.name, step.shows, "passed", "", time.monotonic() - began_s, tuple(figures), notes)


def _lacking(step: Step, outcomes: Mapping[str, Outcome]) -> str | None:
    """Return the step that `step` needs and that has left no figure, if any; one that failed may have left some."""
    for name in step.needs:
        outcome = outcomes.get(name)
        if outcome is None or not outcome.figures:
            return f"needs {name}, which {outcome.state if outcome else 'was not run'}"
    return None


def first_screen(machine: Machine, device: Device, chosen: Sequence[Step], known: Iterable[str]) -> list[str]:
    """Return the lines that say what is here, which steps will be run and which not, and why."""
    gib = 2**30
    lines = [
        f"python {machine.python}, torch {machine.torch}, CUDA {machine.cuda}, NCCL {machine.nccl}, "
        f"driver {machine.driver}, triton {machine.triton}, compute mode {machine.compute_mode}"
    ]
    for name, free, total in zip(machine.gpus, machine.free_memory_bytes, machine.memory_bytes, strict=False):
        busy = "; another process holds the rest" if free < 0.95 * total else ""
        lines.append(f"{name}: {free / gib:.1f} of {total / gib:.1f} GiB free{busy}")
    if machine.not_compiled is not None:
        lines.append(f"compiled layers are skipped: this machine lacks {machine.not_compiled}")
    run = set(known)
    for step in chosen:
        lacking = next((f"needs {name}, which is skipped" for name in step.needs if name not in run), None)
        why = why_skipped(step, device, machine) or lacking
        lines.append(f"  {step.name}: {'skipped: ' + why if why else 'will be run'}")
        if why is None:
            run.add(step.name)
    return lines


def chosen_steps(only: str | None, skip: str | None) -> list[Step]:
    """Return the steps to run. Raises ValueError for a name that no step has."""
    names = [step.name for step in STEPS]
    wanted, unwanted = (text.split(",") if text else [] for text in (only, skip))
    unknown = [name for name in (*wanted, *unwanted) if name not in names]
    if unknown:
        raise ValueError(f"no step is named {', '.join(unknown)}; there are {', '.join(names)}")
    return [step for step in STEPS if (not wanted or step.name in wanted) and step.name not in unwanted]


def chosen_shapes(scale: Scale, only: str | None) -> Scale:
    """Return `scale` with these of its shapes alone. Raises ValueError for a name that none has."""
    names = only.split(",") if only else list(scale.shapes)
    unknown = [name for name in names if name not in scale.shapes]
    if unknown:
        raise ValueError(f"no shape is named {', '.join(unknown)}; there are {', '.join(scale.shapes)}")
    return replace(scale, shapes={name: scale.shapes[name] for name in names})


def main(command_line: Sequence[str] | None = None, machine: Machine | None = None) -> int:
    """Run the steps on `machine`, this one if it is not given. Return the exit code."""
    parser = _parser()
    given = parser.parse_args(command_line)
    try:
        chosen = chosen_steps(given.only, given.skip)
        scale = chosen_shapes(SCALES[given.device], given.shapes)
    except ValueError as error:
        parser.error(str(error))
    device: Device = given.device
    machine = machine or read_machine()
    earlier = read_outcomes(given.output, machine, device)
    print("\n".join(first_screen(machine, device, chosen, _useful(earlier))), flush=True)
    with tempfile.TemporaryDirectory(prefix="holmes-on-gpus-") as name:
        bench = Bench(Path(name), device, scale, machine.gpus, outcomes=dict(earlier))
        bench.compiles = device == "cpu" or machine.not_compiled is None
        bench.end_s = time.monotonic() + given.seconds
        report = _run(chosen, bench, machine, given.output)
    print(f"report: {report}")
    if device == "cuda" and machine.fault is not None:
        print(f"nothing was run: {machine.fault}", file=sys.stderr)
        return 1
    return int(any(bench.outcomes[step.name].state == "failed" for step in chosen))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.on_gpus")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--only", metavar="STEP,...", help="run these steps alone")
    parser.add_argument("--skip", metavar="STEP,...", help="leave these steps out")
    parser.add_argument("--shapes", metavar="SHAPE,...", help="train and time these shapes alone")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin and go on with nothing after so long")
    parser.add_argument("-o", "--output", type=Path, default=Path("gpu-report"), help="folder of the report")
    return parser


def _useful(outcomes: Mapping[str, Outcome]) -> list[str]:
    return [name for name, outcome in outcomes.items() if outcome.figures]


def _run(chosen: Sequence[Step], bench: Bench, machine: Machine, output: Path) -> Path:
    """Run the steps, print and write down each outcome, and return the path of the report."""
    by_hand = [
        Outcome(name, shows, "skipped", "by hand, or on several hosts", 0.0, ()) for name, shows in BY_HAND.items()
    ]
    report = output
    for step in chosen:
        print(f"{step.name} ...", flush=True)
        outcome = bench.outcomes[step.name] = run_step(step, bench, machine)
        print(f"{step.name}: {outcome.state} in {outcome.seconds:.1f} s {outcome.why}".rstrip(), flush=True)
        for figure in outcome.figures:
            print(f"  {figure.name}: {figure.value:.6g} {figure.unit}".rstrip(), flush=True)
        for note in outcome.notes:
            print(f"  {note}", flush=True)
        outcomes = [bench.outcomes.get(each.name) or _not_chosen(each) for each in STEPS]
        report = write_report(output, machine, bench.device, [*outcomes, *by_hand])
    return report


def _not_chosen(step: Step) -> Outcome:
    return Outcome(step.name, step.shows, "skipped", "not run yet", 0.0, ())
