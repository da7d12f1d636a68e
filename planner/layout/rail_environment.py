"""Facts about a node's rails that NCCL cannot detect: a variable for each, and the reason.

Variables that job.yaml sets in `launch.environment`, or that a host's own NCCL settings contain, are left alone.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence

from holmes_core.partition_keys import can_talk, full_member_indices
from holmes_core.records.devices import Gid, Nic
from holmes_core.records.inventory import Cluster, Inventory
from holmes_core.records.job import Job
from holmes_core.records.plan import EnvironmentVariable
from planner.problem.networks import VERBS_KINDS
from planner.problem.rails import rails_apart

QUEUE_PAIRS_ON_BONDS = 2  # one for each port of the card in a bond

RailVariables = Mapping[str, tuple[EnvironmentVariable, ...]]
"""The variables of each node, by host."""


def variable(name: str, value: str, reason: str) -> EnvironmentVariable:
    """Return one variable of a node's environment."""
    return EnvironmentVariable(name=name, value=value, reason=reason)


def rail_environment(inventory: Inventory, job: Job, names: Sequence[str]) -> RailVariables:
    """Return the variables of hosts `names`. A host alone in its cluster gets only those that all nodes must share."""
    found: dict[str, list[EnvironmentVariable]] = {name: [] for name in names}
    if job.device == "cpu":
        return dict.fromkeys(names, ())
    hosts = {host.name: host for host in inventory.hosts}
    joined = [
        (cluster, members)
        for cluster in inventory.clusters
        if cluster.fabric.kind in VERBS_KINDS
        and len(members := [hosts[name] for name in cluster.hosts if name in found]) > 1
    ]
    cross_nic = _cross_nic(inventory, [cluster for cluster, _ in joined])
    for name in names:
        found[name] += cross_nic
    for cluster, members in joined:
        ports = {port.host: port for port in reversed(cluster.fabric.ports)}
        hcas = {name: ports[name].hcas if name in ports else () for name in cluster.hosts}
        everyone = {name: tuple(nic for nic in hosts[name].nics if nic.hca in hcas[name]) for name in cluster.hosts}
        rails = {host.name: everyone[host.name] for host in members}
        for name, variable in (*_gids(cluster, rails), *_partitions(everyone), *_queue_pairs(rails)):
            if name in found:
                found[name].append(variable)
    # A site knows its network, but that rails are apart is a fact.
    on_hosts = {setting.name for name in names for setting in hosts[name].nccl_settings} - {"NCCL_CROSS_NIC"}
    stated = {*job.launch.environment, *job.launch.secrets, *on_hosts}
    return {name: tuple(each for each in of if each.name not in stated) for name, of in found.items()}


def _cross_nic(inventory: Inventory, joined: Sequence[Cluster]) -> list[EnvironmentVariable]:
    """Return the setting that keeps groups on their rails, for all nodes: a group crosses rails if any rank may.

    Source: NCCL, src/init.cc (the largest crossNic of all ranks counts); its maintainers in NVIDIA/nccl#1933 and #2013
    (NCCL cannot detect that rails are apart, and connects across them unless this is 0).
    """
    named = ", ".join(cluster.name for cluster in rails_apart(inventory) if cluster in joined)
    reason = f"rails of cluster {named} do not reach one another; on all nodes, as NCCL uses a group's largest value"
    return [variable("NCCL_CROSS_NIC", "0", reason)] if named else []


Rails = Mapping[str, tuple[Nic, ...]]
"""The rails of each host of one cluster."""
Found = Iterable[tuple[str, EnvironmentVariable]]


def _queue_pairs(rails: Rails) -> Found:
    """Yield the number of queue pairs for all nodes of a cluster, since each end of a connection uses its own setting.

    Messages take turns on the queue pairs. Source: NCCL, src/transport/net_ib/connect.cc; NVIDIA/nccl#1015.
    """
    bonds = [f"{nic.device} of {host}" for host, nics in rails.items() for nic in nics if nic.bond]
    if bonds:
        reason = f"a queue pair uses one member of a bond such as {bonds[0]}; both ends need the same number"
        value = str(QUEUE_PAIRS_ON_BONDS)
        for host in rails:
            yield host, variable("NCCL_IB_QPS_PER_CONNECTION", value, reason)


