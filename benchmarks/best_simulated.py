"""How far plans are from the best there is, by the simulated step: small random fleets, enumerated whole.

Two or three clusters of one or two hosts, on CPUs or GPUs, each with networks of its own, and a small model. Of each
fleet every candidate, every way to put replicas of stages on classes of hosts, every cut, every schedule and every
depth in flight is looked at, and simulated where a lower bound does not rule it out. The best few are written out and
predicted as the plan is, and the plan's step is compared with the least of them.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from heapq import nsmallest
from itertools import combinations_with_replacement, product
from pathlib import Path
from statistics import mean, quantiles
from typing import NamedTuple

from benchmarks.figure import print_figure
from holmes_core.errors import HolmesError
from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job
from planner.layout.write_out import contender_step_s
from planner.problem.candidates import Candidate, enumerate_candidates
from planner.problem.problem import Problem, read_problem
from planner.schedule.placement_simulator import PlacementSimulator
from planner.schedule.run_mode import CHUNKS, RunMode
from planner.schedule.runners_up import Contender
from planner.search.placement import Placement, PricedPlacement, even_shares
from tests.planner.enumerator import compositions
from tests.planner.fleets import bed_job, cpu_inventory, faster, gpt_7b, gpu_inventory, plan_for

FLEETS, WORST_SHOWN = 300, 10
WRITTEN_OUT = 8  # of each fleet's enumerated ways
MISJUDGED = 1.05  # how much slower than the plan's prediction a way may be by classes, and yet be written out


class Way(NamedTuple):
    """One way to run one placement, and its seconds as simulated by classes."""

    step_s: float
    placement: Placement
    mode: RunMode


def main() -> None:
    """Compare `FLEETS` plans, or as many as the command line says, with the best of their fleets.

    A file named after that gets a row a fleet, its number and by what part its plan is behind, and is gone on with.
    """
    fleets = int(sys.argv[1]) if len(sys.argv) > 1 else FLEETS
    rows = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    done, errors = _read_rows(rows) if rows is not None and rows.exists() else dict[int, float](), 0
    for seed in range(fleets):
        if seed in done:
            continue
        try:
            done[seed] = behind_best(*draw_fleet(seed))
        except HolmesError as error:
            errors += 1
            print(f"fleet {seed}: {error.what}", file=sys.stderr)
            continue
        if rows is not None:
            with rows.open("a", encoding="utf-8") as file:
                file.write(f"{seed} {done[seed]:.6f}\n")
    behind = [done[seed] for seed in range(fleets) if seed in done]
    for seed in sorted(done, key=lambda seed: -done[seed])[:WORST_SHOWN]:
        print(f"fleet {seed}: {done[seed]:.2%}")
    print_figure("best_simulated.fleets", len(behind), "1")
    print_figure("best_simulated.errors", errors, "1")
    print_figure("best_simulated.mean_behind", mean(behind) * 100, "%")
    print_figure("best_simulated.behind_95th_percentile", quantiles(behind, n=20)[-1] * 100, "%")
    print_figure("best_simulated.most_behind", max(behind) * 100, "%")


def _read_rows(rows: Path) -> dict[int, float]:
    """By fleet, by what part its plan is behind."""
    pairs = (line.split() for line in rows.read_text(encoding="utf-8").splitlines())
    return {int(seed): float(behind) for seed, behind in pairs}


def draw_fleet(seed: int) -> tuple[Inventory, Job]:
    """Three or four hosts on CPUs, or two or three with two GPUs each, and a model of four to six layers."""
    draw = random.Random(seed)
    batch, layers = draw.choice((4, 6, 8)), draw.randint(4, 6)
    sizes = draw.choice(((1, 1), (2, 1), (1, 1, 1), (2, 2), (2, 1, 1)))
    shared_gbps = draw.choice((0.02, 0.1, 0.5, 2.0)) * draw.uniform(0.9, 1.1)
    if draw.random() < 0.5:
        inventory = cpu_inventory(sizes, 1.0, shared_gbps)
        model = {"num_layers": layers, "hidden_size": 352, "num_heads": 8, "seq_length": 128}
        job = bed_job(model=model, parallel={}, global_batch_size=batch)
    else:
        inventory = gpu_inventory(sizes[:2], 2, shared_gbps=shared_gbps * 50)
        model = {"num_layers": layers, "hidden_size": 2048, "num_heads": 16, "seq_length": 1024, "vocab_size": 8192}
        job = gpt_7b(model=model, global_batch_size=batch, compile=draw.random() < 0.5)
    clusters = tuple(
        cluster.model_copy(update={"fabric": faster(cluster.fabric, draw.uniform(0.5, 8.0))})
        for cluster in inventory.clusters
    )
    return inventory.model_copy(update={"clusters": clusters}), job


def behind_best(inventory: Inventory, job: Job) -> float:
    """By what part of the best step the plan's is longer; 0 where none is better."""
    plan_s = plan_for(inventory, job).prediction.step_s
    problem = read_problem(inventory, job)
    best_s = min(
        (contender_step_s(problem, _contender(problem, way)) for way in _best_ways(problem, plan_s * MISJUDGED)),
        default=plan_s,
    )
    return max(0.0, plan_s / best_s - 1)


