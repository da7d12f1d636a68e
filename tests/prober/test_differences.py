"""Peers of a cluster that differ, and what changed since an older inventory."""

from __future__ import annotations

from holmes_core.records.inventory import Host, Inventory, Software
from prober.differences import changes, peer_differences
from prober.fabrics.clusters import find_clusters
from tests.builders.clustered_hosts import infiniband_host


def inventory_of_hosts(*hosts: Host) -> Inventory:
    clusters, _ = find_clusters(hosts, {})
    return Inventory(hosts=hosts, clusters=clusters, shared=None, findings=())


def test_equal_peers_do_not_differ() -> None:
    same = inventory_of_hosts(infiniband_host("a", 1), infiniband_host("b", 1))
    assert peer_differences(same) == ()


def test_differing_peers_are_named_by_value() -> None:
    newer = infiniband_host("c", 1).model_copy(update={"software": Software(python="3.12.1", torch=None)})
    found = {
        difference.fact: difference.values
        for difference in peer_differences(inventory_of_hosts(infiniband_host("a", 1), infiniband_host("b", 1), newer))
    }
    assert found == {
        "Python": (("3.11.7", ("a", "b")), ("3.12.1", ("c",))),
        "torch": (("2.13.0", ("a", "b")), ("not known", ("c",))),
    }


def test_unchanged_inventory_has_no_changes() -> None:
    assert changes(inventory_of_hosts(infiniband_host("a", 1)), inventory_of_hosts(infiniband_host("a", 1))) == ()


def test_changed_fact_and_new_host_are_reported() -> None:
    older = inventory_of_hosts(infiniband_host("a", 1))
    newer = inventory_of_hosts(infiniband_host("a", 1).model_copy(update={"kernel": "6.8"}), infiniband_host("b", 2))
    assert [(d.subject, d.fact, d.values) for d in changes(older, newer)] == [
        ("a", "kernel", (("not known", ("older",)), ("6.8", ("newer",)))),
        ("a", "cluster", (("a", ("older",)), ("a, b", ("newer",)))),
        ("b", "host", (("absent", ("older",)), ("there", ("newer",)))),
    ]
