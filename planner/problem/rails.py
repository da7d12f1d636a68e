"""The rail of each GPU, in clusters whose rails do not reach one another."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holmes_core.records.devices import Nic
from holmes_core.records.inventory import Cluster, Host, Inventory
from holmes_core.records.job import Job
from planner.problem.networks import VERBS_KINDS

Rail = str
"""A rail's network, or its number if hosts share no network on it."""


@dataclass(frozen=True)
class Rails:
    """The rails of the GPUs of each host, for hosts in clusters with separate rails only."""

    of_hosts: Mapping[str, Mapping[int, Rail]]  # by host and GPU index

    def of_slots(self, host: str, gpus: Sequence[int | None]) -> tuple[Rail, ...]:
        """Return the rails of these GPUs of `host`, in their order."""
        rails = self.of_hosts[host]
        return tuple(rails[gpu] for gpu in gpus if gpu is not None)


def read_rails(inventory: Inventory, job: Job) -> Rails:
    """Return the separate rails of `inventory`; none for a job on CPUs, whose traffic uses sockets."""
    if job.device == "cpu":
        return Rails({})
    hosts = {host.name: host for host in inventory.hosts}
    found: dict[str, Mapping[int, Rail]] = {}
    for cluster in rails_apart(inventory):
        found |= _of_cluster([hosts[name] for name in cluster.hosts])
    return Rails(found)


def rails_apart(inventory: Inventory) -> tuple[Cluster, ...]:
    """Return the clusters in which each rail of NCCL's own RDMA transport is a network that reaches no other rail."""
    return tuple(
        cluster
        for cluster in inventory.clusters
        if cluster.fabric.rails_apart is True and cluster.fabric.kind in VERBS_KINDS
    )


def _of_cluster(hosts: Sequence[Host]) -> dict[str, Mapping[int, Rail]]:
    """Return the rail by host and GPU: its network, if another host has the same one, else its number.

    Numbers count the rails that a host has. If a host lost one, the numbers of later rails moved up, but networks stay.
    If the rail of any GPU is not known, GPUs at the same position are assumed to be on one rail.
    """
    if any(gpu.rail is None for host in hosts for gpu in host.gpus):
        return {host.name: {gpu.index: str(at) for at, gpu in enumerate(host.gpus)} for host in hosts}
    networks = {host.name: _networks(host) for host in hosts}
    owners = Counter(network for of_host in networks.values() for network in set(of_host.values()))

    def rail(host: Host, number: int) -> Rail:
        network = networks[host.name].get(number, "")
        return network if owners[network] > 1 else str(number)

    return {host.name: {gpu.index: rail(host, gpu.rail or 0) for gpu in host.gpus} for host in hosts}


def _networks(host: Host) -> dict[int, str]:
    """Return the network of each rail, by number: InfiniBand's subnet prefix, or that of the netdev's first address."""
    found = {}
    for nic in host.nics:
        network = nic.subnet_prefix if nic.kind == "InfiniBand" else _ip_network(host, nic)
        if nic.rail is not None and network is not None:
            found[nic.rail] = network
    return found


def _ip_network(host: Host, nic: Nic) -> str | None:
    chosen = next((gid.netdev for gid in nic.gids if gid.index == nic.gid_choice), None)
    for netdev in host.netdevs:
        if netdev.name == (chosen or nic.netdev) and netdev.addresses:
            return str(ipaddress.ip_interface(netdev.addresses[0]).network)
    return None
