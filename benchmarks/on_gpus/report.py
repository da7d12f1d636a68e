"""What became of each step, as a page to read and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from benchmarks.on_gpus.machine import Machine
from holmes_core.records.record_file import write_atomically

State = Literal["passed", "failed", "left out"]


@dataclass(frozen=True)
class Figure:
    """One number, with its unit."""

    name: str
    value: float
    unit: str


class Failed(RuntimeError):
    """A step is not as it should be, and why; `figures` are what was measured all the same."""

    def __init__(self, why: str, figures: Sequence[Figure] = ()) -> None:
        super().__init__(why)
        self.figures = tuple(figures)


@dataclass(frozen=True)
class Outcome:
    """What became of one step. `why` it failed or was left out, empty where it passed."""

    step: str
    shows: str
    state: State
    why: str
    seconds: float
    figures: tuple[Figure, ...]


def page(machine: Machine, device: str, outcomes: Sequence[Outcome]) -> str:
    """The report in Markdown."""
    about = [f"- {name}: {value or 'none'}" for name, value in asdict(machine).items() if name != "gpus"]
    gpus = ", ".join(machine.gpus) or "none"
    rows = [f"| {each.step} | {each.shows} | {each.state} | {each.seconds:.0f} | {_cell(each)} |" for each in outcomes]
    figures = [
        f"| {each.step} | {figure.name} | {figure.value:.6g} | {figure.unit} |"
        for each in outcomes
        for figure in each.figures
    ]
    states = [each.state for each in outcomes]
    counts = ", ".join(f"{states.count(state)} {state}" for state in ("passed", "failed", "left out"))
    return "\n".join(
        [
            *("# Holmes on GPUs", "", f"On device {device}: {counts}.", ""),
            *(*about, f"- gpus: {gpus}", ""),
            *("| step | shows | state | seconds | why |", "|---|---|---|---|---|", *rows, ""),
            *("| step | figure | value | unit |", "|---|---|---|---|", *figures, ""),
        ]
    )


def _cell(outcome: Outcome) -> str:
    return outcome.why.replace("|", "\\|").replace("\n", " ")


def write_report(folder: Path, machine: Machine, device: str, outcomes: Sequence[Outcome]) -> Path:
    """Writes report.md and report.json into `folder`, each whole or not at all; the first of them."""
    folder.mkdir(parents=True, exist_ok=True)
    data = {"device": device, "machine": asdict(machine), "steps": [asdict(outcome) for outcome in outcomes]}
    write_atomically(folder / "report.json", json.dumps(data, indent=1) + "\n")
    write_atomically(folder / "report.md", page(machine, device, outcomes))
    return folder / "report.md"
