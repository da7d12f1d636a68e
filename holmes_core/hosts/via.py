"""`--via slurm`: the way to all hosts, whatever hosts.yaml says of it."""

from __future__ import annotations

from holmes_core.errors import HolmesError
from holmes_core.hosts.hosts_file import HostsFile
from holmes_core.records.access import TransportName
from holmes_core.records.plan import Plan


def checked_via(via: str) -> TransportName:
    """The way that `--via` names."""
    if via != "slurm":
        raise HolmesError(f"--via {via}: no such way", "`--via slurm`, or none; hosts.yaml says the rest")
    return "slurm"


def hosts_reached_by(hosts: HostsFile, via: str | None) -> HostsFile:
    """The hosts reached that way. Addresses for another way are not Slurm's names, which are the hosts'."""
    if via is None:
        return hosts
    transport = checked_via(via)
    if transport == hosts.transport:
        return hosts
    entries = tuple(entry.model_copy(update={"address": None}) for entry in hosts.hosts)
    return hosts.model_copy(update={"transport": transport, "hosts": entries})


def reached_by(plan: Plan, via: str | None) -> Plan:
    """The plan with every node reached that way. Slurm knows the nodes by the hosts' names."""
    if via is None:
        return plan
    access = {"transport": checked_via(via), "address": None}
    nodes = (node.model_copy(update={"access": node.access.model_copy(update=access)}) for node in plan.nodes)
    return plan.model_copy(update={"nodes": tuple(nodes)})
