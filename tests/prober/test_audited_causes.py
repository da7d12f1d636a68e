"""holmes doctor with an inventory: faults that a probe found are the verdict where the run uses what is at fault."""

from __future__ import annotations

import pytest

from holmes_core.records.inventory import Cluster, Finding, Inventory, Network
from prober.findings.catalogue import CATALOGUE
from prober.running.audited_causes import OF_HOSTS, OF_NETWORKS, OF_RDMA
from tests.builders.clustered_hosts import host_in_cluster
from tests.builders.watched_runs import Watched


def inventory(rule: str, *hosts: str) -> Inventory:
    """An inventory of the recording's hosts and one more, with this finding."""
    names = ("a1", "a2", "a3")
    fabric = Network(name="a", kind="Ethernet", subnet=None, ports=())
    finding = Finding(
        rule=rule, severity="W", hosts=hosts, evidence="x8 of x16", effect="half the rate", remedy="reseat it"
    )
    return Inventory(
        hosts=tuple(host_in_cluster(name) for name in names),
        clusters=(Cluster(name="a", hosts=names, fabric=fabric),),
        shared=fabric,
        findings=(finding,),
    )


@pytest.mark.parametrize("rule", [*OF_HOSTS, *OF_NETWORKS])
def test_fault_of_a_host_of_the_run_is_the_verdict(rule: str) -> None:
    found = Watched().diagnosis(inventory(rule, "a2", "a3"))
    assert found.cause == "audited-fault"
    assert found.says.endswith(f"{rule} on a2")
    assert found.evidence == ("inventory.json: x8 of x16", "effect: half the rate")
    assert found.remedy.startswith("reseat it. `holmes probe hosts.yaml`")


@pytest.mark.parametrize("rule", OF_RDMA)
def test_fault_of_rdma_is_one_only_of_a_run_that_uses_it(rule: str) -> None:
    assert Watched().diagnosis(inventory(rule, "a2")).cause == "none"
    busy = Watched()
    for host in ("a1", "a2"):
        busy.ports(host, 9_000_000_000)
    assert busy.diagnosis(inventory(rule, "a2")).cause == "audited-fault"


@pytest.mark.parametrize("rule", ["PCI-LINK-DEGRADED", "NIC-PORT-DOWN"])
def test_fault_of_a_network_is_none_of_a_run_that_sends_nothing_outside(rule: str) -> None:
    quiet = Watched()
    for host in ("a1", "a2"):
        quiet.quiet(host)
        quiet.gpus(host, use=95)
        quiet.cpu(host, 0.9)
    assert quiet.diagnosis(inventory(rule, "a2")).cause != "audited-fault"


def test_fault_of_another_host_and_findings_that_sound_sites_have_are_none() -> None:
    assert Watched().diagnosis(inventory("PCI-LINK-DEGRADED", "a3")).cause == "none"
    assert Watched().diagnosis(inventory("IB-IPOIB-BOOTSTRAP", "a1", "a2")).cause == "none"


def test_what_the_watch_shows_goes_first() -> None:
    watched = Watched()
    watched.state("a2", "TTTTTT")
    found = watched.diagnosis(inventory("PCI-LINK-DEGRADED", "a2"))
    assert (found.cause, [other.cause for other in found.also]) == ("stopped-process", ["audited-fault"])


def test_rules_that_are_named_exist() -> None:
    assert {*OF_HOSTS, *OF_NETWORKS, *OF_RDMA} <= set(CATALOGUE)
