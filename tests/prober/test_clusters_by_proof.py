"""Which hosts share a fabric is proved, and what no fact decides is asked; the order of hosts changes nothing."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holmes_core.records.inventory import Finding, Host
from prober.fabrics.clusters import find_clusters, find_shared_network
from prober.fabrics.fabric import fabric_of
from prober.findings.audit import audit
from prober.rails.choose_rails import with_rails
from tests.builders.railed_hosts import gid, gpus_beside, host, infiniband_port, netdev_with, roce_port, route


def clusters(*hosts: Host, pinned: dict[str, str] | None = None) -> list[tuple[str, ...]]:
    found, _ = find_clusters([with_rails(each) for each in hosts], pinned or {})
    return [cluster.hosts for cluster in found]


def findings(*hosts: Host, pinned: dict[str, str] | None = None) -> list[Finding]:
    ready = [with_rails(each) for each in hosts]
    found, said = find_clusters(ready, pinned or {})
    return [*said, *audit(ready, found, find_shared_network(ready))]


def rules(*hosts: Host) -> set[tuple[str, str]]:
    said = {(finding.rule, finding.severity) for finding in findings(*hosts)}
    return {(rule, severity) for rule, severity in said if rule.startswith(("CLUSTER", "NET"))}


def ib_host(name: str, *lids: int, site: int | None = None, **facts: Any) -> Host:
    """A host with an InfiniBand rail for each LID, and an address in the network of its site."""
    around = () if site is None else (netdev_with("eth0", f"10.{site}.0.{ord(name[-1])}/24"),)
    ports = [infiniband_port(f"mlx5_{number}", lid=lid) for number, lid in enumerate(lids)]
    return host(name, **{"nics": ports, "netdevs": around, **facts})


def roce_host(name: str, *addresses: str, **facts: Any) -> Host:
    """A host with a RoCE rail for each address."""
    ports = [roce_port(f"mlx5_{number}", f"eth{number}") for number, _ in enumerate(addresses)]
    own = tuple(netdev_with(f"eth{number}", address) for number, address in enumerate(addresses))
    return host(name, **{"nics": ports, "netdevs": (*own, *facts.pop("around", ())), **facts})


def test_the_same_lid_on_two_hosts_proves_two_infiniband_fabrics() -> None:
    assert clusters(ib_host("a", 1, 2), ib_host("b", 1, 2)) == [("a",), ("b",)]
    assert rules(ib_host("a", 1, 2), ib_host("b", 1, 2)) == {("CLUSTER-LOOKS-ALIKE", "I")}
    assert clusters(ib_host("a", 1, 2), ib_host("b", 3, 4)) == [("a", "b")]


def test_hosts_of_two_fabrics_that_look_alike_are_put_together_by_the_networks_around_them() -> None:
    hosts = (ib_host("a1", 1, site=1), ib_host("a2", 2, site=1), ib_host("b1", 1, site=2), ib_host("b2", 2, site=2))
    assert clusters(*hosts) == [("a1", "a2"), ("b1", "b2")]


def test_hosts_that_no_fact_places_are_alone_and_asked_about() -> None:
    hosts = (ib_host("a1", 1), ib_host("a2", 2), ib_host("b1", 1), ib_host("b2", 2))
    assert clusters(*hosts) == [("a1",), ("a2",), ("b1",), ("b2",)]
    (asked,) = (finding for finding in findings(*hosts) if finding.rule == "CLUSTER-LOOKS-ALIKE")
    assert asked.severity == "W"
    assert "a1 and b1 both have LID 1" in asked.evidence
    assert "`cluster:`" in asked.remedy
    pins = {"a1": "a", "a2": "a", "b1": "b", "b2": "b"}
    assert clusters(*hosts, pinned=pins) == [("a1", "a2"), ("b1", "b2")]
    assert [finding.rule for finding in findings(*hosts, pinned=pins)] == []


def below(name: str, lid: int, manager: str | None, site: int | None = None) -> Host:
    """An InfiniBand host that says by which GUID its subnet manager is known, if it was let ask."""
    around = () if site is None else (netdev_with("eth0", f"10.{site}.0.{ord(name[-1])}/24"),)
    return host(name, nics=(infiniband_port("mlx5_0", lid=lid, sm_guid=manager),), netdevs=around)


def test_subnet_managers_tell_fabrics_apart_that_look_alike_in_all_else() -> None:
    first, second = "0002:c903:00f5:d6a1", "0002:c903:00f5:d6b2"
    hosts = (below("a1", 1, first), below("a2", 2, first), below("b1", 1, second), below("b2", 2, second))
    assert clusters(*hosts) == [("a1", "a2"), ("b1", "b2")]
    assert rules(*hosts) == set()
    not_let_ask = below("c", 3, None)
    assert clusters(*hosts, not_let_ask)[-1] == ("c",)
    assert rules(*hosts, not_let_ask) == {("CLUSTER-NOT-KNOWN", "W")}
    assert clusters(hosts[0], hosts[1], not_let_ask) == [("a1", "a2", "c")]


def test_lids_of_rails_that_are_subnets_of_their_own_may_be_the_same_on_one_host() -> None:
    """Every rail's subnet has a LID 1; hosts differ rail by rail."""
    assert clusters(ib_host("a", 1, 1), ib_host("b", 2, 2)) == [("a", "b")]
    assert clusters(ib_host("a", 1, 1), ib_host("b", 2, 1)) == [("a",), ("b",)]


