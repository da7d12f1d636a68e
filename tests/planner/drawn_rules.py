"""Changes that must not make a plan slower, or change its step, on fleets that drawn_fleets.py draws.

`python -m tests.planner.drawn_rules 0 300` plans so many fleets under every rule and prints those that break one.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from holmes_core.errors import HolmesError
from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job, Parallel
from holmes_core.records.plan import Plan
from tests.planner.drawn_fleets import (
    drawn_fleet,
    drawn_job,
    reordered,
    with_fabrics,
    with_late,
    with_memory,
    with_one_more_host,
    with_wires,
)
from tests.planner.fleets import plan_anew

BETTER: dict[str, Callable[[Inventory], Inventory]] = {
    "twice the wires": lambda fleet: with_wires(fleet, 2),
    "twice the fabrics": lambda fleet: with_fabrics(fleet, 2),
    "a quarter of the latency": lambda fleet: with_late(fleet, 0.25),
    "more memory": lambda fleet: with_memory(fleet, 1.5),
    "one more host": with_one_more_host,
}
"""Changes to a fleet that never make a step longer."""
OWN: dict[str, Callable[[Plan], Parallel]] = {
    "own degrees": lambda plan: Parallel(tp=plan.tp, pp=plan.pp, dp=plan.dp),
    "own pp": lambda plan: Parallel(pp=plan.pp),
    "own tp": lambda plan: Parallel(tp=plan.tp),
    "own micro-batch": lambda plan: Parallel(micro_batch_size=plan.micro_batch_size),
    "own recomputation": lambda plan: Parallel(recompute=plan.recompute),
    "own schedule": lambda plan: Parallel(schedule=plan.schedule, chunks=plan.chunks if plan.chunks > 1 else None),
    "own zero": lambda plan: Parallel(zero=plan.zero),
}
"""Settings of a plan that, when job.yaml fixes them, change nothing."""


class Outcome(NamedTuple):
    """A rule on a fleet, and the part of a step by which it is broken; None where nothing was planned."""

    seed: int
    rule: str
    broken_by: float | None


def outcomes(seed: int) -> Iterator[Outcome]:
    """Yield the outcome of each rule on one fleet; none where the fleet holds no plan."""
    fleet, job = drawn_fleet(seed), drawn_job(seed)
    try:
        plan = plan_anew(fleet, job)
    except HolmesError:
        return
    step_s = plan.prediction.step_s
    for rule, change in BETTER.items():
        changed_s = _step_s(change(fleet), job)
        yield Outcome(seed, rule, None if changed_s is None else max(0.0, changed_s / step_s - 1))
    same = {rule: _step_s(fleet, job.model_copy(update={"parallel": own(plan)})) for rule, own in OWN.items()}
    same["another order"] = _step_s(reordered(fleet, seed), job)
    for rule, changed_s in same.items():
        yield Outcome(seed, rule, None if changed_s is None else abs(changed_s / step_s - 1))


def _step_s(fleet: Inventory, job: Job) -> float | None:
    try:
        return plan_anew(fleet, job).prediction.step_s
    except HolmesError:
        return None


def main() -> None:
    """Print the rules that are broken by more than a thousandth, and how many there were."""
    first, end = map(int, sys.argv[1:])
    found, checked = Counter[str](), 0
    for seed in range(first, end):
        for outcome in outcomes(seed):
            checked += 1
            broken_by = outcome.broken_by
            found["over 1 %"] += broken_by is None or broken_by > 0.01
            found["over 0.1 %"] += broken_by is None or broken_by > 0.001
            if broken_by is None or broken_by > 0.001:
                print(seed, outcome.rule, "no plan" if broken_by is None else f"{broken_by:.4f}", flush=True)
    print(f"{checked} rules checked on fleets {first} to {end - 1}: {dict(found)}")


if __name__ == "__main__":
    main()