def _contender(problem: Problem, way: Way) -> Contender:
    return Contender(PricedPlacement(way.step_s, way.placement), way.mode, way.placement.crossing(problem.fleet))


def _best_ways(problem: Problem, at_most_s: float) -> list[Way]:
    """The best by classes of all ways that take no longer."""
    best: list[Way] = []
    for placement in all_placements(problem):
        coeffs = problem.coefficients(placement.candidate)
        simulator = PlacementSimulator(problem.job, coeffs, placement)
        if simulator.busiest_s(placement.layers) > at_most_s:
            continue
        for mode in all_modes(simulator, placement):
            if simulator.lower_bound_s(mode) <= at_most_s and simulator.fits(mode):
                step_s = simulator.timed(mode).step_s
                if step_s <= at_most_s:
                    best = nsmallest(WRITTEN_OUT, [*best, Way(step_s, placement, mode)], key=lambda way: way.step_s)
                    at_most_s = best[-1].step_s if len(best) == WRITTEN_OUT else at_most_s
    return best


def all_placements(problem: Problem) -> Iterator[Placement]:
    """Every one: sites of stages, cuts, and where replicas keep to a class each, shares of micro-batches."""
    num_layers, batch = problem.job.model.num_layers, problem.job.global_batch_size
    for candidate in enumerate_candidates(problem.job, problem.fleet):
        slots = problem.coefficients(candidate).group_slots
        rows = list(combinations_with_replacement(range(len(slots)), candidate.dp))
        cuts = list(compositions(num_layers, candidate.pp, 1))
        for sites in product(rows, repeat=candidate.pp):
            taken = Counter(c for row in sites for c in row)
            if all(count <= slots[c] for c, count in taken.items()):
                for shares in _shares(candidate, sites, batch // candidate.micro_batch_size):
                    yield from (Placement(candidate, cut, sites, shares) for cut in cuts)


def _shares(candidate: Candidate, sites: Sequence[tuple[int, ...]], total: int) -> Iterator[tuple[int, ...]]:
    """Micro-batches by replica: as even as can be, and others where every replica is in one class, several in all."""
    even = even_shares(total, candidate.dp)
    yield even
    if len(set(sites)) == 1 and len(set(sites[0])) > 1:
        for shares in compositions(total, candidate.dp, 1):
            alike = zip(sites[0], sites[0][1:], shares, shares[1:], strict=False)
            if shares != even and all(a != b or m >= n for a, b, m, n in alike):
                yield shares


def all_modes(simulator: PlacementSimulator, placement: Placement) -> Iterator[RunMode]:
    """Every schedule, number of chunks and depth in flight; their seconds are still to be found."""
    pp, layers, most = placement.candidate.pp, placement.layers, max(placement.microbatches)
    yield RunMode("1f1b", 1, (), layers, 0.0)
    yield RunMode("gpipe", 1, (), layers, 0.0)
    if simulator.may_split:
        yield RunMode("zero-bubble", 1, (), layers, 0.0)
    if pp > 1:
        deeper = (extra for extra in product(range(most), repeat=pp - 1) if 0 < sum(extra) < most)
        yield from (RunMode("eager", 1, extra, layers, 0.0) for extra in deeper)
    if pp > 1 and not any(count % pp for count in placement.microbatches):
        for chunks in CHUNKS:
            if min(layers) >= chunks:
                parts = [even_shares(held, chunks) for held in layers]
                yield RunMode("interleaved", chunks, (), tuple(part[i] for i in range(chunks) for part in parts), 0.0)


if __name__ == "__main__":
    main()
