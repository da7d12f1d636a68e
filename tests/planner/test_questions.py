"""Answers to the usual questions: each is what a plan under that condition says."""

from __future__ import annotations

from math import inf

import pytest

from holmes_core.records.advice import PlanAnswer
from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import Plan
from planner.advice.changes import apply_changes
from planner.advice.questions import answers
from planner.advice.what_if import parse_changes
from planner.make_plan import plan_quickly, planned_step_s
from planner.time_left import TimeLeft
from tests.planner.fleets import bed_job, cpu_inventory, plan_for


def asked(inventory: Inventory, plan: Plan) -> dict[str, PlanAnswer]:
    return {each.question: each for each in answers(inventory, plan, TimeLeft(inf))}


@pytest.mark.slow
def test_other_degrees_cost_what_their_own_plan_says() -> None:
    inventory = cpu_inventory([2, 2])
    plan = plan_for(inventory, bed_job(parallel={"tp": 1}))
    found = asked(inventory, plan)
    other = found["why not pp 2?"].plan
    assert other is not None
    assert other.step_s == pytest.approx(planned_step_s(inventory, bed_job(parallel={"tp": 1, "pp": 2}), inf))
    assert other.ratio == pytest.approx(plan.prediction.step_s / other.step_s)
    assert found["why tp 1?"].answer.startswith("job.yaml fixes it")


@pytest.mark.slow
def test_the_rate_that_changes_the_plan_does_so_and_its_double_does_not() -> None:
    inventory = cpu_inventory([2, 2])
    plan = plan_for(inventory, bed_job(parallel={}))
    answer = asked(inventory, plan)["which rate of link:a-b changes the plan?"].answer
    below = answer.split("; ")[0]
    assert below.startswith("at ")
    rate = below.split(":")[0].removeprefix("at ")
    number, unit = float(rate[:-4]), rate[-4:]
    for factor, changes in ((1, True), (2, False)):
        changed = apply_changes(inventory, parse_changes(f"link:a-b={number * factor:.6f}{unit}", inventory))
        _, written = plan_quickly(changed, plan.job, inf)
        candidate = written.placement.candidate
        degrees = (candidate.tp, candidate.pp, candidate.dp)
        assert (degrees != (plan.tp, plan.pp, plan.dp)) == changes


@pytest.mark.slow
def test_idle_slots_are_answered_with_the_plan_that_uses_them() -> None:
    inventory = cpu_inventory([3, 1], shared_gbps=0.002)
    plan = plan_for(inventory, bed_job(parallel={}))
    assert len(plan.ranks) == 3
    found = asked(inventory, plan)
    other = found["and with 4 ranks, not 3?"].plan
    assert other is not None
    assert other.tp * other.pp * other.dp == 4
    assert other.ratio < 1


def test_a_long_training_is_answered_with_the_hosts_that_a_week_takes() -> None:
    inventory = cpu_inventory([2])
    job = bed_job(parallel={}, steps=100_000)
    plan = plan_for(inventory, job)
    found = asked(inventory, plan)
    assert found["what fits into a week?"].answer.startswith("not all 100000 steps")
    *_, last = (each for question, each in found.items() if question.startswith("with "))
    assert last.plan is not None
    assert last.plan.step_s * job.steps <= 7 * 86400


def test_without_time_nothing_is_planned() -> None:
    inventory = cpu_inventory([2, 2])
    plan = plan_for(inventory, bed_job(parallel={}))
    assert all(each.plan is None for each in answers(inventory, plan, TimeLeft(0.0)))


def test_one_rank_cannot_be_two_and_job_yaml_is_not_blamed_for_it() -> None:
    inventory, job = cpu_inventory([1]), bed_job(parallel={})
    found = {each.question: each.answer for each in answers(inventory, plan_for(inventory, job), TimeLeft(10.0))}
    assert found["why not pp 2?"] == "it takes 2 ranks, but the hosts have room for 1"
