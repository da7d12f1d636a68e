"""The fastest mode that job.yaml allows, by predicted seconds per token, and the cost of all modes."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import get_args

from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.measured_networks import relayed_pairs
from holmes_core.records.inventory import Inventory
from holmes_core.records.islands import BestMode, Mode, ModePrice, Modes, island_name
from holmes_core.records.job import Job
from holmes_core.records.plan import (
    TUNNEL_NETDEV,
    IslandsPlan,
    Node,
    Plan,
    SourceFile,
    TunnelHub,
    tunnel_address,
)
from holmes_core.units import bytes_per_s_from_mbps, format_seconds
from planner.cluster_subset import only_clusters
from planner.cost.counts import outer_bytes
from planner.islands.faster_islands import find_slower_by, longer_round
from planner.islands.island_plans import IslandPlans, own_data, plan_islands
from planner.islands.island_rounds import IslandRound
from planner.islands.ordinary_modes import ModePlacement, fastest_of_each, find_placements, price_placement
from planner.islands.setting_choice import setting_prices
from planner.islands.uniform_links import with_uniform_links
from planner.layout.reprice import reprice
from planner.problem.problem import read_problem
from planner.time_left import TimeLeft
from planner.tolerances import RELATIVE_TOLERANCE

BANDWIDTHS_MBPS = (1.0, 10.0, 100.0, 1_000.0, 10_000.0, 100_000.0)
LATENCIES_S = (1e-4, 1e-3, 1e-2, 1e-1)
OF_THE_TIME = 0.4  # for the plan of all hosts as one, and again for the plans of islands

MakeOrdinary = Callable[[Job, float], Plan]
"""A function that returns the plan of a job without islands, within a number of seconds."""


@dataclass(frozen=True)
class _ModePlacements:
    """All placements found, to be priced on any network."""

    inventory: Inventory
    together: Job
    ordinary: tuple[ModePlacement, ...]
    islands: IslandPlans


def plan_mode(
    inventory: Inventory,
    job: Job,
    sources: tuple[SourceFile, SourceFile],
    make_ordinary: MakeOrdinary,
    time_limit_s: float,
    tell: Callable[[str], None],
) -> Plan | IslandsPlan:
    """Return the plan of the fastest mode, with the prices of all modes. Islands must be faster than every other mode.

    Raises:
        HolmesError: No mode has a plan. It states why hosts cannot train as one, then why they cannot train apart.
    """
    _check_own_data(inventory, job)
    left, together = TimeLeft(time_limit_s), job.model_copy(update={"islands": None})
    ordinary = _plan_as_one(job, make_ordinary, together, OF_THE_TIME * left.seconds)
    islands = plan_islands(inventory, job, sources, OF_THE_TIME * time_limit_s, tell)
    best = islands.best_round()
    planned = ordinary if isinstance(ordinary, Plan) else None
    as_one_per_s = planned.prediction.tokens_per_s if planned is not None else 0.0
    is_apart = isinstance(best, IslandRound) and best.cost.tokens_per_s > as_one_per_s * (1 + RELATIVE_TOLERANCE)
    if isinstance(ordinary, HolmesError) and not is_apart:
        why = best if isinstance(best, str) else ""
        raise HolmesError(f"{ordinary.what}; and as islands: {why}", ordinary.hint, ordinary.exit_code)
    now_per_s = best.cost.tokens_per_s if is_apart and isinstance(best, IslandRound) else as_one_per_s
    slower_by = find_slower_by(islands, sources, now_per_s, OF_THE_TIME * left.seconds, tell)
    as_one = () if own_data(job) else find_placements(inventory, together, planned, left.seconds, tell)
    known = _ModePlacements(inventory, together, tuple(as_one), islands)
    modes = _modes(known, best, ordinary).model_copy(update={"slower_by": slower_by})
    if isinstance(best, IslandRound) and is_apart:
        return _written(inventory, job, sources, best, modes)
    assert isinstance(ordinary, Plan)
    return ordinary.model_copy(update={"modes": modes})


def _check_own_data(inventory: Inventory, job: Job) -> None:
    """Raise HolmesError if data belongs to a cluster that the inventory lacks."""
    known = [cluster.name for cluster in inventory.clusters]
    for (name,) in own_data(job):
        if name not in known:
            raise HolmesError(
                f"islands.data is for cluster {name}, the inventory has {', '.join(known)}",
                "name the clusters as the inventory does",
            )


def _plan_as_one(job: Job, make: MakeOrdinary, together: Job, time_limit_s: float) -> Plan | HolmesError:
    """Return the plan, or its error, since hosts that cannot train as one may still train as islands."""
    if names := [name for (name,) in sorted(own_data(job))]:
        return HolmesError(
            f"islands.data keeps the data of {' and '.join(names)} there, so hosts cannot train as one",
            "leave islands.data out if data may leave",
        )
    try:
        return make(together, time_limit_s)
    except HolmesError as error:
        return error


def _written(
    inventory: Inventory, job: Job, sources: tuple[SourceFile, SourceFile], best: IslandRound, modes: Modes
) -> IslandsPlan:
    """Return the plan of islands, each with its steps in as many rounds as the job's samples fill.

    All settings are fixed in the islands' jobs.
    """
    settings = replace(best.settings, inner_steps=max(best.inner_steps))
    job = job.model_copy(update={"islands": settings.as_settings()})
    samples = sum(n * plan.job.global_batch_size for n, plan in zip(best.inner_steps, best.plans, strict=True))
    rounds = -(-job.steps * job.global_batch_size // samples)
    islands = _in_one_tunnel(
        _with_job(inventory, plan, _island_job(job, plan.job, island_name(k), steps, rounds))
        for k, (plan, steps) in enumerate(zip(best.plans, best.inner_steps, strict=True))
    )
    return IslandsPlan(
        inventory=sources[0],
        job_source=sources[1],
        job=job,
        rounds=rounds,
        islands=islands,
        prediction=best.cost,
        modes=modes,
        tunnel_hub=_tunnel_hub(inventory, islands),
    )


def _tunnel_hub(inventory: Inventory, islands: Sequence[Plan]) -> TunnelHub | None:
    """Return the tunnel's hub; None if none is needed. It has its own node unless it is part of an island."""
    name, nodes = inventory.security.tunnel_hub, [node for plan in islands for node in plan.nodes]
    relayed = [pair for pair in relayed_pairs(inventory) if pair <= {node.cluster for node in nodes}]
    port = inventory.shared.port_of(name) if inventory.shared is not None and name is not None else None
    if name is None or not relayed:
        return None
    if port is None or port.address is None:
        raise HolmesError(
            f"host {name}, the tunnel's hub, has no address on the network that all hosts share",
            f"make `holmes probe` reach it, or leave security.tunnel_hub out of hosts.yaml where {name} is not needed",
            ANSWER_IS_NO,
        )
    apart = Node(
        node_rank=0,
        host=name,
        cluster=next(cluster.name for cluster in inventory.clusters if name in cluster.hosts),
        access=inventory.host(name).access,
        num_ranks=0,
        shared_netdev=TUNNEL_NETDEV,
        shared_address=tunnel_address(len(nodes)),
        tunnel_endpoint=port.address,
        environment=(),
    )
    node = next((node for node in nodes if node.host == name), apart)
    pairs = sorted((min(pair), max(pair)) for pair in relayed)
    return TunnelHub(node=node, address=inventory.security.tunnel_hub_address or port.address, relayed=tuple(pairs))


