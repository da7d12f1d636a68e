"""Batches that do not divide: which numbers of replicas are looked at, what that gains, and what a plan says of it."""

from __future__ import annotations

import random
from statistics import fmean
from typing import Any

import pytest

from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job
from planner.advice.explain import shares_sentence
from planner.advice.other_batch import faster_batch
from planner.cost.batch_shares import BatchShares, least_as_good
from planner.make_plan import planned_step_s
from planner.problem.candidates import class_rooms
from planner.problem.problem import read_problem
from planner.search.branch_and_bound import search
from tests.planner.fleets import bed_job, cpu_inventory, plan_for, random_inventory
from tests.seeds import seeds

LIMIT_S = 3600.0  # however busy the machine


def with_dp(job: Job, dp: int) -> Job:
    return job.model_copy(update={"parallel": job.parallel.model_copy(update={"dp": dp})})


def counts(batch: int, slots: int, **parallel: Any) -> list[int]:
    """Numbers of replicas of one stage and micro-batches of one sample, on one host of so many slots."""
    job = bed_job(global_batch_size=batch, parallel={"micro_batch_size": 1, **parallel}, slots_per_host=slots)
    fleet = read_problem(cpu_inventory([1]), job).fleet
    return [dp for dp, _ in BatchShares(job, slots).of(class_rooms(fleet, 1), 1)]


def test_the_least_number_of_replicas_is_taken_that_does_as_well() -> None:
    assert [least_as_good(12, dp) for dp in range(1, 13)] == [1, 2, 3, 4, 4, 6, 6, 6, 6, 6, 6, 12]
    assert least_as_good(512, 80) == 74


def test_on_a_small_fleet_any_number_of_replicas_is_looked_at_that_none_less_equals() -> None:
    assert counts(12, 12) == [1, 2, 3, 4, 6, 12]
    assert counts(13, 12) == [1, 2, 3, 4, 5, 7]


def test_on_a_large_fleet_as_many_replicas_are_looked_at_as_some_clusters_have_room_for() -> None:
    assert counts(512, 80) == [1, 2, 4, 8, 16, 32, 64, 74]
    assert counts(512, 70) == [1, 2, 4, 8, 16, 32, 64]
    job = bed_job(global_batch_size=512, parallel={"micro_batch_size": 1}, slots_per_host=8)
    shares, rooms = BatchShares(job, 120), class_rooms(read_problem(cpu_inventory([7, 5, 3]), job).fleet, 1)
    divisors = {1, 2, 4, 8, 16, 32}
    # 56 in the largest cluster, 120 in all; of those the least that do as well.
    assert {dp for dp, _ in shares.of(rooms, 1)} == divisors | {52, 64, 103}
    # Two stages: 28 in the first cluster, 40 where one is in the second, each replica in one cluster 28 + 20 + 12.
    assert {dp for dp, _ in shares.of(rooms, 2)} == divisors | {27, 40, 57}


def test_on_a_large_fleet_any_number_of_replicas_of_a_small_batch_is_looked_at() -> None:
    """A plan for 11 replicas was lost once the fleet had more than 64 GPUs."""
    assert counts(32, 120) == counts(32, 32) == [1, 2, 3, 4, 5, 6, 7, 8, 11, 16, 32]


def test_where_all_replicas_must_run_as_many_the_batch_divides() -> None:
    assert counts(13, 13, zero=3) == [1, 13]
    assert counts(12, 8, schedule="interleaved") == [1, 2, 3, 4, 6]


def test_a_fixed_number_of_replicas_need_not_divide_the_batch() -> None:
    assert counts(13, 13, dp=6) == [6]
    plan = plan_for(cpu_inventory([3]), bed_job(global_batch_size=8, parallel={"pp": 1, "dp": 3}))
    assert plan.micro_batch_size * sum(plan.microbatches) == 8
    assert max(plan.microbatches) - min(plan.microbatches) <= 1