def test_containers_of_one_machine_share_its_lids() -> None:
    assert clusters(ib_host("a", 1, boot_id="x"), ib_host("b", 1, boot_id="x")) == [("a", "b")]


def test_virtual_functions_have_the_lid_of_their_card() -> None:
    first, second = (host(name, nics=(infiniband_port("mlx5_0", lid=5, virtual_function=True),)) for name in "ab")
    assert clusters(first, second) == [("a", "b")]


def test_partitions_without_a_key_in_common_are_two_fabrics() -> None:
    first, second = (
        host(name, nics=(infiniband_port("mlx5_0", pkeys=(key,)),)) for name, key in (("a", 0x8001), ("b", 0x8002))
    )
    assert clusters(first, second) == [("a",), ("b",)]


def test_two_roce_sites_with_the_same_prefix_and_address_are_two_clusters() -> None:
    first = roce_host("a", "192.168.100.1/24", around=(netdev_with("bond0", "10.9.0.1/24"),))
    second = roce_host("b", "192.168.100.1/24", around=(netdev_with("bond0", "10.9.0.2/24"),))
    assert clusters(first, second) == [("a",), ("b",)]
    assert rules(first, second) == {("CLUSTER-LOOKS-ALIKE", "I"), ("NET-SUBNET-CONFLICT", "I")}


def fleet_with_clones(count: int, *cloned: int, front_end: bool = True) -> list[Host]:
    """Hosts h1, h2, ... of one RoCE network; those of `cloned` have the rails' addresses of h1, h2, ..."""
    found = []
    for number in range(1, count + 1):
        own = cloned.index(number) + 1 if number in cloned else number
        around = (netdev_with("bond0", f"10.9.0.{number}/24"),) if front_end else ()
        found.append(roce_host(f"h{number}", f"10.1.0.{own}/24", f"10.1.1.{own}/24", around=around))
    return found


def asked_of(*hosts: Host) -> list[tuple[str, tuple[str, ...]]]:
    said = [finding for finding in findings(*hosts) if finding.rule.startswith("CLUSTER")]
    return [(finding.severity, finding.hosts) for finding in said]


@pytest.mark.parametrize("front_end", [True, False])
@pytest.mark.parametrize(
    ("count", "cloned", "groups", "asked"),
    [
        (2, (2,), ["1", "2"], ("I", "12")),
        (3, (3,), ["1", "2", "3"], ("W", "13")),
        (8, (8,), ["1", "234567", "8"], ("W", "18")),
        (8, (7, 8), ["1", "2", "3456", "7", "8"], ("W", "1278")),
    ],
)
def test_only_clones_of_rail_addresses_are_asked_about_and_the_rest_is_one_cluster(
    front_end: bool, count: int, cloned: tuple[int, ...], groups: list[str], asked: tuple[str, str]
) -> None:
    hosts = fleet_with_clones(count, *cloned, front_end=front_end)
    assert clusters(*hosts) == [tuple(f"h{number}" for number in group) for group in groups]
    severity, of = asked
    assert [(grave, sorted(names)) for grave, names in asked_of(*hosts)] == [(severity, [f"h{n}" for n in of])]


def test_a_clone_is_with_the_rest_where_a_network_around_it_says_so() -> None:
    *others, clone = fleet_with_clones(4, 4)
    elsewhere = clone.model_copy(update={"netdevs": (*clone.netdevs[:-1], netdev_with("bond0", "10.77.0.4/24"))})
    assert clusters(*others, elsewhere) == [("h1", "h2", "h3"), ("h4",)]
    assert asked_of(*others, elsewhere) == [("W", ("h4",))]


def test_one_address_given_twice_among_others_is_a_mistake_and_splits_nothing() -> None:
    first, second = roce_host("a", "10.1.0.1/24", "10.1.1.1/24"), roce_host("b", "10.1.0.2/24", "10.1.1.1/24")
    assert clusters(first, second) == [("a", "b")]
    assert ("NET-ADDRESS-TWICE", "W") in rules(first, second)