def _in_one_tunnel(islands: Iterable[Plan]) -> tuple[Plan, ...]:
    """Return the plans with each host's address in the tunnel that joins all of them, if traffic is encrypted."""
    addresses, moved = map(tunnel_address, count()), list[Plan]()
    for plan in islands:
        if plan.nodes[0].tunnel_endpoint is not None:
            nodes = tuple(node.model_copy(update={"shared_address": next(addresses)}) for node in plan.nodes)
            plan = plan.model_copy(update={"nodes": nodes})
        moved.append(plan)
    return tuple(moved)


def _with_job(inventory: Inventory, plan: Plan, job: Job) -> Plan:
    """Return the plan with another job, and the host memory that the job's islands settings take."""
    changed = plan.model_copy(update={"job": job})
    if plan.job.islands is None or job.islands is None or outer_bytes(plan.job.islands) == outer_bytes(job.islands):
        return changed
    needed = reprice(only_clusters(inventory, {rank.cluster for rank in plan.ranks}), changed).host_memory_bytes
    return changed.model_copy(update={"prediction": plan.prediction.model_copy(update={"host_memory_bytes": needed})})


def _island_job(job: Job, planned: Job, name: str, inner_steps: int, rounds: int) -> Job:
    """Return the job of an island: its own batch and data as planned, and its inner steps per round.

    The learning rate warms up over the same fraction of the training. Checkpoints are in a folder of the island's own.
    """
    assert job.islands is not None
    steps = rounds * inner_steps
    warmup = round(job.optimizer.warmup_steps * steps / job.steps)
    checkpoint = job.checkpoint
    if checkpoint is not None:
        checkpoint = replace(checkpoint, path=posixpath.join(checkpoint.path, name))
    profile = job.profile if job.profile and job.profile.after + job.profile.steps <= steps else None
    return job.model_copy(
        update={
            "data": planned.data,
            "global_batch_size": planned.global_batch_size,
            "steps": steps,
            "islands": replace(job.islands, inner_steps=inner_steps, data={}),
            "optimizer": replace(job.optimizer, warmup_steps=warmup),
            "checkpoint": checkpoint,
            "profile": profile,
        }
    )


