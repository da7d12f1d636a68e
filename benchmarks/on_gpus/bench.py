"""The place where steps run, and the results that later steps compare with."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.on_gpus.machine import Device
from benchmarks.on_gpus.product_run import ProductRun, largest_difference, probe_here, run_product
from benchmarks.on_gpus.report import Failed, Figure, Outcome
from benchmarks.on_gpus.run_tasks import run_tasks
from benchmarks.on_gpus.scale import Job, Scale, small_text
from benchmarks.on_gpus.shape_worker import Result, Task
from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job as JobRecord
from holmes_core.records.plan import Plan, SourceFile
from holmes_core.records.record_file import read_file
from planner.make_plan import make_plan

SOURCES = SourceFile(path="inventory.json", digest="sha256:0"), SourceFile(path="job.yaml", digest="sha256:0")
TASK_LIMIT_S = 150.0  # of one short training; compiling is most of it


@dataclass
class Bench:
    """A folder, the device and its scale; runs of this call, and outcomes of this call and earlier ones.

    No step begins, and no short training goes on, after `end_s` of the monotonic clock. `compiles` is False where only
    eager layers can be trained.
    """

    folder: Path
    device: Device
    scale: Scale
    gpus: Sequence[str]
    runs: dict[str, ProductRun] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    compiles: bool = True
    end_s: float = math.inf
    _inventory: Path | None = None

    def train(self, name: str, **changes: Any) -> ProductRun:
        """Return the run of the scale's small job with `changes`, through the three commands; kept under `name`."""
        job = {**self.scale.job(self.corpus(), self.device), **changes}
        self.runs[name] = run_product(self.folder / name, self.inventory(), job)
        return self.runs[name]

    def plan(self, job: Job) -> Plan:
        """Return the plan of `job` on this machine, made in this process."""
        return make_plan(read_file(Inventory, self.inventory()), JobRecord.model_validate(job), *SOURCES)

    def run_tasks(self, name: str, tasks: Sequence[Task], plans: Iterable[Plan]) -> Mapping[str, Result]:
        """Return the results of short trainings in one process, under the variables that their plans set for a node."""
        environment = {each.name: each.value for plan in plans for each in plan.nodes[0].environment}
        return run_tasks(self.folder / name, self.device, tasks, TASK_LIMIT_S, self.end_s, environment)

    def agree(self, names: Sequence[str], with_: str, tolerance: float) -> list[Figure]:
        """Return the largest relative difference between each run's losses and those of another.

        Raises:
            Failed: A difference is above `tolerance`.
        """
        losses = {name: self.runs[name].losses for name in (with_, *names)}
        figures = [
            Figure(f"{name}: loss differs by", largest_difference(losses[name], losses[with_]), "") for name in names
        ]
        wrong = [f"{figure.name} {figure.value:.2g}" for figure in figures if not figure.value <= tolerance]
        if wrong:
            raise Failed(f"{'; '.join(wrong)} from {with_}, {tolerance:g} are allowed", figures)
        return figures

    def figure(self, step: str, name: str) -> float | None:
        """Return a figure of a step, of this call or an earlier one; None if there is none."""
        outcome = self.outcomes.get(step)
        return next((figure.value for figure in outcome.figures if figure.name == name), None) if outcome else None

    def inventory(self) -> Path:
        """Return the inventory of this machine, which is probed once."""
        self._inventory = self._inventory or probe_here(self.folder / "probe")
        return self._inventory

    def corpus(self) -> str:
        """Return the path of the text that jobs train on."""
        path = self.folder / "corpus.txt"
        if not path.exists():
            path.write_text(small_text(), encoding="utf-8")
        return str(path)
