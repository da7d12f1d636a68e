"""Uplinks, each shared by all that leaves or enters a cluster: by hand, and against a fluid simulation of the wire."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from itertools import combinations, product
from typing import Any

import pytest
from pydantic import ValidationError

from benchmarks.best_simulated import draw_fleet
from holmes_cli.replan import Replanner
from holmes_cli.screen.show_inventory import trunk_cells
from holmes_core.records.inventory import Inventory
from holmes_core.records.link import Trunk
from holmes_runtime.config.verdicts import LinkIsSlow
from planner.advice.what_if import parse_changes
from planner.cluster_subset import only_clusters
from planner.islands.outer_sync_cost import BOTH_WAYS, QUESTION_S, price_exchange
from planner.islands.uniform_links import with_uniform_links
from planner.problem.coefficients import Coefficients, Crossing
from planner.problem.networks import Networks, SharedWire
from planner.problem.problem import read_problem
from planner.schedule.any_schedule_bound import AnyScheduleBounds
from planner.search.closed_form import SiteBlock, blocks_step_s
from prober.differences import changes
from tests.planner.fleets import GBPS, bed_job, cpu_inventory, plan_for
from tests.planner.fluid_wire import FluidRun
from tests.planner.measured_links import both_ways, measured, with_links, with_trunk
from tests.planner.test_any_schedule_bound import best_by_candidate
from tests.planner.test_closed_form import coeffs
from tests.planner.test_island_rounds import PARAMETERS, island_plans, islands_job
from tests.planner.test_unmeasured_clusters import SITES, WIRE_ONLY, wire_job
from tests.seeds import few_of, seeds


def with_uplinks(inventory: Inventory, gbps: float) -> Inventory:
    """The inventory with an uplink of that line rate, as hosts.yaml states it, for each cluster."""
    uplinks = (
        Trunk(clusters=(cluster.name,), bandwidth_bytes_per_s=gbps * GBPS, source="hosts.yaml", pairs=0)
        for cluster in inventory.clusters
    )
    return inventory.model_copy(update={"trunks": (*inventory.trunks, *uplinks)})


UPLINKS = with_uplinks(SITES, 0.25)  # three sites of two hosts with NICs of 1 Gbit/s
BEST_S = 12.4  # over two sites, by an enumeration on a fluid simulation


@pytest.mark.slow
def test_a_plan_over_uplinks_takes_what_a_fluid_simulation_says_and_two_sites_are_the_best() -> None:
    plan = plan_for(UPLINKS, wire_job())
    fluid_s = FluidRun(UPLINKS, plan).step_s()
    assert plan.prediction.step_s == pytest.approx(fluid_s, rel=0.01)
    assert fluid_s <= 1.05 * BEST_S
    assert len({rank.cluster for rank in plan.ranks}) == 2


@pytest.mark.slow
def test_a_pipeline_over_all_three_sites_shares_the_uplink_of_the_middle_one() -> None:
    plan = plan_for(UPLINKS, wire_job(pp=6, dp=1))
    assert plan.prediction.step_s == pytest.approx(FluidRun(UPLINKS, plan).step_s(), rel=0.01)
    assert plan.prediction.step_s > 1.4 * BEST_S


def drawn(seed: int) -> Inventory:
    """Sites with slow NICs and uplinks, trunks or measured links between some."""
    draw = random.Random(seed)
    sites = cpu_inventory([draw.randint(1, 2) for _ in range(draw.randint(2, 4))], 10, draw.choice((0.3, 1.0)))
    names = [cluster.name for cluster in sites.clusters]
    for name in names:
        if draw.random() < 0.6:
            sites = with_trunk(sites, name, draw.choice((0.05, 0.1, 0.25)) * GBPS)
    for pair in combinations(names, 2):
        if draw.random() < 0.3:
            sites = with_trunk(sites, pair, draw.choice((0.05, 0.1)) * GBPS)
    rate, hosts = draw.choice((0.08, 0.2)) * GBPS, [cluster.hosts for cluster in sites.clusters]
    ends = [ends for pair in combinations(hosts, 2) for ends in product(*pair)]
    links = [way for pair in ends for way in both_ways(measured(pair, rate, 1e-3))]
    return with_links(sites, *links) if draw.random() < 0.5 else sites


@pytest.mark.parametrize("seed", seeds(24, few=range(1, 3), more=3))
def test_a_pipeline_over_drawn_uplinks_and_trunks_takes_what_a_fluid_simulation_says(seed: int) -> None:
    inventory, draw = drawn(seed), random.Random(-1 - seed)
    dp = draw.choice((1, 1, 2)) if len(inventory.hosts) % 2 == 0 else 1
    fixed = {"pp": len(inventory.hosts) // dp, "dp": dp, "schedule": draw.choice(("1f1b", "gpipe", "eager"))}
    plan = plan_for(inventory, bed_job(**WIRE_ONLY | {"global_batch_size": 16}, parallel=fixed))
    promised = plan.prediction
    fluid_s = FluidRun(inventory, plan).step_s()
    assert promised.step_s - promised.exposed_dp_s - promised.optimizer_s == pytest.approx(fluid_s, rel=0.02)


@pytest.mark.parametrize("seed", seeds(12, few=1))
def test_no_way_to_run_a_small_fleet_with_uplinks_comes_below_the_bound(seed: int) -> None:
    inventory, job = draw_fleet(seed)
    draw = random.Random(seed)
    for cluster in inventory.clusters:
        inventory = with_trunk(inventory, (cluster.name,), draw.choice((0.01, 0.1, 1.0)) * GBPS)
    problem = read_problem(inventory, job)
    best = best_by_candidate(problem)
    for candidate, step_s in best.items():
        assert AnyScheduleBounds(problem).candidate_s(candidate) <= step_s
    assert AnyScheduleBounds(problem).least_s(best) <= min(best.values())


def test_the_pace_is_what_all_edges_over_an_uplink_take() -> None:
    # Stages on a, b and c: b's uplink takes 4 s of each of its two edges, so 8 s a micro-batch.
    two = {each.name: getattr(coeffs(), each.name) for each in fields(Coefficients)}
    of_three: dict[str, Any] = {name: (*v, v[1]) for name, v in two.items() if isinstance(v, tuple) and len(v) == 2}
    edge = Crossing(4.0, 0.0, 0.0, 0.0, 0.0)
    crossings = {(0, 1): edge, (1, 2): edge}
    of_three |= {"cluster": (0, 1, 2), "capacity": ((8, 8, 8),) * 3, "crossings": crossings, "uplink_edge_s": {1: 4.0}}
    three = replace(coeffs(pp=3), **of_three)
    blocks = [SiteBlock((0,), (4,)), SiteBlock((1,), (2,)), SiteBlock((2,), (2,))]
    stages_s, edges_s = 4 + 4 + 4.5, 2 * (4 + 4)
    assert blocks_step_s(three, blocks) == 3 * 8 + stages_s + edges_s


def test_an_uplink_is_a_wire_of_all_that_leaves_or_enters_its_cluster() -> None:
    networks = Networks(with_trunk(with_trunk(SITES, "b", 1e6), "ab", 2e6), bed_job())
    assert networks.shared_wires("a", "b") == {SharedWire("a", "b", "trunk"): 2e6, SharedWire("", "b", "uplink"): 1e6}
    assert networks.shared_wires("b", "c") == {SharedWire("b", "", "uplink"): 1e6}
    assert networks.shared_wires("a", "c") == networks.shared_wires("b", "b") == {}
    assert networks.uplinks == {"b": 1e6}


def test_islands_share_the_uplink_of_each_among_all_others() -> None:
    job = islands_job({"codec": "none", "fragments": 1, "delay_steps": 0})
    inventory = with_trunk(with_uniform_links(cpu_inventory([1, 1, 1]), 1e6, 0.05), "b", 1e5)
    exchange = price_exchange(Networks(inventory, job), job, "none", island_plans(inventory, job))
    assert exchange.fragment_s(1) == pytest.approx(
        2 * 4 * PARAMETERS / 1e5 / BOTH_WAYS + 0.05 + 13 * (QUESTION_S + 0.1)
    )


def test_what_if_on_one_cluster_is_its_uplink_even_if_its_name_has_a_dash() -> None:
    (change,) = parse_changes("trunk:b=100Mb/s", SITES)
    assert str(change) == "trunk:b=100Mb/s"
    assert Networks(change.applied_to(SITES), bed_job()).uplinks["b"] == pytest.approx(0.1 * GBPS, rel=0.06)
    clusters = [cluster.model_copy(update={"name": f"{cluster.name}-1"}) for cluster in SITES.clusters]
    (change,) = parse_changes("trunk:b-1=100Mb/s", SITES.model_copy(update={"clusters": tuple(clusters)}))
    assert str(change) == "trunk:b-1=100Mb/s"


@pytest.mark.slow
def test_a_link_slowed_by_an_uplink_is_planned_anew_with_a_slower_uplink() -> None:
    plan = plan_for(UPLINKS, wire_job(pp=4, dp=1))
    anew = Replanner(UPLINKS).after(plan, LinkIsSlow("a2", "b1", ratio=20.0, taken_s=2.0, planned_s=0.1), ())
    assert len({rank.cluster for rank in anew.ranks}) == 2
    assert {rank.cluster for rank in anew.ranks} != {rank.cluster for rank in plan.ranks}


def test_an_uplink_is_shown_as_one_of_its_cluster() -> None:
    (trunk, *_) = UPLINKS.trunks
    assert trunk_cells(trunk) == ("a - all others", "250 Mbit/s", "hosts.yaml")
    (gone,) = changes(with_trunk(SITES, "b", 1e6), SITES)
    assert (gone.subject, gone.fact) == ("b", "uplink")


def test_a_cluster_has_one_uplink() -> None:
    twice = with_uplinks(UPLINKS, 1.0)
    with pytest.raises(ValidationError, match="one between two clusters, or of one, each"):
        Inventory.model_validate(twice.model_dump())
    assert Inventory.model_validate(UPLINKS.model_dump()) == UPLINKS
    assert [trunk.clusters for trunk in only_clusters(UPLINKS, ["a", "c"]).trunks] == [("a",), ("c",)]


@pytest.mark.parametrize("fixed", few_of(1, [{"pp": 1, "dp": 3}, {"pp": 3, "dp": 1}, {}]))
def test_the_uplink_of_a_single_host_costs_what_a_nic_of_that_rate_does(fixed: dict[str, int]) -> None:
    job = bed_job(**WIRE_ONLY | {"global_batch_size": 12}, parallel=fixed)
    behind_nics = plan_for(cpu_inventory([1, 1, 1], 100, 0.1), job)
    behind_uplinks = plan_for(with_uplinks(cpu_inventory([1, 1, 1], 100, 1.0), 0.1), job)
    assert behind_uplinks.prediction.step_s == pytest.approx(behind_nics.prediction.step_s)
    assert behind_uplinks.solve.placement_s == pytest.approx(behind_nics.solve.placement_s)
