"""Hosts and communicators of a run as rows of a table."""

from __future__ import annotations

from typing import NamedTuple

from prober.nccl_logs.log_facts import LogFacts, NcclProcess
from prober.nccl_logs.run_facts import host_names, network_of, plain_processes


class LoggedHost(NamedTuple):
    """A host as its processes in the logs describe it. `gdr` is None without a channel to other hosts."""

    host: str
    processes: int
    versions: tuple[str, ...]
    networks: tuple[str, ...]
    hcas: tuple[str, ...]
    interfaces: tuple[str, ...]
    gdr: bool | None
    devices_used: tuple[int, ...]


class LoggedCommunicator(NamedTuple):
    """A communicator. `nodes` is NCCL's count of hosts, and `completed` is True if the communicator was made."""

    ranks: int
    nodes: int | None
    ranks_in_logs: int
    channels: int | None
    completed: bool


def host_rows(facts: LogFacts) -> tuple[LoggedHost, ...]:
    """Return a row for each host. Processes without a host's name share one row."""
    hosts: dict[str, list[NcclProcess]] = {}
    names = host_names(facts)
    lacking = {names[key] for key in plain_processes(facts, names)}
    for key, name in names.items():
        hosts.setdefault(name, []).append(facts.processes[key])
    shown = sorted((name, members) for name, members in hosts.items() if name or len(hosts) == 1)
    return tuple(_host_row(name, members, name in lacking) for name, members in shown)


def _host_row(name: str, members: list[NcclProcess], lacks: bool) -> LoggedHost:
    direct = any(each.direct for each in members)
    interfaces = (name for each in members for name in (*each.interfaces, *each.out_of_band, *each.sockets))
    return LoggedHost(
        host=name,
        processes=sum(bool(each.pid) for each in members),
        versions=tuple(dict.fromkeys(each.version for each in members if each.version)),
        networks=tuple(dict.fromkeys(network for each in members if (network := network_of(each)))),
        hcas=tuple(dict.fromkeys(device.name for each in members for device in each.devices)),
        interfaces=tuple(dict.fromkeys(interfaces)),
        gdr=False if lacks else direct or None,
        devices_used=tuple(sorted({device for each in members for _, device in (*each.direct, *each.plain)})),
    )


def communicator_rows(facts: LogFacts) -> tuple[LoggedCommunicator, ...]:
    """Return a row for each communicator, the largest first."""
    rows = (
        LoggedCommunicator(each.num_ranks, each.num_nodes, len(each.ranks), each.channels, each.completed > 0)
        for each in facts.communicators.values()
    )
    return tuple(sorted(rows, key=lambda row: (-row.ranks, -row.ranks_in_logs)))
