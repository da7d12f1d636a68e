"""`--via slurm`: the transport to all hosts, in place of the one in hosts.yaml."""

from __future__ import annotations

from holmes_core.errors import HolmesError
from holmes_core.hosts.hosts_file import HostsFile
from holmes_core.records.access import TransportName
from holmes_core.records.plan import Node, Plan


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


def reached_by(plan: Plan, via: str | None) -> Plan:
    """Return the plan with that transport to every node."""
    if via is None:
        return plan
    return plan.model_copy(update={"nodes": tuple(node_reached_by(node, via) for node in plan.nodes)})


def node_reached_by(node: Node, via: str | None) -> Node:
    """Return the node with that transport. Slurm knows it by its host's name."""
    if via is None:
        return node
    access = {"transport": checked_via(via), "address": None}
    return node.model_copy(update={"access": node.access.model_copy(update=access)})
