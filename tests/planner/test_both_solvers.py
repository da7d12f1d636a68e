"""Whole plans with HiGHS, and with CBC where HiGHS is not installed: the same files but for the solver's name.

The plans without HiGHS are made by a process of their own.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from holmes_core.records.plan import Plan
from tests.planner.fleets import bed_job, plan_for, random_inventory

SEEDS = [range(12), range(12, 24)]  # the second is exhaustive: more of the same
WITHOUT_HIGHS = """
import sys
sys.modules["highspy"] = None
from tests.planner.test_both_solvers import show
show(range(int(sys.argv[1]), int(sys.argv[2])))
"""


def uneven_plan(seed: int) -> Plan:
    """A plan on two or three clusters with layers of different seconds in each."""
    slowdown = {"a": 1.0 + 0.11 * (seed % 5), "b": 1.3, "c": 1.7}
    emulate = {"forward_s_per_layer": 0.01, "backward_s_per_layer": 0.02, "slowdown": slowdown}
    inventory = random_inventory(seed)
    named = {cluster.name for cluster in inventory.clusters}
    emulate["slowdown"] = {name: slow for name, slow in slowdown.items() if name in named}
    parallel = {"layers": [3, 2, 4, 1]} if seed % 3 == 0 else {}
    return plan_for(inventory, bed_job(compute={"emulate": emulate}, parallel=parallel, slots_per_host=2))


def without_solver(plan: Plan) -> str:
    """The plan's file with no solver named."""
    return plan.model_copy(update={"solve": plan.solve.model_copy(update={"solver": "any"})}).to_json()


def show(seeds: range) -> None:
    """Print solvers and files as JSON."""
    plans = [uneven_plan(seed) for seed in seeds]
    print(json.dumps([(plan.solve.solver, without_solver(plan)) for plan in plans]))


@pytest.mark.parametrize(
    "seeds", [pytest.param(SEEDS[0], marks=pytest.mark.slow), pytest.param(SEEDS[1], marks=pytest.mark.exhaustive)]
)
def test_both_solvers_give_the_same_plan_byte_for_byte(seeds: range) -> None:
    command = [sys.executable, "-c", WITHOUT_HIGHS, str(seeds.start), str(seeds.stop)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=True)
    plans = [uneven_plan(seed) for seed in seeds]
    assert sum(plan.solve.programs for plan in plans) > len(seeds) / 2
    for plan, (solver, text) in zip(plans, json.loads(done.stdout), strict=True):
        assert (plan.solve.solver, solver) == ("HiGHS", "CBC")
        assert without_solver(plan) == text
