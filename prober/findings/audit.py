"""The audit: every rule on every host and cluster, with one finding for the same fault on many hosts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holmes_core.records.inventory import Cluster, Finding, Host, Inventory, Network
from prober.rules import (
    fabric_rules,
    gpu_fault_rules,
    gpu_rules,
    kernel_log_rules,
    machine_rules,
    network_rules,
    nic_rules,
    nvlink_rules,
    path_rules,
    pci_rules,
    port_rules,
    rail_rules,
    rate_rules,
    roce_rules,
    tuning_rules,
)
from prober.rules.rule import PeerRule, Rule

HOST_RULES: tuple[Rule, ...] = (
    *machine_rules.HOST_RULES,
    *port_rules.HOST_RULES,
    *rate_rules.HOST_RULES,
    *nic_rules.HOST_RULES,
    *roce_rules.HOST_RULES,
    *rail_rules.HOST_RULES,
    *fabric_rules.HOST_RULES,
    *gpu_rules.HOST_RULES,
    *gpu_fault_rules.HOST_RULES,
    *nvlink_rules.HOST_RULES,
    *kernel_log_rules.HOST_RULES,
    *pci_rules.HOST_RULES,
    *path_rules.HOST_RULES,
    *network_rules.HOST_RULES,
    *tuning_rules.HOST_RULES,
)
PEER_RULES: tuple[PeerRule, ...] = (
    *machine_rules.PEER_RULES,
    *rate_rules.PEER_RULES,
    *nic_rules.PEER_RULES,
    *roce_rules.PEER_RULES,
    *fabric_rules.PEER_RULES,
    *gpu_rules.PEER_RULES,
    *nvlink_rules.PEER_RULES,
    *pci_rules.PEER_RULES,
    *path_rules.PEER_RULES,
    *rail_rules.PEER_RULES,
    *network_rules.PEER_RULES,
)


def audit(hosts: Sequence[Host], clusters: Sequence[Cluster], shared: Network | None) -> tuple[Finding, ...]:
    """Return the findings of all rules: on hosts in order, the job and its clusters, and their networks."""
    by_name = {host.name: host.for_job() for host in hosts if host.reachable}
    findings = [finding for host in by_name.values() for rule in HOST_RULES for finding in rule.findings(host)]
    job = tuple(by_name.values())
    groups = [tuple(by_name[name] for name in cluster.hosts) for cluster in clusters]
    for rule in PEER_RULES:
        for peers in [job] if rule.scope == "job" else groups:
            findings += rule.findings(peers)
    return (*findings, *network_rules.network_findings(hosts, clusters, shared))


def joined(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings in order, with equal ones on several hosts merged into the first."""
    merged: dict[Finding, tuple[str, ...]] = {}
    for finding in findings:
        anonymous = finding.model_copy(update={"hosts": ()})
        merged[anonymous] = tuple(dict.fromkeys((*merged.get(anonymous, ()), *finding.hosts)))
    return tuple(finding.model_copy(update={"hosts": hosts}) for finding, hosts in merged.items())


def refuses(inventory: Inventory) -> bool:
    """Return True if a finding refuses launching on these hosts."""
    return any(finding.severity == "F" for finding in inventory.findings)
