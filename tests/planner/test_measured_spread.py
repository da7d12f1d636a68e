"""Wires whose samples differ: the plan says so, and counts the least rate where job.yaml asks for it."""

from __future__ import annotations

from itertools import product

import pytest

from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job
from holmes_core.records.link import Link, Spread
from holmes_core.records.plan import Plan
from planner.advice.advise import advise
from planner.advice.wire_rates import spread_sentence, unmeasured_wire_sentence
from planner.problem.networks import Networks
from tests.planner.fleets import GBPS, UNHURRIED, bed_job, cpu_inventory, plan_for
from tests.planner.fluid_wire import FluidRun
from tests.planner.measured_links import both_ways, measured, with_links
from tests.planner.test_unmeasured_clusters import WIRE_ONLY

SITES = cpu_inventory([2, 2], fabric_gbps=100, shared_gbps=1)
MEDIAN, SLOWEST = 0.2 * GBPS, 0.02 * GBPS


def varying(inventory: Inventory, least: float = SLOWEST, median: float = MEDIAN) -> Inventory:
    """The inventory with links between a and b whose samples differ, as on a wire with jitter."""
    rates = Spread(min=least, median=median)

    def link(hosts: tuple[str, str]) -> Link:
        return measured(hosts, median, 1e-3).model_copy(update={"bandwidth_bytes_per_s": rates})

    return with_links(
        inventory, *(way for ends in product(("a1", "a2"), ("b1", "b2")) for way in both_ways(link(ends)))
    )


def wire_job(cautious: bool) -> Job:
    fixed = {"pp": 4, "dp": 1, "micro_batch_size": 2, "schedule": "1f1b"}
    return bed_job(**WIRE_ONLY | {"global_batch_size": 16}, parallel=fixed, wire={"cautious": cautious})


@pytest.mark.slow
@pytest.mark.parametrize("cautious", [False, True])
def test_a_promise_is_what_the_median_gives_or_the_minimum_where_the_job_is_cautious(cautious: bool) -> None:
    plan = plan_for(varying(SITES), wire_job(cautious))
    counted = varying(SITES, median=SLOWEST) if cautious else varying(SITES)
    assert plan.prediction.step_s == pytest.approx(FluidRun(counted, plan).step_s(), rel=0.05)


def said_of(inventory: Inventory, cautious: bool = False) -> tuple[str, ...]:
    plan: Plan = plan_for(inventory, wire_job(cautious))
    return spread_sentence((plan,), inventory)


def test_minimum_and_median_are_shown_of_a_wire_that_varies() -> None:
    assert said_of(varying(SITES)) == (
        "Wire varies (a - b: minimum 20 Mbit/s, median 200 Mbit/s): the median counts; "
        "`--set wire.cautious=true` plans on the minimum.",
    )
    assert said_of(varying(SITES), cautious=True) == (
        "Wire varies (a - b: minimum 20 Mbit/s, median 200 Mbit/s): the minimum counts, as set by "
        "`wire.cautious` in job.yaml.",
    )


@pytest.mark.slow
def test_a_steady_wire_and_a_network_that_the_plan_does_not_use_are_no_news() -> None:
    assert said_of(varying(SITES, least=0.7 * MEDIAN)) == ()
    plan = plan_for(SITES, bed_job(parallel={"pp": 2, "dp": 1}))
    assert {rank.cluster for rank in plan.ranks} == {"a"}
    assert spread_sentence((plan,), varying(SITES)) == ()


def test_a_cautious_job_names_a_wire_that_varies_even_if_the_plan_does_not_use_it() -> None:
    plan = plan_for(varying(SITES), bed_job(parallel={"pp": 2, "dp": 1}, wire={"cautious": True}))
    assert {rank.cluster for rank in plan.ranks} == {"a"}
    (said,) = spread_sentence((plan,), varying(SITES))
    assert said.startswith("Wire varies (a - b: ")


@pytest.mark.slow
def test_advice_on_codecs_stays_cautious() -> None:
    gains = [
        {gain.codec: gain.step_s for gain in advise(inventory, plan_for(inventory, job), {}, UNHURRIED).codecs}
        for inventory, job in ((varying(SITES), wire_job(True)), (varying(SITES, median=SLOWEST), wire_job(False)))
    ]
    assert gains[0] == pytest.approx(gains[1])
    assert gains[0]


@pytest.mark.slow
def test_the_network_that_varies_most_is_named_and_the_others_counted() -> None:
    inside = measured(("a1", "a2"), 10 * GBPS).model_copy(
        update={"bandwidth_bytes_per_s": Spread(min=5 * GBPS, median=10 * GBPS)}
    )
    inventory = varying(SITES)
    (said,) = said_of(inventory.model_copy(update={"links": (*inventory.links, inside)}))
    assert said.startswith("Wire varies (a - b: minimum 20 Mbit/s, median 200 Mbit/s; and 1 more): ")


@pytest.mark.slow
def test_clusters_that_no_test_measured_count_the_least_sample_of_others_where_the_job_is_cautious() -> None:
    three = varying(cpu_inventory([2, 2, 1], fabric_gbps=100, shared_gbps=1))
    for cautious, rate in ((False, MEDIAN), (True, SLOWEST)):
        job = wire_job(cautious)
        assert Networks(three, job).connection("b", "c").host_bytes_per_s("c1", GBPS) == rate
        said, *_ = unmeasured_wire_sentence((plan_for(three, job),), three)
        assert f"measured between clusters, {20 if cautious else 200} Mbit/s" in said
