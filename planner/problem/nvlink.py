"""NVLink between hosts: clusters within one NVLink domain, and the rate of a host there."""

from __future__ import annotations

from collections.abc import Mapping

from holmes_core.records.inventory import Inventory
from planner.cost.slot import nvlink_bytes_per_s


def nvlink_rates(inventory: Inventory) -> Mapping[str, float]:
    """Return the one-way bytes/s of every host whose cluster is in one NVLink domain with IMEX running on all hosts.

    It is the rate of one GPU, and thus the least that a ring through the host gets. In the plan, groups that leave a
    host through several GPUs share it; in the run they have more.
    """
    hosts = {host.name: host for host in inventory.hosts}
    running = [domain for domain in inventory.nvlink_domains if all(hosts[n].imex == "active" for n in domain.hosts)]
    rates: dict[str, float] = {}
    for cluster in inventory.clusters:
        if not any(set(cluster.hosts) <= set(domain.hosts) for domain in running):
            continue
        known = {name: rate for name in cluster.hosts if (rate := nvlink_bytes_per_s(hosts[name])) is not None}
        rates |= known if len(known) == len(cluster.hosts) else {}
    return rates


def hosts_without_imex(inventory: Inventory) -> frozenset[str]:
    """Return the hosts of NVLink domains with IMEX known not to run somewhere: NCCL fails there, without a fallback."""
    imex = {host.name: host.imex for host in inventory.hosts}
    return frozenset(
        name
        for domain in inventory.nvlink_domains
        if any(imex[member] not in (None, "active") for member in domain.hosts)
        for name in domain.hosts
    )
