"""Clusters are found from facts; labels may be pinned; contradictions are reported."""

from __future__ import annotations

from holmes_core.records.devices import Route
from holmes_core.records.inventory import Host
from prober.fabrics.clusters import find_clusters, find_shared_network
from prober.findings.audit import audit
from tests.builders.clustered_hosts import host_in_cluster, infiniband_host, netdev_of_10_gbps, nic, roce_host_at


def members(*hosts: Host, pinned: dict[str, str] | None = None) -> dict[str, tuple[str, ...]]:
    clusters, _ = find_clusters(hosts, pinned or {})
    return {cluster.name: cluster.hosts for cluster in clusters}


def test_infiniband_and_roce_hosts_are_two_clusters() -> None:
    found = members(infiniband_host("a", 1), roce_host_at("c", 3), infiniband_host("b", 2), roce_host_at("d", 4))
    assert found == {"ib-1": ("a", "b"), "roce-1": ("c", "d")}


def test_two_subnet_managers_are_two_infiniband_clusters() -> None:
    assert members(infiniband_host("a", 1, sm_lid=1), infiniband_host("b", 2, sm_lid=7)) == {
        "ib-1": ("a",),
        "ib-2": ("b",),
    }


def test_two_ipoib_networks_are_two_infiniband_clusters() -> None:
    assert members(infiniband_host("a", 1, network=1), infiniband_host("b", 2, network=3)) == {
        "ib-1": ("a",),
        "ib-2": ("b",),
    }


def test_roce_networks_separate_clusters() -> None:
    assert members(roce_host_at("a", 1), roce_host_at("b", 2, network=3)) == {"roce-1": ("a",), "roce-2": ("b",)}


def routed(machine: Host, prefix: str) -> Host:
    return machine.model_copy(update={"routes": (Route(prefix=prefix, netdev="ens6"),)})


def test_roce_hosts_with_a_subnet_each_are_one_cluster_when_routed_both_ways() -> None:
    a, b = (
        routed(roce_host_at("a", 1, network=20), "10.0.0.0/8"),
        routed(roce_host_at("b", 1, network=21), "10.20.0.0/16"),
    )
    assert members(a, b) == {"roce-1": ("a", "b")}
    assert members(a, roce_host_at("b", 1, network=21)) == {"roce-1": ("a",), "roce-2": ("b",)}


def unknown_roce(name: str) -> Host:
    return host_in_cluster(name, nics=(nic("mlx5_0", "RoCE"),))


def test_roce_hosts_whose_networks_are_not_known_are_not_guessed_to_be_one_cluster() -> None:
    clusters, findings = find_clusters([unknown_roce("a"), unknown_roce("b"), roce_host_at("c", 3)], {})
    assert [cluster.hosts for cluster in clusters] == [("a",), ("b",), ("c",)]
    assert [(finding.rule, finding.hosts) for finding in findings] == [
        ("CLUSTER-NOT-KNOWN", ("a",)),
        ("CLUSTER-NOT-KNOWN", ("b",)),
    ]


def test_pins_say_what_the_networks_do_not_without_contradicting_them() -> None:
    clusters, findings = find_clusters([unknown_roce("a"), roce_host_at("b", 2)], {"a": "x", "b": "x"})
    assert ([cluster.hosts for cluster in clusters], findings) == ([("a", "b")], ())


def test_a_single_host_has_nothing_to_be_told_apart_from() -> None:
    assert find_clusters([unknown_roce("a")], {})[1] == ()


def test_infiniband_hosts_of_which_little_is_known_are_one_cluster() -> None:
    assert members(host_in_cluster("a", nics=(nic("mlx5_0", "InfiniBand"),)), infiniband_host("b", 2)) == {
        "ib-1": ("a", "b")
    }


def test_hosts_without_rdma_are_an_ethernet_cluster() -> None:
    assert members(host_in_cluster("a", netdev_of_10_gbps("eth0", "10.9.0.1/24")), infiniband_host("b", 2)) == {
        "eth-1": ("a",),
        "ib-1": ("b",),
    }


def test_pinned_label_wins_and_a_contradiction_is_reported() -> None:
    clusters, findings = find_clusters([infiniband_host("a", 1), roce_host_at("b", 2)], {"a": "x", "b": "x"})
    assert [(cluster.name, cluster.hosts, cluster.pinned) for cluster in clusters] == [("x", ("a", "b"), True)]
    assert [(finding.rule, finding.hosts) for finding in findings] == [("CLUSTER-PIN-CONTRADICTS", ("b",))]


