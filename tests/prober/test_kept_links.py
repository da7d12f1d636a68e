"""What a probe without `--links` keeps of an older one's measurements, and how the two differ."""

from __future__ import annotations

from holmes_core.records.inventory import Inventory
from prober.differences import changes
from prober.kept_links import with_kept_links
from prober.links.link_estimate import estimate_s
from tests.planner.fleets import GBPS, cpu_inventory, netdev
from tests.planner.measured_links import measured, with_links, with_trunk

FLEET = cpu_inventory([2, 2])
LINKS = tuple(
    link.model_copy(update={"measured_at_s": 1000.0})
    for link in (measured(("a1", "a2"), 2 * GBPS), measured(("a1", "b1"), 0.1 * GBPS))
)
OLDER = with_trunk(with_links(FLEET, *LINKS), ("a", "b"), 0.1 * GBPS)


def renumbered(inventory: Inventory, name: str) -> Inventory:
    """The inventory with another address on a host's eth1."""
    hosts = [
        host.model_copy(update={"netdevs": (host.netdevs[0], netdev("eth1", "10.99.0.1/24", 2.0))})
        if host.name == name
        else host
        for host in inventory.hosts
    ]
    return inventory.model_copy(update={"hosts": tuple(hosts)})


def test_measurements_between_unchanged_hosts_are_kept_with_their_time() -> None:
    kept = with_kept_links(OLDER, FLEET)
    assert kept.lost is None
    assert kept.inventory.links == LINKS
    assert kept.inventory.trunks == OLDER.trunks
    assert kept.inventory.source_digest() == with_kept_links(OLDER, kept.inventory).inventory.source_digest()


def test_a_host_with_another_address_loses_its_measurements_and_it_is_said() -> None:
    kept = with_kept_links(OLDER, renumbered(FLEET, "b1"))
    assert kept.inventory.links == LINKS[:1]
    assert kept.inventory.trunks == ()
    assert kept.lost is not None
    assert kept.lost.startswith("1 measured link is gone: b1 ")


def test_a_host_that_did_not_answer_loses_its_measurements() -> None:
    hosts = tuple(host.model_copy(update={"reachable": host.name != "a1"}) for host in FLEET.hosts)
    clusters = tuple(
        each.model_copy(update={"hosts": tuple(name for name in each.hosts if name != "a1")}) for each in FLEET.clusters
    )
    kept = with_kept_links(OLDER, FLEET.model_copy(update={"hosts": hosts, "clusters": clusters}))
    assert kept.inventory.links == ()
    assert kept.lost is not None
    assert kept.lost.startswith("2 measured links are gone: a1 ")


def test_differences_show_links_and_trunks_that_came_went_or_changed() -> None:
    slower = with_links(FLEET, measured(("a1", "a2"), 1 * GBPS), measured(("a2", "b2"), 0.1 * GBPS))
    found = {each.subject: [value for value, _ in each.values] for each in changes(OLDER, slower)}
    assert found == {
        "a1 -> a2": ["2 Gbit/s", "1 Gbit/s"],
        "a1 -> b1": ["100 Mbit/s", "not measured"],
        "a2 -> b2": ["not measured", "100 Mbit/s"],
        "a - b": ["100 Mbit/s", "not measured"],
    }
    assert changes(OLDER, OLDER) == ()


def test_a_measured_uplink_is_kept_with_the_links_of_its_cluster() -> None:
    older = with_trunk(with_links(FLEET, *LINKS), ("b",), 0.1 * GBPS)
    without = older.model_copy(update={"links": (), "trunks": ()})
    assert with_kept_links(older, without).inventory.trunks == older.trunks
    between = [link for link in older.links if link.kind == "between"]
    inside = older.model_copy(update={"links": tuple(link for link in older.links if link not in between)})
    assert with_kept_links(inside, without).inventory.trunks == ()


def test_the_estimate_grows_with_pairs_and_is_nothing_for_one_host() -> None:
    assert estimate_s(cpu_inventory([1])) == 0
    assert 0 < estimate_s(cpu_inventory([2])) < estimate_s(FLEET) < estimate_s(cpu_inventory([4, 4, 4]))
