"""The search against an exact enumeration: two to four clusters of unequal hosts, up to eight stages."""

from __future__ import annotations

import random

import pytest

from holmes_core.errors import HolmesError
from holmes_core.records.inventory import FabricKind, Inventory
from holmes_core.records.job import Job
from planner.problem.candidates import Candidate, with_other_fills
from planner.problem.problem import Problem, read_problem
from planner.search.branch_and_bound import SearchResult, search
from tests.planner.enumerator import best_by_enumeration, best_in_blocks, random_coefficients
from tests.planner.fleets import GIB, gpt_7b, gpu_inventory

KINDS: tuple[FabricKind, ...] = ("InfiniBand", "RoCE", "Ethernet", "InfiniBand")
HARD = (5, 9, 11, 12, 17, 24, 27)  # most of the seconds of all
MODEL = {"hidden_size": 2048, "num_heads": 16, "seq_length": 1024, "vocab_size": 32000}


def random_fleet(seed: int) -> Inventory:
    """Two to four clusters of one to four hosts with two GPUs each, their kind and memory drawn for each cluster."""
    draw = random.Random(seed)
    sizes = [draw.randint(1, 4) for _ in range(draw.choice((2, 3, 4)))]
    inventory = gpu_inventory(sizes, gpus_per_host=2, kinds=KINDS, shared_gbps=draw.choice((2.0, 10.0, 40.0)))
    gpus = {
        cluster.name: (draw.choice(("NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3")), draw.choice((8, 12, 24, 80)))
        for cluster in inventory.clusters
    }

    def changed(name: str) -> dict[str, object]:
        kind, gib = gpus[name]
        return {"name": kind, "memory_bytes": gib * GIB}

    hosts = tuple(
        host.model_copy(update={"gpus": tuple(gpu.model_copy(update=changed(host.name[0])) for gpu in host.gpus)})
        for host in inventory.hosts
    )
    return inventory.model_copy(update={"hosts": hosts})


def random_job(seed: int, num_group_slots: int) -> Job:
    """One candidate: every degree fixed, four to ten stages where so many fit."""
    draw = random.Random(seed)
    dp = draw.choice((1, 1, 2, 3))
    pp = max(1, min(draw.randint(4, 8), num_group_slots // dp))
    parallel = {"tp": 1, "pp": pp, "dp": min(dp, num_group_slots), "micro_batch_size": 1, "recompute": "none"}
    model = MODEL | {"num_layers": draw.randint(pp, 16)}
    return gpt_7b(model=model, global_batch_size=12 * draw.choice((1, 4)), parallel=parallel)


def answer_of(problem: Problem) -> SearchResult | None:
    """What the search found, None where nothing fits."""
    try:
        return search(problem, 3600.0)  # however busy the machine
    except HolmesError:
        return None


def marks(seed: int) -> list[pytest.MarkDecorator]:
    """Leave two of the hard seeds, which take half of the seconds, to the exhaustive layer."""
    return [pytest.mark.exhaustive] if seed in (24, 27) else [pytest.mark.slow] * (seed >= 6 or seed in HARD)


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=marks(seed)) for seed in range(30)])
def test_search_finds_what_exact_enumeration_finds(seed: int) -> None:
    inventory = random_fleet(seed)
    job = random_job(seed, 2 * len(inventory.hosts))
    problem, fixed = read_problem(inventory, job), job.parallel
    candidate = Candidate(1, fixed.pp or 1, fixed.dp or 1, 1)
    by_fill = [problem.coefficients(each) for each in with_other_fills(job, candidate)]
    answer = answer_of(problem)
    if answer is None:
        assert [best_in_blocks(coeffs) for coeffs in by_fill] == [None] * len(by_fill)
        return
    found = answer.found[0]
    assert answer.status == "optimal"
    bests_s = [best_in_blocks(coeffs, found.objective_s * (1 + 1e-6)) for coeffs in by_fill]
    best_s = min((each for each in bests_s if each is not None), default=None)
    if found.placement.crossing(problem.fleet) in ("nothing", "pipeline"):
        assert found.objective_s == pytest.approx(best_s, rel=1e-6)
    elif best_s is not None:
        assert found.objective_s <= best_s * (1 + 1e-6)


def test_the_two_enumerations_agree() -> None:
    """Where every class is a cluster of its own and no stage is over several, they mean the same."""
    compared = 0
    for seed in range(200):
        coeffs = random_coefficients(seed)
        if len(set(coeffs.cluster)) == len(coeffs.group_slots):
            wanted_s, found_s = best_by_enumeration(coeffs), best_in_blocks(coeffs)
            assert (found_s is None) == (wanted_s is None), seed
            assert found_s is None or found_s == pytest.approx(wanted_s, rel=1e-9), seed
            compared += 1
    assert compared > 100


def test_a_fixed_cut_has_runners_up_that_the_simulation_may_prefer() -> None:
    fixed = {"pp": 2, "tp": 1, "dp": 1, "layers": [12, 24], "schedule": "1f1b"}
    problem = read_problem(gpu_inventory([1], 2), gpt_7b(global_batch_size=16, parallel=fixed))
    found = search(problem, 60).found
    assert len({each.placement.candidate.micro_batch_size for each in found}) > 1
    assert {each.placement.layers for each in found} == {(12, 24)}
