"""Container bridges: equal addresses on several machines join nobody, and hosts that have nothing else are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from holmes_core.records.inventory import Host, Inventory
from prober.asking.recording import HostNotes, HostRecording, Recorded
from prober.fabrics.own_bridges import with_own_bridges
from prober.findings.audit import refuses
from prober.probe import ReadHost, inventory_of, inventory_of_read
from tests.builders.clustered_hosts import host_in_cluster, netdev_of_10_gbps
from tests.prober.test_recordings import SHARED, expected

needs_samples = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared samples are not here")


def inventory_of_sample(folder: Path) -> Inventory:
    """Read the hosts of a sample, each by its own files."""
    outputs: dict[str, list[Recorded]] = {}
    for file, about in expected(folder)["files"].items():
        text = (folder / file).read_text(encoding="utf-8")
        outputs.setdefault(about["host"], []).append(Recorded(about["command"], text, about["exit_code"]))
    return inventory_of({name: HostRecording(tuple(found), HostNotes()) for name, found in outputs.items()})


@needs_samples
@pytest.mark.parametrize(
    "name", ["two-rented-containers-behind-nat", "runpod-cluster-eth0-alike-ens1-shared", "calico-pods-slash32"]
)
def test_containers_of_a_sample_reach_each_other_as_on_the_site(name: str) -> None:
    wanted, inventory = expected(SHARED / name), inventory_of_sample(SHARED / name)
    rules = {finding.rule for finding in inventory.findings}
    assert refuses(inventory) == wanted["refuses_launch"]
    assert not rules & {*wanted.get("refuted_findings", ()), "CLUSTER-LOOKS-ALIKE", "CLUSTER-NOT-KNOWN"}
    if "shared" in wanted:
        assert inventory.shared is not None
        assert {(port.host, port.netdev) for port in inventory.shared.ports} == {
            (name, "ens1") for name in wanted["shared"]
        }
        (cluster,) = inventory.clusters
        assert [port.netdev for port in cluster.fabric.ports] == ["ens1", "ens1"]
    if wanted["refuses_launch"]:
        assert inventory.shared is None
        (finding,) = (each for each in inventory.findings if each.severity == "F")
        assert (finding.rule, finding.hosts) == ("NET-NO-SHARED-SUBNET", ("vast-a", "vast-b"))


def isolated(*hosts: Host) -> list[list[str]]:
    return [[each.name for each in host.netdevs if each.isolated] for host in with_own_bridges(hosts, {})]


def pod(name: str, address: str, number: int, boot_id: str | None = None) -> Host:
    return host_in_cluster(
        name, netdev_of_10_gbps("eth0", address), netdev_of_10_gbps("net1", f"10.65.0.{number}/24"), boot_id=boot_id
    )


def test_network_on_which_most_machines_have_anothers_address_is_inside_each() -> None:
    assert isolated(pod("a", "172.19.0.2/16", 1), pod("b", "172.19.0.2/16", 2)) == [["eth0"], ["eth0"]]
    three = [pod(name, f"172.19.0.{last}/16", n) for n, (name, last) in enumerate([("a", 2), ("b", 2), ("c", 3)])]
    assert isolated(*three) == [["eth0"], ["eth0"], ["eth0"]]


def test_an_address_set_twice_by_mistake_leaves_its_network_one() -> None:
    hosts = [
        pod(name, f"172.19.0.{last}/16", n) for n, (name, last) in enumerate(zip("abcd", (2, 2, 3, 4), strict=True))
    ]
    assert isolated(*hosts) == [[], [], [], []]


def test_containers_on_one_machine_may_share_its_address() -> None:
    assert isolated(pod("a", "172.19.0.2/16", 1, boot_id="x"), pod("b", "172.19.0.2/16", 1, boot_id="x")) == [[], []]


def test_a_pinned_cluster_of_hosts_that_cannot_meet_is_refused_too() -> None:
    hosts = [host_in_cluster(name, netdev_of_10_gbps("eth0", "172.17.0.2/16")) for name in "ab"]
    inventory = inventory_of_read([ReadHost(each, (), "x") for each in hosts])
    assert [finding.rule for finding in inventory.findings if finding.severity == "F"] == ["NET-NO-SHARED-SUBNET"]


def test_sites_of_the_same_addresses_keep_their_networks_where_they_are_pinned() -> None:
    hosts = [
        pod(f"{site}{last}", f"10.0.0.{last}/24", 10 * at + last) for at, site in enumerate("xy") for last in (1, 2)
    ]
    clusters = inventory_of_read([ReadHost(each, (), each.name[0]) for each in hosts]).clusters
    assert [[port.netdev for port in cluster.fabric.ports] for cluster in clusters] == [["eth0"] * 2] * 2


def test_an_address_that_hosts_hold_in_common_leaves_them_their_own() -> None:
    hosts = [
        host_in_cluster(name, netdev_of_10_gbps("eth0", f"10.0.0.{n}/24", "10.0.0.100/24"))
        for n, name in enumerate("ab", 1)
    ]
    assert isolated(*hosts) == [[], []]
