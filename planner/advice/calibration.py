"""Constants from a run: its compute time over the cost model's, and the share of its networks that it reached."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from holmes_core.errors import WRONG_USAGE, HolmesError
from holmes_core.records.compute import Calibration
from holmes_core.records.inventory import Inventory
from holmes_core.records.islands import island_name
from holmes_core.records.job import Job
from holmes_core.records.plain_data import json_values
from holmes_core.records.plan import IslandsPlan, Plan, Prediction
from holmes_core.records.record_file import read_any
from holmes_core.records.regular_file import read_regular
from planner.layout.reprice import reprice
from planner.problem.candidates import candidate_of

MAX_BYTES = 1 << 27  # of metrics.jsonl: 50,000 steps of 4 hosts
MIN_S, MAX_S = 1e-9, 1e6
MIN_EFFICIENCY = 0.05  # below this, the cause is not bandwidth
MIN_COMPUTE = 0.05  # of a step: below this, the plan's waits are wrong, not its compute
BETWEEN_RUNS = 0.01  # of a GPU's memory, by which two runs of one plan may differ: assumption
HALVINGS = 12  # of the range of efficiencies: to 0.0003


@dataclass(frozen=True)
class StepMedians:
    """Medians over all steps of a run except the first, which sets up connections and caches."""

    step_s: float
    compute_s: float | None  # None for a trainer's own command
    memory_bytes: int  # the most that a rank held in any step


def calibrate(inventory: Inventory, run: Path) -> Calibration:
    """Return the constants of the run in that folder, whose plan is predicted again on `inventory`.

    compute_factor is the busiest rank's seconds of forward and backward over the model's. network_efficiency is then
    the part of all bandwidths at which the model takes as long as the run. For a trainer's own command, only the step
    is known, and any difference is attributed to compute. memory_margin is the excess of the fullest GPU's memory over
    the predicted bytes, plus a percent for differences from run to run. For islands, together or one alone,
    compute_factor is the busiest island's seconds of a round over the model's; networks stay as they are, since no step
    crosses those between islands.

    Raises:
        HolmesError: The folder holds no run with two steps, or a run on other hosts (wrong usage).
    """
    plan = read_any((Plan, IslandsPlan), run / "plan.json", inside=run).record
    if isinstance(plan, IslandsPlan):
        return _of_islands(inventory, plan.islands, run, [run / island_name(k) for k in range(len(plan.islands))])
    assert isinstance(plan, Plan)
    if plan.job.islands is not None:
        return _of_islands(inventory, (plan,), run, [run])
    measured, plain = _measured_and_plain(inventory, plan, run)
    margin = _memory_margin(plan, plain, measured.memory_bytes)
    if measured.compute_s is None:
        factor = _compute_s(measured, plain) / _planned_s(plain)
        return Calibration(run=str(run), compute_factor=factor, network_efficiency=1.0)
    factor = 1.0 if plan.job.compute.emulate is not None else measured.compute_s / _planned_s(plain)

    def with_efficiency(efficiency: float) -> Calibration:
        return Calibration(run=str(run), compute_factor=factor, network_efficiency=efficiency, memory_margin=margin)

    low, high = MIN_EFFICIENCY, 1.0
    if _predict(inventory, plan, with_efficiency(1.0)).step_s >= measured.step_s:
        return with_efficiency(1.0)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        too_slow = _predict(inventory, plan, with_efficiency(middle)).step_s > measured.step_s
        low, high = (middle, high) if too_slow else (low, middle)
    return with_efficiency(high)


def _of_islands(inventory: Inventory, islands: Sequence[Plan], run: Path, folders: Sequence[Path]) -> Calibration:
    """Return the constants of islands with runs in `folders`, which are inside `run` or `run` itself."""
    found = [_measured_and_plain(inventory, plan, each) for plan, each in zip(islands, folders, strict=True)]
    steps = [plan.job.islands.chosen().inner_steps for plan in islands if plan.job.islands is not None]
    measured_s = max(n * _compute_s(*each) for n, each in zip(steps, found, strict=True))
    planned_s = max(n * _planned_s(plain) for n, (_, plain) in zip(steps, found, strict=True))
    margins = [_memory_margin(plan, plain, at.memory_bytes) for plan, (at, plain) in zip(islands, found, strict=True)]
    return Calibration(
        run=str(run),
        compute_factor=1.0 if islands[0].job.compute.emulate is not None else measured_s / planned_s,
        network_efficiency=1.0,
        memory_margin=max((margin for margin in margins if margin is not None), default=None),
    )


def _measured_and_plain(inventory: Inventory, plan: Plan, folder: Path) -> tuple[StepMedians, Prediction]:
    """Return the measurements of the run in `folder`, and the model's prediction without any calibration."""
    measured = read_medians(folder / "metrics.jsonl")
    _require_hosts(inventory, plan, folder)
    nothing = Calibration(run=str(folder), compute_factor=1, network_efficiency=1, memory_margin=0)
    return measured, _predict(inventory, plan, nothing)


