"""The outcome of each step, as a page to read and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from benchmarks.on_gpus.machine import Machine
from holmes_core.records.record_file import write_atomically

State = Literal["passed", "failed", "skipped"]
STATES: tuple[State, ...] = ("passed", "failed", "skipped")


@dataclass(frozen=True)
class Figure:
    """One number, with its unit."""

    name: str
    value: float
    unit: str


class Failed(RuntimeError):
    """A step is not as it should be, and why; `figures` and `notes` are what was seen all the same."""

    def __init__(self, why: str, figures: Sequence[Figure] = (), notes: Sequence[str] = ()) -> None:
        super().__init__(why)
        self.figures, self.notes = tuple(figures), tuple(notes)


class Skipped(RuntimeError):
    """A step needs a result that did not come about."""


class Seen(list[Figure]):
    """The figures of a step that passed, with notes that are no numbers."""

    def __init__(self, figures: Sequence[Figure], notes: Sequence[str] = ()) -> None:
        super().__init__(figures)
        self.notes = tuple(notes)


@dataclass(frozen=True)
class Outcome:
    """The outcome of one step. `why` it failed or was skipped, empty where it passed."""

    step: str
    shows: str
    state: State
    why: str
    seconds: float
    figures: tuple[Figure, ...]
    notes: tuple[str, ...] = ()


def page(machine: Machine, device: str, outcomes: Sequence[Outcome]) -> str:
    """Return the report in Markdown."""
    about = [f"- {name}: {_words(value)}" for name, value in asdict(machine).items()]
    rows = [
        f"| {outcome.step} | {outcome.shows} | {outcome.state} | {outcome.seconds:.0f} | {_cell(outcome.why)} |"
        for outcome in outcomes
    ]
    figures = [
        f"| {outcome.step} | {figure.name} | {figure.value:.6g} | {figure.unit} |"
        for outcome in outcomes
        for figure in outcome.figures
    ]
    notes = [f"- {outcome.step}: {_cell(note)}" for outcome in outcomes for note in outcome.notes]
    states = [outcome.state for outcome in outcomes]
    counts = ", ".join(f"{states.count(state)} {state}" for state in STATES)
    return "\n".join(
        [
            *("# Holmes on GPUs", "", f"On device {device}: {counts}.", ""),
            *(*about, ""),
            *("| step | shows | state | seconds | why |", "|---|---|---|---|---|", *rows, ""),
            *("| step | figure | value | unit |", "|---|---|---|---|", *figures, ""),
            *notes,
            *([""] if notes else []),
        ]
    )


def _words(value: object) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value)) or "none"
    return str(value or "none")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def write_report(folder: Path, machine: Machine, device: str, outcomes: Sequence[Outcome]) -> Path:
    """Write report.md and report.json into `folder`, each whole or not at all. Return the path of the first."""
    folder.mkdir(parents=True, exist_ok=True)
    data = {"device": device, "machine": asdict(machine), "steps": [asdict(outcome) for outcome in outcomes]}
    write_atomically(folder / "report.json", json.dumps(data, indent=1) + "\n")
    write_atomically(folder / "report.md", page(machine, device, outcomes))
    return folder / "report.md"


def read_outcomes(folder: Path, machine: Machine, device: str) -> dict[str, Outcome]:
    """Return, by step, the outcomes of the report in `folder`; none if it is of other GPUs, torch or device."""
    try:
        data = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        there = data["machine"]
        same = (data["device"], there["torch"], tuple(there["gpus"])) == (device, machine.torch, machine.gpus)
        return {step["step"]: _outcome(step) for step in data["steps"]} if same else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _outcome(step: Mapping[str, object]) -> Outcome:
    figures, notes = step["figures"], step["notes"]
    assert isinstance(figures, list)
    assert isinstance(notes, list)
    return Outcome(**{**step, "figures": tuple(Figure(**figure) for figure in figures), "notes": tuple(notes)})  # type: ignore[arg-type]
