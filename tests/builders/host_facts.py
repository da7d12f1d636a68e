"""Hosts made of single facts, for the audit's tests."""

from __future__ import annotations

from typing import Any

from holmes_core.records.access import Access
from holmes_core.records.devices import Gpu, Netdev, Nic
from holmes_core.records.inventory import Finding, Host, Software
from prober.fabrics.clusters import find_clusters, find_shared_network
from prober.findings.audit import audit

GOOD = Software(python="3.11.7", torch="2.13.0", nccl="2.29.7")


def nic(device: str = "mlx5_0", kind: str = "InfiniBand", **facts: Any) -> Nic:
    state = facts.get("state", "Active")
    base = {
        "device": device,
        "port": 1,
        "kind": kind,
        "rate_gbps": 400.0,
        "state": state,
        "phys_state": "LinkUp" if state == "Active" else "Disabled",
        "netdev": None,
        "subnet_prefix": None,
        "sm_lid": 1,
        "usable_by_nccl_ib": state == "Active" and kind in ("InfiniBand", "RoCE"),
        "why": "",
    }
    return Nic.model_validate({**base, **facts})


def roce(device: str = "mlx5_0", netdev: str = "ens1", **facts: Any) -> Nic:
    return nic(device, "RoCE", netdev=netdev, **facts)


def gpu(index: int = 0, **facts: Any) -> Gpu:
    base = {"index": index, "name": "H100", "uuid": None, "memory_bytes": None, "pci_address": None}
    return Gpu.model_validate({**base, **facts})


def netdev(name: str = "ens1", address: str | None = "10.2.0.1/24", **facts: Any) -> Netdev:
    addresses = (address,) if address else ()
    base = {"name": name, "up": True, "mtu": 9000, "addresses": addresses, "speed_bytes_per_s": 50e9}
    return Netdev.model_validate({**base, **facts})


def host(name: str = "a", **facts: Any) -> Host:
    return Host.model_validate({"name": name, "access": Access(), "reachable": True, "software": GOOD, **facts})


def nics(*ports: Nic, **facts: Any) -> Host:
    return host(nics=ports, **facts)


def gpus(*cards: Gpu, **facts: Any) -> Host:
    return host(gpus=cards, **facts)


def roce_host(port: Nic | None = None, own: Netdev | None = None, **facts: Any) -> Host:
    return host(nics=(port or roce(),), netdevs=(own or netdev(),), **facts)


def audited(*hosts: Host, one_cluster: bool = False) -> tuple[Finding, ...]:
    """All findings about hosts, in the clusters that their facts give or in one."""
    pins = {host.name: "pinned" for host in hosts} if one_cluster else {}
    clusters, _ = find_clusters(hosts, pins)
    return audit(hosts, clusters, find_shared_network(hosts))


def severities(rule: str, *hosts: Host, one_cluster: bool = False) -> list[str]:
    """The severities of what one rule finds, in order."""
    return [finding.severity for finding in audited(*hosts, one_cluster=one_cluster) if finding.rule == rule]
