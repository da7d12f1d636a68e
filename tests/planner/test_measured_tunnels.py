"""What `holmes probe --links` measured in WireGuard tunnels, and what the plan makes of it."""

from __future__ import annotations

import json

import pytest

from holmes_core.records.inventory import Inventory
from holmes_core.records.link import Link, Security
from planner.advice.changes import LinkRate, apply_changes
from planner.cost.collectives import tcp_payload_share, tunnel_payload_share
from planner.problem.connections import encryption_limits
from planner.problem.networks import Networks
from tests.planner.fleets import GBPS, bed_job, cpu_inventory
from tests.planner.measured_links import measured, with_links

SHARE = tunnel_payload_share(1500) / tcp_payload_share(1500)
FLEET = cpu_inventory([2, 2], shared_gbps=10.0)
PAYLOAD = 10 * GBPS * tcp_payload_share(1500)
ACROSS = measured(("a1", "b1"), PAYLOAD, 1e-3)


def in_tunnel(hosts: tuple[str, str], bytes_per_s: float, latency_s: float = 1e-3) -> Link:
    return measured(hosts, bytes_per_s, latency_s).model_copy(update={"tunnel": True})


def encrypting(*links: Link, tunnel_gbps: float | None = None, fleet: Inventory = FLEET) -> Inventory:
    security = Security(between_clusters="wireguard", tunnel_gbps=tunnel_gbps)
    return with_links(fleet, *links).model_copy(update={"security": security})


def rates(inventory: Inventory, hosts: tuple[str, str] = ("a1", "b1")) -> tuple[float | None, ...]:
    return Networks(inventory, bed_job()).route(hosts).bandwidths


def test_a_host_gets_in_the_tunnel_what_was_measured_there() -> None:
    assert rates(encrypting(ACROSS, in_tunnel(("a1", "b1"), 2 * GBPS))) == pytest.approx((2 * GBPS, 2 * GBPS))


def test_of_streams_the_best_counts_and_of_directions_the_slower() -> None:
    slow, fast = in_tunnel(("a1", "b1"), GBPS), in_tunnel(("a1", "b1"), 3 * GBPS).model_copy(update={"streams": 4})
    back = in_tunnel(("a1", "b1"), 2 * GBPS).model_copy(update={"direction": "backward"})
    clear_back = ACROSS.model_copy(update={"direction": "backward"})
    assert encryption_limits(encrypting(ACROSS, slow, fast)) == dict.fromkeys(("a1", "a2", "b1", "b2"), 3 * GBPS)
    assert encryption_limits(encrypting(ACROSS, clear_back, slow, fast, back))["a1"] == 2 * GBPS


def test_each_host_has_its_own_limit_and_one_that_was_not_tried_the_least() -> None:
    pairs = {("a1", "b1"): 2 * GBPS, ("a2", "b1"): 4 * GBPS}
    links = [link for pair, rate in pairs.items() for link in (measured(pair, PAYLOAD), in_tunnel(pair, rate))]
    assert encryption_limits(encrypting(*links)) == {"a1": 2 * GBPS, "a2": 4 * GBPS, "b1": 2 * GBPS, "b2": 2 * GBPS}
    assert rates(encrypting(*links), ("a2", "b2")) == pytest.approx((4 * GBPS, 2 * GBPS))


def test_where_the_way_is_full_encryption_is_not_the_limit() -> None:
    """A slow way to one cluster says nothing of what the host encrypts toward another."""
    fleet = cpu_inventory([1, 1, 1], shared_gbps=10.0)
    slow, fast = 0.1 * GBPS, PAYLOAD
    links = [measured(("a1", "b1"), slow), in_tunnel(("a1", "b1"), 0.95 * slow * SHARE)]
    links += [measured(("a1", "c1"), fast), in_tunnel(("a1", "c1"), 0.95 * fast * SHARE)]
    inventory = encrypting(*links, fleet=fleet)
    assert encryption_limits(inventory) == {}
    assert rates(inventory) == pytest.approx((slow * SHARE, slow * SHARE))
    assert rates(inventory, ("a1", "c1")) == pytest.approx((fast * SHARE, fast * SHARE))


@pytest.mark.parametrize(("stated_gbps", "limit"), [(1.0, GBPS), (3.0, 2 * GBPS)])
def test_of_stated_and_measured_the_smaller_counts(stated_gbps: float, limit: float) -> None:
    inventory = encrypting(ACROSS, in_tunnel(("a1", "b1"), 2 * GBPS), tunnel_gbps=stated_gbps)
    assert rates(inventory) == pytest.approx((limit, limit))


def test_a_way_faster_than_its_ports_are_said_to_be_is_limited_too() -> None:
    fleet = cpu_inventory([2, 2], shared_gbps=1.0)
    links = measured(("a1", "b1"), 5 * GBPS), in_tunnel(("a1", "b1"), 2 * GBPS)
    assert rates(encrypting(*links, fleet=fleet)) == pytest.approx((2 * GBPS, 2 * GBPS))


def test_messages_take_as_long_as_they_took_in_the_tunnel() -> None:
    links = ACROSS, in_tunnel(("a1", "b1"), 2 * GBPS, 3e-3)
    assert Networks(encrypting(*links), bed_job()).latency_s(("a", "b")) == 3e-3
    assert Networks(with_links(FLEET, *links), bed_job()).latency_s(("a", "b")) == 1e-3


def test_in_the_clear_nobody_takes_a_tunnels_figure_for_the_wires() -> None:
    clear, both = with_links(FLEET, ACROSS), with_links(FLEET, ACROSS, in_tunnel(("a1", "b1"), GBPS, 3e-3))
    assert Networks(both, bed_job()).connection("a", "b") == Networks(clear, bed_job()).connection("a", "b")
    assert rates(with_links(FLEET, in_tunnel(("a1", "b1"), GBPS))) == rates(FLEET)


def test_a_faster_link_leaves_what_encryption_limits_and_frees_what_the_old_link_limited() -> None:
    by_hosts = encrypting(measured(("a1", "b1"), GBPS), in_tunnel(("a1", "b1"), 0.2 * GBPS))
    by_wire = encrypting(measured(("a1", "b1"), GBPS), in_tunnel(("a1", "b1"), 0.95 * GBPS * SHARE))
    faster = LinkRate(("a", "b"), 5 * GBPS)
    assert rates(apply_changes(by_hosts, [faster])) == pytest.approx((0.2 * GBPS, 0.2 * GBPS))
    payload = 5 * GBPS * tunnel_payload_share(1500)
    assert rates(apply_changes(by_wire, [faster])) == pytest.approx((payload, payload))


def test_an_inventory_of_before_tunnels_were_measured_is_read_and_has_its_digest() -> None:
    inventory = with_links(cpu_inventory([1, 1]), measured(("a1", "b1"), 5e6, 1e-3))
    older = json.loads(inventory.model_dump_json())
    for link in older["links"]:
        del link["tunnel"]
    read = Inventory.model_validate(older)
    assert read == inventory
    assert read.digest() == "sha256:999c85ae5c323ac26acdd29d66b36192a5c710b4497569b81b3fca6ef2638551"