def leaf_routed(name: str, number: int, *routes: Any, **facts: Any) -> Host:
    return roce_host(name, f"10.5.{number}.1/31", f"10.6.{number}.1/31", routes=routes, **facts)


def test_rails_with_a_subnet_a_port_and_no_route_are_alone_and_asked_about() -> None:
    assert clusters(leaf_routed("a", 1), leaf_routed("b", 2)) == [("a",), ("b",)]
    assert rules(leaf_routed("a", 1), leaf_routed("b", 2)) >= {("CLUSTER-NOT-KNOWN", "W")}


@pytest.mark.parametrize("table", [None, "101"])
def test_rails_routed_at_the_leaf_are_one_cluster_whatever_table_the_route_is_in(table: str | None) -> None:
    routes = (route("10.5.0.0/16", "eth0", table), route("10.6.0.0/16", "eth1", table))
    assert clusters(leaf_routed("a", 1, *routes), leaf_routed("b", 2, *routes)) == [("a", "b")]


def test_rails_with_a_subnet_a_port_are_neither_swapped_nor_crossed() -> None:
    routes = (route("10.5.0.0/16", "eth0"), route("10.6.0.0/16", "eth1"))
    near = gpus_beside(("mlx5_0",), ("mlx5_1",))
    hosts = [leaf_routed(name, number, *routes, gpus=near) for number, name in ((1, "a"), (2, "b"))]
    assert {finding.rule for finding in findings(*hosts)}.isdisjoint({"TOPO-RAIL-SWAPPED", "TOPO-RAIL-MISMATCH"})


def test_default_routes_of_the_rails_join_hosts_of_one_site_only() -> None:
    routes = (route("0.0.0.0/0", "eth0", "101"), route("0.0.0.0/0", "eth1", "102"))
    a, b = (
        leaf_routed(name, number, *routes, around=(netdev_with("bond0", f"10.9.0.{number}/24"),))
        for number, name in ((1, "a"), (2, "b"))
    )
    far = leaf_routed("c", 3, *routes, around=(netdev_with("bond0", "10.77.0.3/24"),))
    assert clusters(a, b, far) == [("a", "b"), ("c",)]


def test_the_address_of_a_vlan_joins_hosts() -> None:
    def on_vlan(name: str, number: int, with_gids: bool) -> Host:
        gids = (gid(3, f"10.1.0.{number}", "eth2.200"),) if with_gids else ()
        port = roce_port("mlx5_2", "eth2", gids=gids, gid_choice=3 if with_gids else None)
        return host(
            name,
            nics=(port,),
            netdevs=(netdev_with("eth2"), netdev_with("eth2.200", f"10.1.0.{number}/24", parent="eth2")),
        )

    assert clusters(on_vlan("a", 1, True), on_vlan("b", 2, True)) == [("a", "b")]
    assert clusters(on_vlan("a", 1, False), on_vlan("b", 2, False)) == [("a", "b")]
    assert fabric_of(on_vlan("a", 1, True)).networks == {"10.1.0.0/24"}


def test_a_64_in_common_joins_hosts_and_a_link_local_one_does_not() -> None:
    assert clusters(roce_host("a", "fd00:1::1/64"), roce_host("b", "fd00:1::2/64")) == [("a", "b")]
    assert clusters(roce_host("a", "fe80::1/64"), roce_host("b", "fe80::2/64")) == [("a",), ("b",)]


def test_networks_that_overlap_are_one_and_the_wrong_mask_is_a_finding() -> None:
    first, second = roce_host("a", "10.5.0.1/24"), roce_host("b", "10.5.0.2/16")
    assert clusters(first, second) == [("a", "b")]
    (said,) = (finding for finding in findings(first, second) if finding.rule == "NET-MASK-DIFFERS")
    assert (said.hosts, said.evidence) == (("a", "b"), "10.5.0.0/16 on b; 10.5.0.0/24 on a")


def ipoib(name: str, rail: int, address: str) -> Host:
    ports = [infiniband_port(f"mlx5_{number}", netdev=f"ib{number}") for number in range(2)]
    return host(name, nics=ports, netdevs=(netdev_with(f"ib{rail}", address),))


def test_ipoib_on_another_interface_does_not_split_a_fabric() -> None:
    first, second = ipoib("a", 0, "10.3.0.1/24"), ipoib("b", 1, "10.3.1.2/24")
    assert clusters(first, second) == [("a", "b")]
    assert ("NET-IPOIB-DIFFERS", "W") in rules(first, second)
    assert clusters(ipoib("a", 0, "10.3.0.1/24"), ipoib("b", 0, "10.3.1.2/24")) == [("a",), ("b",)]


