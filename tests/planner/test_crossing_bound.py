"""The bound on traffic that must cross between clusters, by hand, and its effect on the bound under any schedule."""

from __future__ import annotations

import pytest

from planner.cost.counts import edge_bytes
from planner.problem.candidates import Candidate
from planner.problem.problem import read_problem
from planner.schedule.crossing_bound import LayerSeconds, crossing_bound_s
from tests.planner.fleets import bed_job, cpu_inventory, plan_for

PAIR = read_problem(cpu_inventory([1, 1]), bed_job(parallel={}))
FOUR = read_problem(cpu_inventory([2, 2]), bed_job(parallel={}))
RATE = PAIR.fleet.classes[0].hardware.rates.shared_bytes_per_s or 0.0
FAST = LayerSeconds(1e-9, 1e-9)


def sent(candidate: Candidate) -> float:
    """Bytes of a step's activations over one edge."""
    return 32 * edge_bytes(PAIR.job.model, candidate.execution(PAIR.job))


def test_one_replica_over_two_clusters_sends_every_micro_batch_through_one_nic() -> None:
    pipeline = Candidate(1, 2, 1, 1)
    assert PAIR.job.global_batch_size == 32
    assert crossing_bound_s(PAIR, pipeline, FAST) == pytest.approx(sent(pipeline) / RATE)


def test_replicas_that_each_fit_into_a_cluster_exchange_all_gradients_instead() -> None:
    slow_wire = LayerSeconds(whole_s=1e-9, crossing_s=0.01)
    layers = FOUR.job.model.num_layers
    assert crossing_bound_s(FOUR, Candidate(1, 1, 4, 1), slow_wire) == pytest.approx(0.01 * layers)
    # Two stages: five layers' gradients; or messages of both replicas; or one layer's and one replica's messages.
    both, one = sent(Candidate(1, 2, 2, 1)) / (4 * RATE), sent(Candidate(1, 2, 2, 1)) / 2 / RATE
    found = crossing_bound_s(FOUR, Candidate(1, 2, 2, 1), slow_wire)
    assert found == pytest.approx(min(0.01 * layers / 2, max(one, both), max(one, 0.01)), rel=1e-3)


def test_stages_whose_gradients_stay_compute_what_a_crossing_one_does_not_hold() -> None:
    layers = FOUR.job.model.num_layers
    found = crossing_bound_s(FOUR, Candidate(1, 2, 2, 1), LayerSeconds(whole_s=2.0, crossing_s=6.0))
    assert found <= layers / (1 / 6 + 1 / 2)


def test_a_cluster_with_room_sends_nothing() -> None:
    assert crossing_bound_s(FOUR, Candidate(1, 2, 1, 1), FAST) == 0.0


def test_a_slow_wire_leaves_little_between_the_plan_and_the_bound() -> None:
    plan = plan_for(cpu_inventory([2, 2], shared_gbps=0.001), bed_job(parallel={}))
    assert plan.solve.crossing == "nothing"
    assert plan.solve.step_gap is not None
    assert plan.solve.step_gap < 0.1
