"""Clusters that only a tunnel's hub joins: their rates, what all of them share, and the plans that they allow."""

from __future__ import annotations

import pytest

from holmes_core.errors import HolmesError
from holmes_core.measured_networks import measured_networks, relayed_pairs
from holmes_core.records.inventory import Inventory
from holmes_core.records.link import Link, Security
from holmes_core.records.plan import IslandsPlan, Plan
from planner.advice.left_out import left_out_sentences
from planner.cost.collectives import tcp_payload_share, tunnel_payload_share
from planner.islands.outer_sync_cost import BOTH_WAYS, price_exchange
from planner.layout.verify import verify
from planner.problem.networks import Networks, SharedWire
from tests.planner.fleets import GBPS, bed_job, cpu_inventory, plan_for
from tests.planner.islands_jobs import planned_mode
from tests.planner.measured_links import both_ways, with_links
from tests.planner.test_island_rounds import island_plans, islands_job
from tests.planner.test_measured_tunnels import in_tunnel

AT_PORT = 0.1 * GBPS * tunnel_payload_share(1500)  # of cpu_inventory's shared ports
HUB = SharedWire("", "", "hub")


def relaying(inventory: Inventory, hub: str, *links: Link, address: str | None = None) -> Inventory:
    security = Security(between_clusters="wireguard", tunnel_hub=hub, tunnel_hub_address=address)
    return with_links(inventory, *links).model_copy(update={"security": security})


def with_idle(inventory: Inventory, name: str) -> Inventory:
    """The inventory with a host that is to train nothing."""
    hosts = [each.model_copy(update={"gpus_stated": ()}) if each.name == name else each for each in inventory.hosts]
    return inventory.model_copy(update={"hosts": tuple(hosts)})


def pairs(*names: str) -> frozenset[frozenset[str]]:
    return frozenset(map(frozenset, names))


def test_without_a_measured_tunnel_between_hosts_that_are_no_hub_a_pair_is_relayed() -> None:
    fleet = cpu_inventory([2, 1, 1])
    assert relayed_pairs(fleet) == frozenset()
    assert relayed_pairs(relaying(fleet, "c1")) == pairs("ab")
    assert relayed_pairs(relaying(fleet, "c1", in_tunnel(("a1", "b1"), GBPS))) == frozenset()
    to_hub = in_tunnel(("a1", "b1"), GBPS)
    assert relayed_pairs(relaying(fleet, "a1", to_hub)) == pairs("ab", "ac", "bc")
    assert relayed_pairs(relaying(fleet, "a1", to_hub, in_tunnel(("a2", "b1"), GBPS))) == pairs("ac", "bc")


def test_a_relayed_pair_is_measured_once_both_ways_to_the_hub_are() -> None:
    fleet, one, other = cpu_inventory([1, 1, 1]), in_tunnel(("a1", "c1"), GBPS), in_tunnel(("b1", "c1"), GBPS)
    assert measured_networks(relaying(fleet, "c1", one)) == pairs("ac")
    assert measured_networks(relaying(fleet, "c1", one, other)) == pairs("ac", "bc", "ab")


def test_a_path_through_the_hub_is_as_slow_as_the_slower_way_and_as_late_as_both() -> None:
    links = [
        *both_ways(in_tunnel(("a1", "c1"), 0.01 * GBPS, 0.02)),
        *both_ways(in_tunnel(("b1", "c1"), 0.04 * GBPS, 0.03)),
    ]
    networks = Networks(relaying(cpu_inventory([1, 1, 1]), "c1", *links), bed_job())
    joined = networks.connection("a", "b")
    assert joined.latency_s == pytest.approx(0.05)
    assert joined.host_bytes_per_s("a1", AT_PORT) == pytest.approx(0.01 * GBPS)
    assert joined.host_bytes_per_s("b1", AT_PORT) == pytest.approx(0.04 * GBPS)
    assert joined.others.bytes_per_s == pytest.approx(0.01 * GBPS)
    assert networks.shared_wires("a", "b")[HUB] == pytest.approx(0.04 * GBPS)
    assert HUB not in networks.shared_wires("a", "c")


