"""Small fleets and jobs whose ranks share experts or sequences, and their fastest placement by brute force.

`python -m tests.planner.group_fleets FIRST END [bundled]` compares the plans of drawn fleets with it.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import product

from holmes_core.errors import HolmesError
from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job
from planner.problem.candidates import Candidate, enumerate_candidates, more_recompute, with_sharded_weights
from planner.problem.problem import Problem, read_problem
from planner.schedule.placement_simulator import PlacementSimulator
from planner.search.early_bounds import EarlyBounds
from planner.search.placement import Placement, even_shares
from tests.planner.enumerator import compositions
from tests.planner.fleets import A100, GIB, gpt_7b, gpu_inventory, plan_anew

H100 = "NVIDIA H100 80GB HBM3"
MAX_PP = 3


def drawn_bundled_fleet(seed: int) -> tuple[Inventory, Job]:
    """Return such clusters, and a job of experts for the bundled runtime."""
    inventory, job = drawn_fleet(seed)
    draw = random.Random(f"bundled {seed}")
    model = asdict(job.model)
    model |= {"seq_length": 4096, "experts": draw.choice((8, 16)), "experts_per_token": 2, "expert_ffn": 1024}
    parallel = {"ep": draw.choice((2, 4)), "tp": draw.choice((1, 2, None))}
    return inventory, gpt_7b(model=model, global_batch_size=job.global_batch_size, parallel=parallel)


def drawn_bundled_sequences(seed: int) -> tuple[Inventory, Job]:
    """Return such clusters, and a job of long sequences for the bundled runtime."""
    return drawn_fleet(seed, bundled=True)


def drawn_fleet(seed: int, bundled: bool = False) -> tuple[Inventory, Job]:
    """Return one to three clusters of four GPUs a host, and a job of experts, of long sequences, or of both.

    For the bundled trainer a job of long sequences alone.
    """
    draw = random.Random(seed)
    sizes = [draw.randint(1, 2) for _ in range(draw.choice((1, 2, 2, 3)))]
    inventory = gpu_inventory(
        sizes,
        gpus_per_host=4,
        gpu_name=draw.choice((A100, H100)),
        memory_bytes=draw.choice((24, 40, 80)) * GIB,
        kinds=[draw.choice(("InfiniBand", "RoCE", "Ethernet")) for _ in sizes],
        rdma_gbps=draw.choice((100.0, 400.0, 800.0)),
        shared_gbps=draw.choice((1.0, 10.0, 100.0)),
    )
    kind = "sequences" if bundled else draw.choice(("experts", "sequences", "both"))
    seq_length = 4096 if kind == "experts" else draw.choice((16384, 32768))
    model = {
        **{"family": "llama", "num_layers": draw.randint(3, 6), "hidden_size": 2048, "num_heads": 16},
        **{"num_kv_heads": draw.choice((2, 8)), "ffn_hidden_size": 5632, "vocab_size": 32000, "seq_length": seq_length},
    }
    if kind != "sequences":
        model |= {"experts": draw.choice((8, 16)), "experts_per_token": 2, "expert_ffn": draw.choice((1024, 4096))}
    engine = draw.choice(("megatron", "torchtitan")) if kind == "sequences" else "megatron"
    trainer = {} if bundled else {"engine": engine}
    parallel = {"cp": draw.choice((2, 4))} if kind != "experts" else {}
    if kind != "sequences":
        parallel["ep"] = draw.choice((2, 4))
    batch = draw.choice((4, 8, 16))
    return inventory, gpt_7b(**trainer, model=model, global_batch_size=batch, parallel=parallel)


def fastest_s(problem: Problem, within_s: float) -> float:
    """Return the simulated seconds of the fastest placement, of those that take less than `within_s`; else that."""
    best_s, early = within_s, EarlyBounds(problem)
    for candidate in _candidates(problem):
        if early.compute_s(candidate) >= best_s:
            continue
        coeffs = problem.coefficients(candidate)
        for placement in _placements(problem, candidate):
            simulator = PlacementSimulator(problem.job, coeffs, placement)
            if simulator.least_s >= best_s:
                continue
            for mode in simulator.allowed_modes():
                if simulator.fits(mode) and simulator.lower_bound_s(mode) < best_s:
                    best_s = min(best_s, simulator.timed(mode).step_s)
    return best_s


def _candidates(problem: Problem) -> Iterator[Candidate]:
    """Yield the degrees of short pipelines, with each recomputation and the weights sharded or not."""
    job, clusters = problem.job, len(problem.fleet.cluster_names)
    for plain in enumerate_candidates(job, problem.fleet):
        more: Candidate | None = plain
        while plain.pp <= MAX_PP and more is not None:
            if job.zero != 3:
                yield more
            shared = (with_sharded_weights(job, more, number) for number in range(1, clusters + 1))
            yield from dict.fromkeys(each for each in shared if each is not None)
            more = more_recompute(job, more)


def _placements(problem: Problem, candidate: Candidate) -> Iterator[Placement]:
    """Yield each cut of each placement that keeps groups together and shared weights in as many clusters as planned."""
    coeffs, together = problem.coefficients(candidate), problem.coefficients(candidate).together
    classes = range(len(coeffs.group_slots))
    blocks = candidate.dp // together
    rows = [
        tuple(c for c, count in enumerate(row) for _ in range(count * together))
        for row in compositions(blocks, len(classes), 0)
    ]
    rows = [row for row in rows if _keeps_groups(problem, candidate, row)]
    microbatches = even_shares(coeffs.total_microbatches, candidate.dp)
    for sites in product(rows, repeat=candidate.pp):
        if any(sum(row.count(c) for row in sites) > coeffs.group_slots[c] for c in classes):
            continue
        for layers in compositions(coeffs.num_layers, candidate.pp, 1):
            held = zip(layers, sites, coeffs.capacity, strict=True)
            if all(count <= room[c] for count, row, room in held for c in set(row)):
                yield Placement(candidate, layers, sites, microbatches)


def _keeps_groups(problem: Problem, candidate: Candidate, row: tuple[int, ...]) -> bool:
    """Return True if ranks that share experts are in one cluster, and copies of the weights in one each."""
    clusters = [problem.fleet.classes[c].cluster for c in row]
    held = {name: clusters.count(name) for name in clusters}
    if problem.job.ep > 1 and len(held) > 1:
        return False
    if candidate.copies == candidate.weight_shards == 1:
        return True
    return set(held.values()) == {candidate.dp // candidate.copies}


def gap(seed: int, drawn: Callable[[int], tuple[Inventory, Job]] = drawn_fleet) -> float | None:
    """Return how much slower the plan of a drawn fleet is than the fastest placement; None where neither exists."""
    inventory, job = drawn(seed)
    try:
        problem = read_problem(inventory, job)
        step_s = plan_anew(inventory, job).prediction.step_s
    except HolmesError:
        return None
    return step_s / fastest_s(problem, step_s) - 1


if __name__ == "__main__":
    draw = drawn_bundled_fleet if sys.argv[3:] == ["bundled"] else drawn_fleet
    gaps = {seed: gap(seed, draw) for seed in range(int(sys.argv[1]), int(sys.argv[2]))}
    known = {seed: each for seed, each in gaps.items() if each is not None}
    for seed, each in sorted(known.items(), key=lambda item: -item[1]):
        print(f"fleet {seed}: {each:.3%}")
    print(f"{len(gaps)} fleets, {len(gaps) - len(known)} without a plan, worst {max(known.values(), default=0):.3%}")
