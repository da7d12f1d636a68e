"""`--via slurm`: a transport to all hosts that replaces the one in hosts.yaml."""

from __future__ import annotations

from typing import TypeVar

from holmes_core.errors import HolmesError
from holmes_core.hosts.hosts_file import HostsFile
from holmes_core.records.access import TransportName
from holmes_core.records.plan import IslandsPlan, Node, Plan

AnyPlan = TypeVar("AnyPlan", Plan, IslandsPlan)


def checked_via(via: str) -> TransportName:
    """Return the transport that `--via` names."""
    if via != "slurm":
        raise HolmesError(
            f"--via {via}: not known", "use `--via slurm`, or leave it out and set `transport:` in hosts.yaml"
        )
    return "slurm"


def hosts_reached_by(hosts: HostsFile, via: str | None) -> HostsFile:
    """Return the hosts with that transport. Addresses of another transport are dropped: Slurm uses the hosts' names."""
    if via is None:
        return hosts
    transport = checked_via(via)
    if transport == hosts.transport:
        return hosts
    entries = tuple(entry.model_copy(update={"address": None}) for entry in hosts.hosts)
    return hosts.model_copy(update={"transport": transport, "hosts": entries})


def reached_by(plan: AnyPlan, via: str | None) -> AnyPlan:
    """Return the plan with that transport to every node, the tunnel's hub included. Slurm uses the hosts' names."""
    if via is None:
        return plan
    access = {"transport": checked_via(via), "address": None}

    def reached(node: Node) -> Node:
        return node.model_copy(update={"access": node.access.model_copy(update=access)})

    if isinstance(plan, Plan):
        return plan.model_copy(update={"nodes": tuple(map(reached, plan.nodes))})
    hub = plan.tunnel_hub and plan.tunnel_hub.model_copy(update={"node": reached(plan.tunnel_hub.node)})
    islands = tuple(reached_by(island, via) for island in plan.islands)
    return plan.model_copy(update={"islands": islands, "tunnel_hub": hub})