def _modes(known: _ModePlacements, best: IslandRound | str, ordinary: Plan | HolmesError) -> Modes:
    """Return the modes on the present networks, fastest first, and the fastest mode on each other network."""
    problem = read_problem(known.inventory, known.together)
    fastest = fastest_of_each(problem, known.ordinary)
    prices = {mode: price_placement(problem, placement) for mode, (_, placement) in fastest.items()}
    prices["islands"] = _islands_price(best)
    nothing = ordinary.what if isinstance(ordinary, HolmesError) else "no placement of it was found that comes near"
    missing = (ModePrice(mode=mode, why=nothing) for mode in get_args(Mode) if mode not in prices)
    ranked = sorted((*prices.values(), *missing), key=lambda price: -(price.tokens_per_s or 0.0))
    longer = longer_round(known.islands, ranked[0].tokens_per_s or 0.0)
    chosen = best if isinstance(best, IslandRound) else None
    settings = tuple(setting_prices(known.islands.own_rounds[0], chosen))
    return Modes(prices=tuple(ranked), settings=settings, longer_round=longer, by_network=tuple(_by_network(known)))


def _islands_price(best: IslandRound | str) -> ModePrice:
    if isinstance(best, str):
        return ModePrice(mode="islands", why=best)
    cost, clusters = best.cost, (rank.cluster for plan in best.plans for rank in plan.ranks)
    waited = f"it waits for the exchange for {format_seconds(cost.exposed_s)} of {format_seconds(cost.round_s)}"
    return ModePrice(
        mode="islands",
        clusters=tuple(dict.fromkeys(clusters)),
        seconds=cost.round_s,
        tokens_per_s=cost.tokens_per_s,
        across_bytes=sum(cost.sent_bytes),
        why=waited if cost.exposed_s else "its exchange is hidden by inner steps",
    )


def _by_network(known: _ModePlacements) -> Iterator[BestMode]:
    """Yield the fastest mode for each rate and latency between clusters. Islands must be faster than all others."""
    if len(known.inventory.clusters) < 2 or known.inventory.shared is None:
        return
    for mbps in BANDWIDTHS_MBPS:
        for latency_s in LATENCIES_S:
            rate = bytes_per_s_from_mbps(mbps)
            found = _tokens_per_s(known, with_uniform_links(known.inventory, rate, latency_s))
            if found:
                yield _best_mode(rate, latency_s, sorted(found.items(), key=lambda each: -each[1]))


def _best_mode(rate: float, latency_s: float, ranked: Sequence[tuple[Mode, float]]) -> BestMode:
    (mode, tokens_per_s), *others = ranked
    over_next = tokens_per_s / others[0][1] if others else None
    return BestMode(
        bandwidth_bytes_per_s=rate, latency_s=latency_s, mode=mode, tokens_per_s=tokens_per_s, over_next=over_next
    )


def _tokens_per_s(known: _ModePlacements, inventory: Inventory) -> dict[Mode, float]:
    """Return the tokens/s of each possible mode on the networks of `inventory`."""
    job, problem = known.together, read_problem(inventory, known.together)
    tokens = job.global_batch_size * job.model.seq_length
    found = {mode: tokens / step_s for mode, (step_s, _) in fastest_of_each(problem, known.ordinary).items()}
    best = known.islands.best_round_on(inventory)
    if isinstance(best, IslandRound):
        found["islands"] = best.cost.tokens_per_s * (1 - RELATIVE_TOLERANCE)
    return found