def emulated(seed: int) -> Job:
    """Five layers; hosts of b and c may be slower; a batch that few numbers divide."""
    draw = random.Random(seed)
    slower = {"b": draw.choice((1.0, 1.5, 2.0)), "c": draw.choice((1.0, 1.3))}
    emulate = {"forward_s_per_layer": 0.01, "backward_s_per_layer": 0.02, "slowdown": slower}
    model = {"num_layers": 5, "hidden_size": 64, "num_heads": 8, "seq_length": 128}
    batch = draw.choice((7, 10, 11, 13, 22, 31))
    return bed_job(model=model, compute={"emulate": emulate}, parallel={}, global_batch_size=batch)


@pytest.mark.parametrize("seed", seeds(12, few=2))
def test_no_number_of_replicas_that_is_left_out_would_be_better(seed: int) -> None:
    inventory, job = random_inventory(seed), emulated(seed)
    bests_s = []
    for dp in range(1, len(inventory.hosts) + 1):
        bests_s.append(search(read_problem(inventory, with_dp(job, dp)), LIMIT_S).found[0].objective_s)
    best_s = search(read_problem(inventory, job), LIMIT_S).found[0].objective_s
    assert best_s == pytest.approx(min(bests_s), rel=1e-6)


@pytest.mark.slow
def test_on_three_to_fifteen_hosts_the_plan_is_the_best_of_all_numbers_of_replicas() -> None:
    """A batch of 512, by the simulated step, against the plans of each dp, and of those that divide it."""
    gains = []
    for number in range(3, 16):
        inventory, job = cpu_inventory([number]), bed_job(global_batch_size=512, parallel={"micro_batch_size": 1})
        by_dp = {dp: planned_step_s(inventory, with_dp(job, dp), LIMIT_S) for dp in range(1, number + 1)}
        step_s, dividing_s = planned_step_s(inventory, job, LIMIT_S), min(by_dp[dp] for dp in by_dp if 512 % dp == 0)
        assert step_s <= dividing_s * (1 + 1e-6), number
        assert step_s <= min(by_dp.values()) * (1 + 1e-3), number
        gains.append(dividing_s / step_s - 1)
    print(f"a batch of 512 on 3 to 15 hosts: {fmean(gains):.1%} faster in the mean, {max(gains):.1%} at most")
    assert fmean(gains) > 0.15
    assert max(gains) > 0.4


def three_hosts(batch: int) -> tuple[Inventory, Job]:
    """Replicas of one stage, a micro-batch of one sample."""
    return cpu_inventory([3]), bed_job(global_batch_size=batch, parallel={"pp": 1, "micro_batch_size": 1})


def test_the_plan_says_which_replicas_run_how_many_micro_batches() -> None:
    plan = plan_for(*three_hosts(8))
    assert plan.microbatches == (3, 3, 2)
    assert shares_sentence(plan) == (
        "Replicas 0-1 run 3 and replica 2 runs 2 micro-batches per step; the gradient is the mean over all of them.",
    )
    assert shares_sentence(plan_for(*three_hosts(9))) == ()


def test_a_batch_that_is_shared_evenly_is_advised_where_a_sample_takes_less() -> None:
    inventory, job = three_hosts(8)
    plan = plan_for(inventory, job)
    found = faster_batch(inventory, plan, LIMIT_S)
    assert found is not None
    assert found.global_batch_size == 9
    assert found.step_s == pytest.approx(planned_step_s(*three_hosts(9), LIMIT_S))
    assert found.step_s / 9 < plan.prediction.step_s / 8
    assert faster_batch(inventory, plan_for(*three_hosts(9)), LIMIT_S) is None


def test_no_batch_is_advised_that_is_far_from_the_wanted_one() -> None:
    """Three or six samples would be shared evenly, and six are half as many again as four."""
    inventory, job = three_hosts(4)
    found = faster_batch(inventory, plan_for(inventory, job), LIMIT_S)
    assert found is not None
    assert found.global_batch_size == 3
