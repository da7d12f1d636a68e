"""From a run to constants: how much slower than the cost model its compute was, and how much of its networks it got."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path

from holmes_core.errors import WRONG_USAGE, HolmesError
from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Calibration, Job
from holmes_core.records.plan import Plan, Prediction
from holmes_core.records.record_file import read_file
from planner.layout.reprice import reprice

LEAST_EFFICIENCY = 0.05  # below, something else than bandwidth is slow
HALVINGS = 12  # of the range of efficiencies: to 0.0003


@dataclass(frozen=True)
class StepMedians:
    """Medians over the steps of a run but the first, which sets up connections and caches."""

    step_s: float
    compute_s: float


def calibrate(inventory: Inventory, run: Path) -> Calibration:
    """The constants of the run in that folder, whose plan is predicted again on `inventory`.

    compute_factor is the busiest rank's seconds of forward and backward over the model's; network_efficiency then the
    part of all bandwidths at which the model takes as long as the run. Raises HolmesError (wrong usage) where the
    folder holds no run with two steps, or one on other hosts.
    """
    plan, measured = read_file(Plan, run / "plan.json"), read_medians(run / "metrics.jsonl")
    _require_hosts(inventory, plan, run)
    plain = _predict(inventory, plan, Calibration(run=str(run), compute_factor=1, network_efficiency=1))
    emulated = plan.job.compute.emulate is not None
    factor = 1.0 if emulated else measured.compute_s / (plain.compute_s + plain.exposed_tp_s)

    def with_efficiency(efficiency: float) -> Calibration:
        return Calibration(run=str(run), compute_factor=factor, network_efficiency=efficiency)

    low, high = LEAST_EFFICIENCY, 1.0
    if _predict(inventory, plan, with_efficiency(1.0)).step_s >= measured.step_s:
        return with_efficiency(1.0)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        too_slow = _predict(inventory, plan, with_efficiency(middle)).step_s > measured.step_s
        low, high = (middle, high) if too_slow else (low, middle)
    return with_efficiency(high)


def calibrated(job: Job, calibration: Calibration) -> Job:
    """The job with those constants, which its plan records."""
    compute = job.compute.model_copy(update={"calibration": calibration})
    return job.model_copy(update={"compute": compute})


def read_medians(path: Path) -> StepMedians:
    """The medians of metrics.jsonl. Raises HolmesError (wrong usage) without two steps."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        steps = [json.loads(line) for line in lines if line.strip()][1:]
    except OSError as error:
        raise _no_steps(path, error.strerror or "cannot be read") from None
    except ValueError as error:
        raise _no_steps(path, f"not one JSON object a line: {error}") from None
    if not steps or "compute_s" not in steps[0]:
        raise _no_steps(path, "its steps have no compute_s" if steps else "it has no step after the first")
    return StepMedians(*(statistics.median(step[key] for step in steps) for key in ("step_s", "compute_s")))


def _require_hosts(inventory: Inventory, plan: Plan, run: Path) -> None:
    known = {host for cluster in inventory.clusters for host in cluster.hosts}
    other = [node.host for node in plan.nodes if node.host not in known]
    if other:
        raise HolmesError(
            f"{run}: nothing to calibrate with: it ran on {other[0]}, which is no reachable host of the inventory",
            "give `--calibrate` a run on hosts of this inventory",
            WRONG_USAGE,
        )


def _predict(inventory: Inventory, plan: Plan, calibration: Calibration) -> Prediction:
    return reprice(inventory, plan.model_copy(update={"job": calibrated(plan.job, calibration)}))


def _no_steps(path: Path, why: str) -> HolmesError:
    return HolmesError(
        f"{path}: nothing to calibrate with: {why}",
        "give `--calibrate` the folder of a run of at least two steps, as `holmes launch` makes it",
        WRONG_USAGE,
    )