def test_a_host_that_fits_two_fabrics_is_alone_and_asked_about() -> None:
    first, second = (
        host("a", nics=(infiniband_port("mlx5_0", sm_lid=1),)),
        host("b", nics=(infiniband_port("mlx5_0", sm_lid=2),)),
    )
    unknown = host("c", nics=(infiniband_port("mlx5_0", sm_lid=None),))
    assert clusters(first, second, unknown) == [("a",), ("b",), ("c",)]
    assert ("CLUSTER-NOT-KNOWN", "W") in rules(first, second, unknown)
    assert clusters(first, unknown) == [("a", "c")]


def test_swapped_cables_are_told_with_host_port_and_subnet() -> None:
    hosts = [roce_host(name, f"10.1.0.{n}/24", f"10.1.1.{n}/24") for n, name in enumerate("abc", 1)]
    hosts[1] = roce_host("b", "10.1.1.2/24", "10.1.0.2/24")
    (said,) = (finding for finding in findings(*hosts) if finding.rule == "TOPO-RAIL-SWAPPED")
    assert said.hosts == ("b",)
    assert "rail 0 (mlx5_0:1) is in 10.1.1.0/24, which is rail 1 elsewhere" in said.evidence
    assert "`rails:`" in said.remedy


def apart(*hosts: Host) -> bool | None:
    (cluster,), _ = find_clusters([with_rails(each) for each in hosts], {})
    return cluster.fabric.rails_apart


def test_rails_are_apart_where_each_is_a_subnet_and_no_route_leads_from_one_to_another() -> None:
    two = ("10.1.0.1/24", "10.1.1.1/24")
    assert apart(roce_host("a", *two)) is True
    assert apart(roce_host("a", *two, routes=(route("10.1.0.0/16", "eth0"),))) is False
    assert apart(roce_host("a", *two, routes=(route("0.0.0.0/0", "eth1", "7"),))) is False
    assert apart(roce_host("a", "10.1.0.1/24", "10.1.0.2/24")) is False
    assert apart(roce_host("a", "10.1.0.1/24")) is None
    assert apart(host(nics=(infiniband_port("mlx5_0"), infiniband_port("mlx5_1")))) is False
    assert (
        apart(host(nics=(infiniband_port("mlx5_0"), infiniband_port("mlx5_1", subnet_prefix="fec0:0000:0000:0001"))))
        is True
    )


def test_a_foreign_interface_address_breaks_nothing() -> None:
    """Linux prints `inet fe80::1/64` nowhere, but a recording may."""
    odd = [roce_host(name, "10.1.0.1/24", routes=(route("fd00::/8", "eth0"),)) for name in "ab"]
    assert clusters(*odd) == [("a",), ("b",)]


@given(seed=st.integers(0, 2**32))
def test_the_order_and_names_of_hosts_never_change_who_is_with_whom(seed: int) -> None:
    choose = random.Random(seed)
    hosts = some_fleet(choose)
    wanted = {frozenset(group) for group in clusters(*hosts)}
    assert {frozenset(group) for group in clusters(*choose.sample(hosts, len(hosts)))} == wanted
    names = [each.name for each in hosts]
    renamed = dict(zip(names, choose.sample([f"n{i}" for i in range(99)], len(names)), strict=True))
    others = [each.model_copy(update={"name": renamed[each.name]}) for each in hosts]
    assert {frozenset(group) for group in clusters(*others)} == {
        frozenset(renamed[name] for name in group) for group in wanted
    }


def some_fleet(choose: random.Random) -> list[Host]:
    """Hosts of a few sites, whose facts are known or not, and may look alike or collide."""
    hosts = []
    for number in range(choose.randint(2, 9)):
        site = choose.randint(1, 3)
        around = (netdev_with("bond0", f"10.9.{site}.{number + 1}/24"),) if choose.random() < 0.5 else ()
        if choose.random() < 0.5:
            known: dict[str, Any] = {
                "lid": choose.choice([None, number + 1, 7]),
                "sm_lid": choose.choice([None, 1, site]),
            }
            own = (netdev_with("ib0", f"10.3.{site}.{number + 1}/24"),) if choose.random() < 0.4 else ()
            port = infiniband_port("mlx5_0", netdev="ib0", **known)
            hosts.append(host(f"h{number}", nics=(port,), netdevs=(*own, *around)))
        else:
            address = f"10.{choose.choice([site, 1])}.0.{choose.choice([number + 1, 1])}/{choose.choice([16, 24, 31])}"
            routes = (route("10.0.0.0/8", "eth0"),) if choose.random() < 0.3 else ()
            hosts.append(roce_host(f"h{number}", address, routes=routes, around=around))
    return hosts
