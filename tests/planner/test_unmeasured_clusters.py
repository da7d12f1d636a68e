"""Pairs of clusters that no test measured, where others were: named, and priced at the worst measured."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import combinations, product

import pytest

from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job
from holmes_core.records.link import Link, Trunk
from planner.advice.changes import LinkRate
from planner.advice.wire_rates import unmeasured_wire_sentence
from planner.cluster_subset import only_clusters
from planner.problem.networks import Networks
from tests.planner.fleets import GBPS, bed_job, cpu_inventory, plan_for
from tests.planner.fluid_wire import FluidRun
from tests.planner.measured_links import both_ways, measured, with_links, with_trunk
from tests.seeds import seeds

SLOW = 0.04 * GBPS
SITES = cpu_inventory([2, 2, 2], fabric_gbps=100, shared_gbps=1)
WIRE_ONLY = {
    "model": {"num_layers": 12, "hidden_size": 2048, "num_heads": 16, "seq_length": 512},
    "compute": {
        "emulate": {"forward_s_per_layer": 0.02, "backward_s_per_layer": 0.04},
        "overheads": {"action_s": 0.0, "update_bytes_per_s": 1e15, "split_factor": 3.0},
    },
    "global_batch_size": 64,
}


def wire_job(**fixed: object) -> Job:
    """A job with emulated compute, so that only the wire is priced; `fixed` are its parallel keys."""
    return bed_job(**WIRE_ONLY, parallel=fixed)


def between(one: str, other: str, bytes_per_s: float, latency_s: float = 1e-3) -> Iterable[Link]:
    """Links between the hosts of two clusters of `SITES`."""
    ends = ((f"{one}{i}", f"{other}{j}") for i, j in product((1, 2), repeat=2))
    return (way for pair in ends for way in both_ways(measured(pair, bytes_per_s, latency_s)))


HALF = with_links(SITES, *between("a", "b", SLOW))
TRUE = with_links(SITES, *(link for pair in combinations("abc", 2) for link in between(*pair, SLOW)))


@pytest.mark.slow
def test_a_promise_over_unmeasured_clusters_is_what_the_slow_wire_gives() -> None:
    plan = plan_for(HALF, wire_job())
    promised_s = plan.prediction.step_s - plan.prediction.exposed_dp_s - plan.prediction.optimizer_s
    assert promised_s > 2 * 8.1  # what was promised at the rate of the NICs
    assert promised_s == pytest.approx(FluidRun(TRUE, plan).step_s(), rel=0.1)
    assert promised_s <= 1.05 * plan_for(TRUE, wire_job()).prediction.step_s


@pytest.mark.slow
def test_three_stages_over_unmeasured_clusters_take_what_a_fluid_simulation_says() -> None:
    plan = plan_for(HALF, wire_job(pp=6, dp=1))
    assert len({rank.cluster for rank in plan.ranks}) == 3
    assert plan.prediction.step_s == pytest.approx(FluidRun(TRUE, plan).step_s(), rel=0.1)


def test_unmeasured_pairs_of_clusters_are_named_even_if_the_plan_avoids_them() -> None:
    said, *_ = unmeasured_wire_sentence((plan_for(HALF, wire_job(pp=2, dp=1)),), HALF)
    assert said == (
        "Wire not measured (a - c, b - c): counts as the slowest measured between clusters, 40 Mbit/s; "
        "`holmes probe --links` measures it."
    )


def test_an_unmeasured_pair_has_the_least_rate_the_longest_latency_and_the_least_measured_trunk() -> None:
    quick = measured(("a1", "c1"), 2 * SLOW, latency_s=0.03)
    inventory = with_trunk(with_links(SITES, *between("a", "b", SLOW), quick), ("a", "b"), 0.06 * GBPS)
    found = Networks(inventory, bed_job()).connection("b", "c")
    assert found.host_bytes_per_s("b1", GBPS) == SLOW
    assert found.latency_s == 0.03
    assert found.trunk_bytes_per_s == 0.06 * GBPS
    stated = Trunk(clusters=("a", "b"), bandwidth_bytes_per_s=0.06 * GBPS, source="hosts.yaml", pairs=0)
    inventory = inventory.model_copy(update={"trunks": (stated,)})
    assert Networks(inventory, bed_job()).connection("b", "c").trunk_bytes_per_s is None


def test_clusters_measured_at_the_rate_of_their_ports_say_no_more_of_faster_ports() -> None:
    assert SITES.shared is not None
    fast = [port.model_copy(update={"bandwidth_bytes_per_s": 10 * GBPS}) for port in SITES.shared.ports]
    shared = SITES.shared.model_copy(update={"ports": tuple(fast)})
    inventory = with_links(SITES.model_copy(update={"shared": shared}), *between("a", "b", 0.94 * GBPS))
    found = Networks(inventory, bed_job()).connection("b", "c")
    assert found.host_bytes_per_s("c1", 10 * GBPS) == pytest.approx(0.9415 * GBPS, rel=1e-3)
    assert found.host_bytes_per_s("c1", 0.1 * GBPS) == 0.1 * GBPS


def test_without_any_link_between_clusters_ports_give_the_rates() -> None:
    inside = with_links(SITES, measured(("a1", "a2"), SLOW))
    assert Networks(inside, bed_job()).connection("a", "b").host_bytes_per_s("a1", GBPS) == GBPS


@pytest.mark.parametrize("mbps", [20, 100, 2000])
def test_a_what_if_on_an_unmeasured_pair_counts_as_its_rate_and_leaves_measured_pairs_alone(mbps: int) -> None:
    rate = mbps / 1e3 * GBPS
    changed = Networks(LinkRate(("b", "c"), rate).applied_to(HALF), bed_job())
    port = changed.shared_port("c1").bandwidth_bytes_per_s
    assert changed.connection("b", "c").host_bytes_per_s("c1", port) == pytest.approx(0.9415 * rate, rel=2e-3)
    assert changed.connection("a", "b").host_bytes_per_s("a1", port) == SLOW


def test_an_island_of_clusters_without_a_measured_pair_counts_what_others_showed() -> None:
    alone = only_clusters(with_links(SITES, *between("a", "b", SLOW)), ["b", "c"])
    assert Networks(alone, bed_job()).connection("b", "c").host_bytes_per_s("b1", GBPS) == SLOW


@pytest.mark.parametrize("seed", seeds(20, few=0, more=4))
def test_forgotten_pairs_of_clusters_are_planned_as_if_all_were_as_slow_as_the_worst(seed: int) -> None:
    draw = random.Random(seed)
    sites = cpu_inventory([draw.randint(1, 2) for _ in range(draw.choice((3, 4)))], 10, draw.choice((0.5, 1.0)))
    names = [cluster.name for cluster in sites.clusters]
    rates = {pair: draw.choice((0.03, 0.1, 0.3)) * GBPS for pair in combinations(names, 2)}
    kept = draw.sample(sorted(rates), len(rates) // 2)
    job = bed_job(**WIRE_ONLY | {"global_batch_size": 16}, parallel={"pp": len(sites.hosts), "dp": 1})
    forgotten = _linked(sites, {pair: rates[pair] for pair in kept})
    worst = min(rates[pair] for pair in kept)
    filled = _linked(sites, {pair: rates[pair] if pair in kept else worst for pair in rates})
    assert plan_for(forgotten, job).prediction.step_s == pytest.approx(plan_for(filled, job).prediction.step_s)


def _linked(sites: Inventory, rates: dict[tuple[str, str], float]) -> Inventory:
    hosts = {cluster.name: cluster.hosts for cluster in sites.clusters}
    return with_links(
        sites, *(measured(ends, rate) for (a, b), rate in rates.items() for ends in product(hosts[a], hosts[b]))
    )


@pytest.mark.parametrize(("pair", "changed"), [("ab", ()), ("ac", ("ac",))])
def test_a_what_if_on_one_pair_leaves_the_others_that_were_not_measured(pair: str, changed: tuple[str, ...]) -> None:
    fleet = with_links(cpu_inventory([2, 2, 2], 10.0, 1.0), measured(("a1", "b1"), 20e6))
    what_if = LinkRate((pair[0], pair[1]), 50e6).applied_to(fleet)
    networks = Networks(what_if, bed_job())
    for one, other in ("ac", "bc"):
        rate = networks.connection(one, other).fastest_bytes_per_s
        assert (rate == pytest.approx(20e6)) != (one + other in changed)
