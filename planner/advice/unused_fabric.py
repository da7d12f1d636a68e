"""Networks inside clusters that a run on GPUs leaves unused, as NCCL reads its socket interfaces once per process."""

from __future__ import annotations

from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import Plan, PlanGroup
from holmes_core.units import format_rate
from planner.advice.explain import leave_hosts
from planner.problem.networks import Networks


def unused_fabric_sentences(plan: Plan, inventory: Inventory) -> tuple[str, ...]:
    """Return a sentence for each cluster whose groups need another socket interface than groups between clusters.

    Source: NCCL, src/misc/socket.cc (a process reads NCCL_SOCKET_IFNAME once); a communicator sets only the transport.
    """
    networks = Networks(inventory, plan.job)
    inside: dict[str, list[PlanGroup]] = {}
    for group, leaves in zip(plan.groups, leave_hosts(plan), strict=True):
        clusters = {plan.ranks[rank].cluster for rank in group.ranks}
        if leaves and len(clusters) == 1 and group.net_name == "Socket" and not group.nvlink:
            inside.setdefault(clusters.pop(), []).append(group)
    return tuple(
        sentence
        for cluster, groups in inside.items()
        for sentence in _sentence(networks, cluster, plan.ranks[groups[0].ranks[0]].host, len(groups))
    )


def _sentence(networks: Networks, cluster: str, host: str, num_groups: int) -> tuple[str, ...]:
    own, shared = networks.fabric_port(host), networks.shared_port(host)
    if own is None or own.netdev in (None, shared.netdev):
        return ()
    return (
        f"Cluster {cluster}'s own network, {own.netdev} of {host} ({format_rate(own.bandwidth_bytes_per_s)}), stays "
        f"unused: NCCL takes one list of socket interfaces for all groups of a process, and those between clusters "
        f"need {shared.netdev}. So {num_groups} of the groups inside {cluster} also use {shared.netdev} "
        f"({format_rate(shared.bandwidth_bytes_per_s)}), and are priced for it. RDMA would use the cluster's network.",
    )