def _partitions(rails: Rails) -> Found:
    """Yield P_Key indices if the keys at index 0, NCCL's default, do not let all hosts of a cluster communicate.

    Keys of hosts that the job does not use count too, as in the audit: NIC-PKEY has the remedy.
    Source: NCCL, src/transport/net_ib/connect.cc (pkey_index); opensm, doc/partition-config.txt.
    """
    tables = {host: [nic.pkeys for nic in nics if nic.pkeys] for host, nics in rails.items()}
    is_known = all(nic.kind == "InfiniBand" and nic.pkeys for nics in rails.values() for nic in nics)
    if not is_known or can_talk({host: {table[0] for table in of} - {0} for host, of in tables.items()}):
        return
    for host, index in (full_member_indices(tables) or {}).items():
        reason = f"this index holds the full-member P_Key {tables[host][0][index]:#06x} of all hosts; index 0 does not"
        if index:
            yield host, variable("NCCL_IB_PKEY", str(index), reason)


def _gids(cluster: Cluster, rails: Rails) -> Found:
    """Yield GID settings if NCCL would mix GIDs of VLANs and of ports among the rails, or finds no IPv4 one.

    By default it takes the first RoCE v2 entry with IPv4. Either all rails of a cluster get the same family and the
    ports' own interfaces, or none is set. Source: NCCL, src/transport/net_ib/connect.cc (ncclIbGetGidIndex).
    """
    ports = [nic for nics in rails.values() for nic in nics]
    if cluster.fabric.kind != "RoCE" or not ports or not all(nic.gids for nic in ports):
        return
    if all(_ipv4(nic) for nic in ports):
        own = [_takes_own(nic) for nic in ports]
        if any(own) and not all(own) and all(_own_ipv4(nic) for nic in ports):
            yield from _gid_indices(rails)
    elif all(any(gid.ipv4 is None and _is_global_ipv6(gid.gid) for gid in _version_2(nic)) for nic in ports):
        reason = f"not all rails of cluster {cluster.name} have an IPv4 address, but all have an IPv6 one"
        for host in rails:
            yield host, variable("NCCL_IB_ADDR_FAMILY", "AF_INET6", reason)


def _gid_indices(rails: Rails) -> Found:
    for host, nics in rails.items():
        wrong = [nic for nic in nics if not _takes_own(nic)]
        common = set.intersection(*({gid.index for gid in _own_ipv4(nic)} for nic in nics))
        if wrong and common:
            first = wrong[0]
            instead = f"that of {_ipv4(first)[0].netdev}, the first of its table"
            reason = f"the GID of {first.netdev}, as on other rails; for {first.device} NCCL would take {instead}"
            yield host, variable("NCCL_IB_GID_INDEX", str(min(common)), reason)


def _takes_own(nic: Nic) -> bool:
    """Return True if the entry that NCCL takes by default belongs to the port's own netdev."""
    return _ipv4(nic)[0] in _own_ipv4(nic)


def _own_ipv4(nic: Nic) -> list[Gid]:
    """Return the IPv4 entries of the port's own netdev, not of a VLAN on it; an entry without a netdev counts."""
    return [gid for gid in _ipv4(nic) if gid.netdev in (None, nic.netdev)]


def _ipv4(nic: Nic) -> list[Gid]:
    """Return the entries of RoCE v2 and IPv4, in order."""
    return [gid for gid in _version_2(nic) if gid.ipv4 is not None]


def _version_2(nic: Nic) -> list[Gid]:
    return sorted((gid for gid in nic.gids if gid.type == "RoCE v2"), key=lambda gid: gid.index)


def _is_global_ipv6(text: str) -> bool:
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return address.ipv4_mapped is None and not address.is_link_local