def test_without_measurements_ports_limit_and_all_relayed_bytes_share_the_hubs() -> None:
    inventory = with_idle(relaying(cpu_inventory([1, 1, 1, 1]), "d1"), "d1")
    job = islands_job({"codec": "none", "fragments": 1, "delay_steps": 0})
    networks = Networks(inventory, job)
    assert networks.shared_wires("a", "b") == {HUB: pytest.approx(AT_PORT)}
    plans = island_plans(cpu_inventory([1, 1, 1]), job)
    direct = price_exchange(Networks(cpu_inventory([1, 1, 1]), job), job, "none", plans)
    relayed = price_exchange(networks, job, "none", plans)
    assert relayed.sent_bytes == direct.sent_bytes
    by_port, by_hub = direct.sent_bytes[0], sum(direct.sent_bytes)  # three islands by one port
    clear = 0.1 * GBPS * tcp_payload_share(1500)
    extra_s = (by_hub / AT_PORT - by_port / clear) / BOTH_WAYS
    assert relayed.busy_s - direct.busy_s == pytest.approx(extra_s)


@pytest.mark.parametrize("hub", ["a1", "c1"])
def test_islands_cross_by_the_hub_and_other_plans_stay_in_one_cluster(hub: str) -> None:
    inventory = with_idle(relaying(cpu_inventory([2, 1, 1]), hub, address="203.0.113.7"), "c1")
    plan = planned_mode(inventory, islands_job({}))
    assert isinstance(plan, IslandsPlan)
    assert plan.tunnel_hub is not None
    assert (plan.tunnel_hub.node.host, plan.tunnel_hub.address) == (hub, "203.0.113.7")
    assert {*map(frozenset, plan.tunnel_hub.relayed)} >= pairs("ab")
    numbered = [node.shared_address for nodes in plan.tunnel_nodes for node in nodes]
    assert numbered == [f"198.18.0.{number}" for number in range(1, len(numbered) + 1)]
    assert len(plan.tunnel_nodes) == (2 if hub == "a1" else 3)
    alone = plan_for(inventory, bed_job(parallel={}))
    assert isinstance(alone, Plan)
    assert {rank.cluster for rank in alone.ranks} == {"a"}
    assert verify(alone, inventory) == []


def test_a_host_that_is_to_train_nothing_has_no_rank() -> None:
    plan = plan_for(with_idle(cpu_inventory([2]), "a2"), bed_job(parallel={}))
    assert {rank.host for rank in plan.ranks} == {"a1"}


def test_hosts_behind_the_hub_are_left_out_for_it_and_an_idle_hub_is_not_mentioned() -> None:
    inventory = with_idle(relaying(cpu_inventory([2, 1, 1]), "c1"), "c1")
    (sentence,) = left_out_sentences(plan_for(inventory, bed_job(parallel={})), inventory)
    assert sentence == "Left out: b1: c1 relays the tunnel between islands only, and a alone is the fastest."


def test_islands_that_reach_each_other_need_no_hub() -> None:
    path = in_tunnel(("a1", "b1"), 1e5, 0.02)
    inventory = with_idle(relaying(cpu_inventory([1, 1, 1]), "c1", path), "c1")
    plan = planned_mode(inventory, islands_job({}))
    assert isinstance(plan, IslandsPlan)
    assert plan.tunnel_hub is None


def test_a_hub_that_the_probe_did_not_reach_is_an_error_that_names_it() -> None:
    with pytest.raises(HolmesError, match="host z1, the tunnel's hub, has no address") as error:
        planned_mode(relaying(cpu_inventory([1, 1]), "z1"), islands_job({}))
    assert "holmes probe" in error.value.hint