def test_rails_are_the_ports_of_the_fastest_kind_at_its_top_rate() -> None:
    rails = (nic("mlx5_0", "InfiniBand", 400), nic("mlx5_1", "InfiniBand", 400), nic("mlx5_2", "InfiniBand", 100))
    machine = host_in_cluster("a", nics=(*rails, nic("mlx5_bond_0", "RoCE", 200)))
    (cluster,), _ = find_clusters([machine], {})
    (port,) = cluster.fabric.ports
    assert port.hcas == ("mlx5_0:1", "mlx5_1:1")
    assert port.rdma_bandwidth_bytes_per_s == 100e9


def test_shared_network_is_the_one_every_host_is_on() -> None:
    shared = find_shared_network([infiniband_host("a", 1), roce_host_at("b", 2)])
    assert shared is not None
    assert (shared.subnet, [port.netdev for port in shared.ports]) == ("10.9.0.0/24", ["eth0", "eno1"])


def front_end(*addresses: str) -> list[Host]:
    return [
        host_in_cluster(name, netdev_of_10_gbps("eth0", address))
        for name, address in zip("abcd", addresses, strict=False)
    ]


def test_hosts_of_the_shared_network_may_have_unequal_masks() -> None:
    shared = find_shared_network(front_end("10.5.0.1/16", "10.5.0.2/24", "10.5.0.3/16"))
    assert shared is not None
    assert (shared.subnet, [port.host for port in shared.ports]) == ("10.5.0.0/24", ["a", "b", "c"])
    assert [port.address for port in shared.ports] == ["10.5.0.1", "10.5.0.2", "10.5.0.3"]


def test_a_host_that_another_does_not_see_on_its_wire_shares_no_network_with_it() -> None:
    assert find_shared_network(front_end("10.5.0.1/24", "10.5.7.2/16")) is None
    assert find_shared_network(front_end("10.5.1.1/24", "10.5.2.2/24", "10.5.0.3/16")) is None


def test_the_same_address_with_another_mask_is_no_shared_network() -> None:
    assert find_shared_network(front_end("10.5.0.1/24", "10.5.0.1/16")) is None


def test_container_bridges_are_no_shared_network() -> None:
    hosts = [
        host_in_cluster(name, netdev_of_10_gbps("docker0", "172.17.0.1/16"), netdev_of_10_gbps("cbr0", "172.18.0.1/16"))
        for name in "ab"
    ]
    assert find_shared_network(hosts) is None


def test_default_routes_serve_where_no_network_is_common() -> None:
    hosts = [
        host_in_cluster(name, netdev_of_10_gbps("eth0", f"10.{n}.0.1/24"), default_route_netdev="eth0")
        for n, name in enumerate("ab")
    ]
    shared = find_shared_network(hosts)
    assert shared is not None
    assert (shared.subnet, shared.ports[1].address) == (None, "10.1.0.1")


def test_link_local_addresses_are_shared_only_where_nothing_else_is() -> None:
    """Such a network to the controller of each board hid the routed one of the hosts."""
    own = [
        (netdev_of_10_gbps("usb0", f"169.254.3.{n}/24"), netdev_of_10_gbps("eth0", f"10.{n}.0.1/24")) for n in (1, 2)
    ]
    routed = find_shared_network(
        [host_in_cluster(str(n), *each, default_route_netdev="eth0") for n, each in enumerate(own)]
    )
    assert routed is not None
    assert [port.netdev for port in routed.ports] == ["eth0", "eth0"]
    by_cable = find_shared_network([host_in_cluster(str(n), usb0) for n, (usb0, _) in enumerate(own)])
    assert by_cable is not None
    assert by_cable.subnet == "169.254.3.0/24"


def test_clusters_that_cannot_reach_each_other_are_reported() -> None:
    own = [(Route(prefix=f"10.{number}.0.0/24", netdev="eth0"),) for number in (1, 2)]
    hosts = [
        host_in_cluster(name, netdev_of_10_gbps("eth0", f"10.{number}.0.1/24"), routes=own[number - 1])
        for name, number in (("a", 1), ("b", 2))
    ]
    clusters, _ = find_clusters(hosts, {})
    findings = audit(hosts, clusters, find_shared_network(hosts))
    assert [(finding.rule, finding.severity) for finding in findings] == [("NET-NO-SHARED-SUBNET", "F")]
    routes_not_recorded = [hosts[0], hosts[1].model_copy(update={"routes": ()})]
    assert audit(routes_not_recorded, clusters, None) == ()
