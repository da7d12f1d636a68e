"""Early bounds, by hand, and below every placement of random fleets."""

from __future__ import annotations

import random

import pytest

from holmes_core.records.job import Job
from planner.problem.candidates import Candidate, enumerate_candidates
from planner.problem.problem import read_problem
from planner.search.closed_form import blocks_step_s
from planner.search.early_bounds import EarlyBounds
from planner.search.whole_replicas import place_whole_replicas
from tests.planner.enumerator import all_blocks
from tests.planner.fleets import GIB, bed_job, cpu_inventory, gpt_7b, gpu_inventory, random_inventory
from tests.seeds import seed_ranges

ROUND = 1 + 1e-9


def emulated(**changes: object) -> Job:
    """Five layers of 3 s each on hosts of cluster a; b is 1.5 times as slow, c twice."""
    emulate = {"forward_s_per_layer": 1.0, "backward_s_per_layer": 2.0, "slowdown": {"b": 1.5, "c": 2.0}}
    model = {"num_layers": 5, "hidden_size": 64, "num_heads": 8, "seq_length": 128}
    return bed_job(model=model, compute={"emulate": emulate}, parallel={}, **changes)


def test_stages_of_whole_layers_by_hand() -> None:
    early = EarlyBounds(read_problem(cpu_inventory([2, 1]), emulated(global_batch_size=4)))
    three_stages = Candidate(1, 3, 1, 1)
    # 5 layers on two hosts of 3 s and one of 4.5 s a layer: at will 15 / (2 + 1 / 1.5) s, whole ones 2 + 2 + 1.
    assert early.compute_s(three_stages) == pytest.approx(3 * 6 + 15)
    assert early.whole_layers_s(three_stages, mixed=False) == pytest.approx(3 * 6 + 15)
    two_stages = Candidate(1, 2, 1, 1)
    assert early.compute_s(two_stages) == pytest.approx(3 * 9 + 15)
    # Two replicas: one stage of two hosts of a, or of one each of a and b.
    two_replicas = Candidate(1, 1, 2, 1)
    assert early.whole_layers_s(two_replicas, mixed=False) == pytest.approx(1 * 15 + 15)
    assert early.whole_layers_s(Candidate(1, 2, 2, 1), mixed=False) is None


@pytest.mark.parametrize("of", seed_ranges(40, few=5))
@pytest.mark.parametrize("mixed", [False, True])
def test_no_placement_beats_the_early_bounds(mixed: bool, of: range) -> None:
    compared = 0
    for seed in of:
        draw = random.Random(seed)
        job = emulated(global_batch_size=draw.choice((4, 6, 12)))
        problem = read_problem(random_inventory(seed), job)
        early = EarlyBounds(problem)
        for candidate in enumerate_candidates(job, problem.fleet):
            coeffs = problem.coefficients(candidate)
            least_s = early.whole_layers_s(candidate, mixed)
            for blocks in all_blocks(coeffs, mixed) if candidate.pp <= 3 else ():
                assert least_s is not None, (seed, candidate)
                assert least_s <= blocks_step_s(coeffs, blocks) * ROUND, (seed, candidate, blocks)
                compared += 1
            if least_s is not None:
                assert early.compute_s(candidate) <= least_s * ROUND, (seed, candidate)
            found = place_whole_replicas(coeffs) if not mixed else None
            if found is not None:
                assert early.whole_replicas_s(candidate) <= found.objective_s * ROUND, (seed, candidate)
    assert compared > 10 * len(of)


def test_candidate_that_fits_nowhere_is_told_from_one_that_might() -> None:
    job = gpt_7b()
    early = EarlyBounds(read_problem(gpu_inventory([1, 1], memory_bytes=24 * GIB), job))
    assert not early.fits(Candidate(1, 1, 1, 1, "full"))
    assert early.fits(Candidate(8, 2, 1, 1))
