"""A plan that crosses networks without a test of them says so; measured, stated and loopback ones are no news."""

from __future__ import annotations

from holmes_core.records.inventory import Inventory
from planner.advice.wire_rates import unmeasured_wire_sentence
from tests.planner.fleets import GBPS, bed_job, cpu_inventory, plan_for
from tests.planner.measured_links import measured, with_links, with_trunk
from tests.planner.test_time_limit import alone

FLEET = cpu_inventory([2, 2])
ACROSS = [measured((f"a{n}", f"b{n}"), 0.1 * GBPS) for n in (1, 2)]
INSIDE = [measured((f"{name}1", f"{name}2"), 2 * GBPS) for name in "ab"]


def sentence(inventory: Inventory) -> str:
    plan = plan_for(inventory, bed_job(parallel={"pp": 2, "dp": 2}))
    return " ".join(unmeasured_wire_sentence((plan,), inventory))


def test_networks_that_were_not_measured_are_named() -> None:
    assert sentence(FLEET).startswith("Wire not measured (a - b, inside a and b): ")
    assert sentence(with_links(FLEET, *ACROSS, INSIDE[0])).startswith("Wire not measured (inside b): ")


def test_a_plan_whose_networks_were_all_measured_says_nothing() -> None:
    assert sentence(with_links(FLEET, *ACROSS, *INSIDE)) == ""


def test_hosts_that_were_in_no_measured_pair_are_named() -> None:
    said = sentence(with_links(FLEET, measured(("a1", "b1"), 0.01 * GBPS), *INSIDE))
    assert said == "In no measured pair: a2, b2; each counts as slow as the slowest measured host."


def test_a_trunk_counts_as_known() -> None:
    assert sentence(with_trunk(with_links(FLEET, *INSIDE), ("a", "b"), 0.1 * GBPS)) == ""


def test_a_loopback_is_no_wire() -> None:
    clusters = tuple(
        each.model_copy(update={"fabric": each.fabric.model_copy(update={"kind": "loopback"})})
        for each in FLEET.clusters
    )
    assert sentence(FLEET.model_copy(update={"clusters": clusters})) == ""


def test_clusters_that_exchange_as_islands_cross_too() -> None:
    islands = [plan_for(each, bed_job(parallel={"pp": 2, "dp": 1})) for each in alone(FLEET)]
    assert any("a - b" in each for each in unmeasured_wire_sentence(islands, FLEET))
