"""Labels of schedulers are hints: where they contradict what was found it is told, and nothing follows them."""

from __future__ import annotations

from pathlib import Path

from holmes_core.hosts.hosts_file import HostsFile
from holmes_core.records.devices import Gpu
from holmes_core.records.inventory import Finding, Hints, Host
from prober.fabrics.clusters import find_clusters
from prober.findings.hint_findings import hint_findings
from prober.probe import probe, replay
from tests.builders.host_facts import gpu, host, netdev, nic, nics, roce_host

RULE = "CLUSTER-HINT-CONTRADICTS"


def infiniband_host_with_hints(name: str, **hints: object) -> Host:
    return nics(nic(), name=name, hints=Hints.model_validate(hints))


def roce_host_with_hints(name: str, number: int, **hints: object) -> Host:
    own = netdev(address=f"10.2.0.{number}/24")
    return roce_host(own=own, name=name, hints=Hints.model_validate(hints))


def on_nvlink(name: str, uuid: str | None, domain: str) -> Host:
    card: Gpu = gpu(nvlink_cluster=uuid, nvlink_clique=None if uuid is None else 1)
    return nics(nic(), name=name, gpus=(card,), hints=Hints(nvlink=domain))


def told(*hosts: Host) -> list[tuple[str, str, tuple[str, ...], str]]:
    clusters, _ = find_clusters(hosts, {})
    return [(each.rule, each.severity, each.hosts, each.evidence) for each in hint_findings(hosts, clusters)]


def test_hints_that_agree_with_the_clusters_say_nothing() -> None:
    one = [
        infiniband_host_with_hints(name, network=(f"leaf-{name}", "spine-1"), fabric="InfiniBand")
        for name in ("a1", "a2")
    ]
    other = [roce_host_with_hints(f"b{n}", n, network=("leaf-3", "spine-2"), fabric="RoCE") for n in (1, 2)]
    assert told(*one, *other) == []


def test_hosts_of_one_leaf_in_two_clusters_are_told() -> None:
    evidence = "leaf-1: a1, a2 in ib-1; b1 in roce-1"
    hosts = (
        infiniband_host_with_hints("a1", network=["leaf-1"]),
        infiniband_host_with_hints("a2", network=["leaf-1"]),
        roce_host_with_hints("b1", 1, network=["leaf-1"]),
    )
    assert told(*hosts) == [(RULE, "W", ("a1", "a2", "b1"), evidence)]


def test_a_switch_further_up_may_join_two_clusters() -> None:
    assert (
        told(
            infiniband_host_with_hints("a", network=["leaf-1", "room"]),
            roce_host_with_hints("b", 1, network=["leaf-2", "room"]),
        )
        == []
    )


def test_a_cluster_whose_hosts_have_no_switch_in_common_is_told_and_stays() -> None:
    hosts = (
        infiniband_host_with_hints("a1", network=["leaf-1", "spine-1"]),
        infiniband_host_with_hints("a2", network=["leaf-2", "spine-2"]),
        infiniband_host_with_hints("a3"),
    )
    evidence = "cluster ib-1: a1 below spine-1; a2 below spine-2"
    assert told(*hosts) == [(RULE, "I", ("a1", "a2"), evidence)]


def test_leaves_alone_say_nothing_of_one_cluster() -> None:
    assert (
        told(infiniband_host_with_hints("a1", network=["leaf-1"]), infiniband_host_with_hints("a2", network=["leaf-2"]))
        == []
    )


def test_another_kind_of_fabric_than_the_hint_is_told() -> None:
    lost = host("a1", netdevs=(netdev(),), hints=Hints(fabric="InfiniBand"))
    evidence = "the hint is InfiniBand; found: Ethernet, cluster eth-1"
    assert told(lost) == [(RULE, "W", ("a1",), evidence)]


def test_one_nvlink_domain_of_hints_that_gpus_say_are_two_is_told() -> None:
    hosts = (on_nvlink("a1", "uuid-1", "rack-1"), on_nvlink("a2", "uuid-2", "rack-1"), on_nvlink("a3", None, "rack-1"))
    assert told(*hosts) == [(RULE, "W", ("a1", "a2"), "rack-1: a1 in uuid-1; a2 in uuid-2")]


def test_hints_move_no_host() -> None:
    def clusters(*hosts: Host) -> list[tuple[str, ...]]:
        return [cluster.hosts for cluster in find_clusters(hosts, {})[0]]

    plain = clusters(
        infiniband_host_with_hints("a1"),
        roce_host_with_hints("b1", 1),
        infiniband_host_with_hints("a2"),
        roce_host_with_hints("b2", 2),
    )
    hint = {"network": ["leaf-1", "spine-1"], "fabric": "Ethernet"}
    assert (
        clusters(
            infiniband_host_with_hints("a1", **hint),
            roce_host_with_hints("b1", 1, **hint),
            infiniband_host_with_hints("a2"),
            roce_host_with_hints("b2", 2, network=["x"]),
        )
        == plain
    )


def test_hints_of_hosts_yaml_are_in_the_inventory_and_in_a_recording(tmp_path: Path) -> None:
    hosts = HostsFile.model_validate(
        {"transport": "local", "hosts": [{"name": "a", "hints": {"network": ["leaf-1"], "fabric": "EFA"}}]}
    )
    inventory = probe(hosts, lambda _host, _state: None, record=tmp_path)
    assert inventory.hosts[0].hints == Hints(network=("leaf-1",), fabric="EFA")
    assert [finding.hosts for finding in _contradicting(inventory.findings)] == [("a",)]
    assert replay(tmp_path) == inventory


def _contradicting(findings: tuple[Finding, ...]) -> list[Finding]:
    return [finding for finding in findings if finding.rule == RULE]