def _planned_s(plain: Prediction) -> float:
    return plain.compute_s + plain.exposed_tp_s


def _compute_s(measured: StepMedians, plain: Prediction) -> float:
    """Return the compute of a step; if only the step is known, all of it that is not planned as waiting."""
    if measured.compute_s is not None:
        return measured.compute_s
    return max(measured.step_s - (plain.step_s - _planned_s(plain)), MIN_COMPUTE * measured.step_s)


def calibrated(job: Job, calibration: Calibration) -> Job:
    """Return the job with these constants, which its plan records."""
    compute = job.compute.model_copy(update={"calibration": calibration})
    return job.model_copy(update={"compute": compute})


def read_medians(path: Path) -> StepMedians:
    """Return the medians of metrics.jsonl.

    Raises:
        HolmesError: The file has fewer than two steps, or cannot be read (wrong usage).
    """
    try:
        lines = read_regular(path, MAX_BYTES, inside=path.parent).decode("utf-8").splitlines()
        steps = [_step(line) for line in lines if line.strip()][1:]
    except OSError as error:
        raise _no_steps(path, error.strerror or "cannot be read") from None
    except ValueError as error:
        raise _no_steps(path, f"a line is not one JSON object: {error}") from None
    if not steps:
        raise _no_steps(path, "it has no step after the first")
    compute_s = [step[1] for step in steps if step[1] is not None]
    return StepMedians(
        statistics.median(step[0] for step in steps),
        statistics.median(compute_s) if compute_s else None,
        max(step[2] for step in steps),
    )


def _step(line: str) -> tuple[float, float | None, int]:
    """Return step_s, compute_s and memory_bytes, 0 if missing, of a line that must be a step."""
    step = json_values(line)
    if isinstance(step, dict):
        step_s, compute_s, memory_bytes = step.get("step_s"), step.get("compute_s"), step.get("memory_bytes") or 0
        has_compute = "compute_s" in step and (compute_s is None or _is_seconds(compute_s))
        if _is_seconds(step_s) and has_compute and isinstance(memory_bytes, int):
            return float(step_s), compute_s, max(0, memory_bytes)
    raise ValueError(f"a step needs step_s and compute_s, from {MIN_S:g} to {MAX_S:g}: {line[:60]!r}")


def _is_seconds(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and MIN_S < value < MAX_S


def _memory_margin(plan: Plan, plain: Prediction, measured_bytes: int) -> float | None:
    """Return the memory margin; None if no GPU's memory was measured."""
    if plan.job.device == "cpu" or not measured_bytes:
        return None
    counted = max(plain.memory_bytes) - candidate_of(plan).execution(plan.job).reserve_bytes
    return max(0.0, measured_bytes / counted - 1) + BETWEEN_RUNS


def _require_hosts(inventory: Inventory, plan: Plan, run: Path) -> None:
    known = {host for cluster in inventory.clusters for host in cluster.hosts}
    other = [node.host for node in plan.nodes if node.host not in known]
    if other:
        raise HolmesError(
            f"{run}: nothing to calibrate with: it ran on {other[0]}, which is not a reachable host of the inventory",
            "give `--calibrate` a run on hosts of this inventory",
            WRONG_USAGE,
        )


def _predict(inventory: Inventory, plan: Plan, calibration: Calibration) -> Prediction:
    return reprice(inventory, plan.model_copy(update={"job": calibrated(plan.job, calibration)}))


def _no_steps(path: Path, why: str) -> HolmesError:
    return HolmesError(
        f"{path}: nothing to calibrate with: {why}",
        "give `--calibrate` the folder that `holmes launch` made for a run of at least two steps, or for one island "
        "with as many",
        WRONG_USAGE,
    )
