"""Hosts that are one machine, as local processes and network namespaces are: their slots share its cores."""

from __future__ import annotations

from collections import Counter

from holmes_core.records.inventory import Host, Inventory
from holmes_core.records.job import Job


def core_shares(inventory: Inventory, job: Job) -> dict[str, float]:
    """By host, how many threads of CPU slots there are for each core of its machine; 1 where cores are left.

    Hosts with the same boot id are one machine. All slots of all its hosts count, or as many as fixed degrees leave at
    most. GPUs and emulated compute share no cores.
    """
    clustered = [name for cluster in inventory.clusters for name in cluster.hosts]
    if job.device != "cpu" or job.compute.emulate is not None:
        return dict.fromkeys(clustered, 1.0)
    hosts = {host.name: host for host in inventory.hosts}
    held = Counter(machine_of(hosts[name]) for name in clustered)
    fixed = job.parallel
    most = fixed.tp * fixed.pp * fixed.dp if fixed.tp and fixed.pp and fixed.dp else None
    shares = {}
    for name in clustered:
        cores, slots = hosts[name].cpu_count, held[machine_of(hosts[name])] * job.slots_per_host
        threads = min(slots, most or slots) * job.threads_per_slot
        shares[name] = max(1.0, threads / cores) if cores else 1.0
    return shares


def machine_of(host: Host) -> tuple[str, str]:
    """What is the same for hosts that are one machine, and for no others."""
    return ("boot", host.boot_id) if host.boot_id else ("host", host.name)
