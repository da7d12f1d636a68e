"""The mode that is planned is the one an enumeration finds, which prices every placement and grouping by itself."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import permutations, product
from math import inf

import pytest

from benchmarks.best_simulated import all_modes, all_placements
from holmes_core.records.inventory import Inventory
from holmes_core.records.islands import Mode
from holmes_core.records.job import Job
from holmes_core.records.plan import IslandsPlan, PlanRank
from holmes_runtime.config.model_shape import stage_parameters
from holmes_runtime.config.run_settings import IslandsSettings
from planner.advice.changes import WithoutHost, apply_changes
from planner.islands.outer_sync_cost import BOTH_WAYS, meeting_s
from planner.layout.predict import predict_step_s
from planner.layout.write_out import lay_out_contender
from planner.problem.problem import read_problem
from planner.schedule.placement_simulator import PlacementSimulator
from planner.schedule.run_mode import RunMode
from planner.schedule.runners_up import Contender
from planner.search.placement import Placement, PricedPlacement
from tests.planner.fleets import GBPS, bed_job, cpu_inventory
from tests.planner.islands_jobs import planned_mode
from tests.planner.measured_links import measured, with_links, with_trunk

MODES: dict[str, Mode] = {"nothing": "one cluster", "pipeline": "pipeline", "data": "data", "both": "both"}
BYTES = {"none": 4.0, "int8": 130 / 128, "int4": 66 / 128}  # a value, packed
CPU_S = {"none": (0.0, 0.0), "int8": (3.5e-9, 1.5e-9), "int4": (4.5e-9, 2.1e-9)}  # to pack a value, to unpack it
NEAR = 1e-3  # modes as near as that are equally good: codecs fill up blocks, rounds end in whole steps
Found = tuple[float, tuple[PlanRank, ...], Placement]


class Wires:
    """What joins clusters, drawn: bytes/s of a host to each other cluster, seconds of latency, and trunks."""

    def __init__(self, draw: random.Random, names: Sequence[str]) -> None:
        slowest = draw.choice((0.003, 0.03, 0.2, 1.0, 5.0)) * GBPS
        pairs = [frozenset(pair) for pair in permutations(names, 2)]
        self.rate = {pair: slowest * draw.uniform(0.5, 1.0) for pair in sorted(set(pairs), key=sorted)}
        self.latency_s = {pair: draw.choice((1e-5, 1e-3, 0.05)) for pair in self.rate}
        self.trunk = {pair: rate * draw.uniform(0.8, 1.6) for pair, rate in self.rate.items() if draw.random() < 0.4}


def draw_fleet(seed: int) -> tuple[Inventory, Job, Wires]:
    """Two or three clusters of one or two hosts, one perhaps slower, and a small model."""
    draw = random.Random(seed)
    sizes = draw.choice(((1, 1), (2, 1), (2, 2), (1, 1, 1)))
    names = "abc"[: len(sizes)]
    wires, inventory = Wires(draw, names), cpu_inventory(sizes, draw.uniform(0.5, 4.0), 20.0)
    links = []
    for pair, rate in wires.rate.items():
        one, other = sorted(pair)
        links.append(measured((f"{one}1", f"{other}1"), rate, wires.latency_s[pair]))
    inventory = with_links(inventory, *links)
    for pair, rate in wires.trunk.items():
        inventory = with_trunk(inventory, sorted(pair), rate)
    slowdown = {name: draw.choice((1.0, 1.0, 1.5, 3.0)) for name in names}
    emulate = {"forward_s_per_layer": 0.01, "backward_s_per_layer": 0.02, "slowdown": slowdown}
    islands = IslandsSettings(
        inner_steps=draw.choice((4, 10, 50)),
        fragments=draw.choice((1, 2)),
        delay_steps=draw.choice((0, 1, 2)),
        codec=draw.choice(("none", "int8", "int4")),
    )
    job = bed_job(
        model={"num_layers": draw.randint(3, 4), "hidden_size": 352, "num_heads": 8, "seq_length": 128},
        parallel={"recompute": "none", "zero": 1},
        global_batch_size=draw.choice((4, 6)),
        compute={"emulate": emulate},
        steps=200,
        islands=islands,
    )
    return inventory, job, wires


def best_of_each_mode(inventory: Inventory, job: Job) -> dict[Mode, Found]:
    """By mode, the least predicted seconds of a step of all placements, schedules and depths, and where ranks are."""
    problem, best = read_problem(inventory, job), dict[Mode, Found]()
    for placement in all_placements(problem):
        crossing = placement.crossing(problem.fleet)
        mode = MODES[crossing]
        simulator = PlacementSimulator(problem.job, problem.coefficients(placement.candidate), placement)
        for each in runnable(simulator, placement, best[mode][0] if mode in best else inf):
            contender = Contender(PricedPlacement(each.step_s, placement), each, crossing)
            layout = lay_out_contender(problem, contender)
            step_s = predict_step_s(problem, layout)
            if mode not in best or step_s < best[mode][0]:
                best[mode] = step_s, layout.ranks, placement
    return best


def runnable(simulator: PlacementSimulator, placement: Placement, at_most_s: float) -> Iterator[RunMode]:
    """The ways to run a placement that may take less."""
    if simulator.busiest_s(placement.layers) >= at_most_s:
        return
    for mode in all_modes(simulator, placement):
        if simulator.lower_bound_s(mode) < at_most_s and simulator.fits(mode):
            timed = simulator.timed(mode)
            if timed.step_s < at_most_s * 1.05:
                yield timed


def ways_apart(names: Sequence[str]) -> Iterator[list[list[str]]]:
    """Every way to give clusters to islands or leave them out: island 0, 1, ... or none for each."""
    seen = set[frozenset[frozenset[str]]]()
    for given in product(range(len(names) + 1), repeat=len(names)):
        islands = [[name for name, to in zip(names, given, strict=True) if to == k] for k in range(len(names))]
        islands = [island for island in islands if island]
        key = frozenset(map(frozenset, islands))
        if len(islands) > 1 and key not in seen:
            seen.add(key)
            yield islands


def islands_tokens_per_s(
    inventory: Inventory, job: Job, wires: Wires, islands: list[list[str]], cache: dict[object, Found]
) -> float:
    """Tokens a second of these islands, from their best steps and the wires; 0 where a round is too short."""
    assert job.islands is not None
    section, batch, found = job.islands.chosen(), job.global_batch_size // len(islands), list[Found]()
    for clusters in islands:
        key = tuple(clusters), batch
        if key not in cache:
            others = [WithoutHost(host.name) for host in inventory.hosts if host.name[0] not in clusters]
            part = apply_changes(inventory, others)
            alone = job.model_copy(update={"global_batch_size": batch})
            cache[key] = min(best_of_each_mode(part, alone).values(), key=lambda each: each[0])
        found.append(cache[key])
    fastest_s = min(step_s for step_s, *_ in found)
    steps = [int(section.inner_steps * fastest_s / step_s + 1e-6) for step_s, *_ in found]
    if any(n < section.fragments or section.delay_steps > n // section.fragments for n in steps):
        return 0.0
    exchange_s = max(wire_seconds(job, wires, found)) / BOTH_WAYS / section.fragments
    latency_s = most_latency_s(wires, islands)
    fragment_s = exchange_s + latency_s + meeting_s(len(islands), latency_s)
    fragment_s += max(packing_s(job, len(islands), each) for each in found) / section.fragments
    waited_s = section.fragments * max(0.0, fragment_s - section.delay_steps * fastest_s)
    return sum(steps) * batch * job.model.seq_length / (section.inner_steps * fastest_s + waited_s)


def parameters_by_host(job: Job, found: Found) -> dict[str, float]:
    _, ranks, placement = found
    last, dp, tp = placement.candidate.pp - 1, placement.candidate.dp, placement.candidate.tp
    held: dict[str, float] = {}
    for rank in ranks:
        layers = placement.layers[rank.pp_rank]
        whole = stage_parameters(job.model, layers, rank.pp_rank == 0, rank.pp_rank == last, tp)
        held[rank.host] = held.get(rank.host, 0.0) + whole / dp
    return held


def wire_seconds(job: Job, wires: Wires, found: Sequence[Found]) -> Iterator[float]:
    """Of each host's way to an island, of its NIC at its best way's rate, and of each trunk."""
    assert job.islands is not None
    packed = [
        {host: BYTES[job.islands.chosen().codec] * size for host, size in parameters_by_host(job, each).items()}
        for each in found
    ]
    for one, hosts in enumerate(packed):
        others = [each for k, each in enumerate(packed) if k != one]
        for host, size in hosts.items():
            rates = [min(wires.rate[frozenset((host[0], peer[0]))] for peer in other) for other in others]
            yield max(size / min(rates), size * len(others) / max(rates))
        for other in others:
            whole = sum(other.values())
            for here, there in product({host[0] for host in hosts}, {host[0] for host in other}):
                trunk = wires.trunk.get(frozenset((here, there)), inf)
                part = sum(size for host, size in other.items() if host[0] == there) / whole
                yield sum(size for host, size in hosts.items() if host[0] == here) * part / trunk


def most_latency_s(wires: Wires, islands: list[list[str]]) -> float:
    pairs = [(a, b) for one, other in permutations(islands, 2) for a in one for b in other]
    return max(wires.latency_s[frozenset(pair)] for pair in pairs)


def packing_s(job: Job, num_islands: int, found: Found) -> float:
    assert job.islands is not None
    _, ranks, placement = found
    pack, unpack = CPU_S[job.islands.chosen().codec]
    last, dp = placement.candidate.pp - 1, placement.candidate.dp
    sizes = (
        stage_parameters(job.model, placement.layers[r.pp_rank], r.pp_rank == 0, r.pp_rank == last, 1) for r in ranks
    )
    return max(sizes) / dp * (pack + num_islands * unpack)


def enumerated(inventory: Inventory, job: Job, wires: Wires, cache: dict[object, Found]) -> dict[Mode, float]:
    """Tokens a second of every mode at its best."""
    tokens = job.global_batch_size * job.model.seq_length
    together = job.model_copy(update={"islands": None})
    found = {mode: tokens / step_s for mode, (step_s, *_) in best_of_each_mode(inventory, together).items()}
    found["islands"] = best_islands_per_s(inventory, job, wires, cache)
    return found


def best_islands_per_s(inventory: Inventory, job: Job, wires: Wires, cache: dict[object, Found]) -> float:
    ways = ways_apart([cluster.name for cluster in inventory.clusters])
    return max(islands_tokens_per_s(inventory, job, wires, way, cache) for way in ways)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(50))
def test_choice_is_that_of_an_enumeration(seed: int) -> None:
    inventory, job, wires = draw_fleet(seed)
    cache = dict[object, Found]()
    by_mode = enumerated(inventory, job, wires, cache)
    plan = planned_mode(inventory, job)
    chosen: Mode = "islands" if isinstance(plan, IslandsPlan) else MODES[plan.solve.crossing]
    best = max(by_mode.values())
    assert plan.prediction.tokens_per_s == pytest.approx(best, rel=NEAR), (chosen, by_mode)
    assert by_mode[chosen] >= best * (1 - NEAR), (chosen, by_mode)
