"""Rules that compare the rails of hosts: lost rails, cabling, partitions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from holmes_core.partition_keys import FULL_MEMBER, can_talk, full_member_indices, is_limited
from holmes_core.records.inventory import Host
from prober.fabrics.fabric import Fabric, fabric_of
from prober.rails.choose_rails import is_stated, rails_of, undetermined_ports
from prober.rails.port_networks import network_of
from prober.rule_text import FIELD
from prober.rules.port_rules import missing_rails, ports_down
from prober.rules.rule import Evidence, PeerEvidence, PeerRule, Rule, majority, named


def _swapped(peers: Sequence[Host]) -> PeerEvidence:
    """Yield rails in a subnet that belongs to another rail on peers: two cables or two addresses are swapped.

    Rails that moved up behind a lost one are still in order.
    """
    subnets = {host.name: _rail_subnets(fabric_of(host)) for host in peers}
    votes: dict[str, Counter[int]] = {}
    for of_host in subnets.values():
        for subnet, number in of_host.items():
            votes.setdefault(subnet, Counter())[number] += 1
    found: dict[str, str] = {}
    for host in peers:
        rails = fabric_of(host).rails
        moved, places = [], []
        for subnet, number in subnets[host.name].items():
            others = votes[subnet].copy()
            others[number] -= 1
            usual, count = max(others.items(), key=lambda item: (item[1], -item[0]))
            places.append(usual if count > others[number] else number)
            if usual != number and count > others[number]:
                moved.append(f"rail {number} ({rails[number].hca}) is in {subnet}, which is rail {usual} elsewhere")
        if moved and places != sorted(set(places)):
            found[host.name] = f"{host.name}: {'; '.join(moved)}"
    if 2 * len(found) >= len(peers):  # it is not known which are right
        yield from [(tuple(found), " | ".join(found.values()))] if found else []
    else:
        yield from (((name,), evidence) for name, evidence in found.items())


def _rail_subnets(fabric: Fabric) -> Mapping[str, int]:
    """Return the number of the rail in each subnet: a network, or a prefix of InfiniBand. Empty if rails share one."""
    if fabric.kind == "InfiniBand":
        places = [(nic.subnet_prefix, number) for number, nic in enumerate(fabric.rails) if nic.subnet_prefix]
    elif fabric.kind != "RoCE":
        return {}
    else:
        places = [(network_of(one), number) for number, of_rail in enumerate(fabric.interfaces) for one in of_rail]
    several = len({subnet for subnet, _ in places}) == len(places) == len(set(places)) > 1
    return {str(subnet): number for subnet, number in places} if several else {}


def _undetermined(host: Host) -> Evidence:
    """Yield a host with ports that may or may not be rails, because the outputs show too little."""
    ports = undetermined_ports(host)
    if ports and rails_of(host):
        rails = ", ".join(nic.hca for nic in rails_of(host))
        yield f"the rails are {rails}, but of {len(ports)} ports more is not known ({ports[0].hca}: {ports[0].why})"


def _partitions_apart(peers: Sequence[Host]) -> PeerEvidence:
    """Yield hosts whose ports cannot talk: for that, keys agree in 15 bits and one of both is a full member."""
    keys = {host.name: found for host in peers if (found := _keys_in_use(host))}
    if _other_indices(peers) is not None:
        return
    partitions: dict[str, list[str]] = {}
    for name, found in keys.items():
        partitions.setdefault(_keys({key & ~FULL_MEMBER for key in found}), []).append(name)
    if len(partitions) > 1:
        groups = "; ".join(f"{key} on {named(hosts)}" for key, hosts in sorted(partitions.items()))
        yield tuple(keys), f"the partition that NCCL uses is {groups}"
    limited = [name for name, found in keys.items() if is_limited(found)]
    if len(limited) > 1:
        yield tuple(limited), f"limited members (no 0x8000 in the P_Key at index {_index(peers)}): {named(limited)}"


def _other_partition(peers: Sequence[Host]) -> PeerEvidence:
    """Yield the hosts if the keys at index 0 do not let them talk, and keys at other indices do."""
    indices = _other_indices(peers)
    keys = {host.name: _keys_in_use(host) for host in peers}
    if indices is not None and not can_talk(keys):
        at = "; ".join(f"{index} on {name}" for name, index in indices.items())
        yield tuple(indices), f"the P_Keys at index 0 do not let all talk; all rails are full members at index {at}"


def _other_indices(peers: Sequence[Host]) -> dict[str, int] | None:
    """Return Holmes's NCCL_IB_PKEY of each host, or None if a host sets its own or no index serves all."""
    if any(setting.name == "NCCL_IB_PKEY" for host in peers for setting in host.nccl_settings):
        return None
    rails = {host.name: rails_of(host) for host in peers}
    if not all(nic.kind == "InfiniBand" and nic.pkeys for nics in rails.values() for nic in nics):
        return None
    return full_member_indices({name: [nic.pkeys or () for nic in nics] for name, nics in rails.items()})


def _keys_in_use(host: Host) -> set[int]:
    """Return the P_Keys of the InfiniBand rails at the index that NCCL uses, without void entries."""
    index = _index((host,))
    tables = [nic.pkeys for nic in rails_of(host) if nic.kind == "InfiniBand" and nic.pkeys]
    return {table[index] for table in tables if index < len(table)} - {0}


def _index(hosts: Sequence[Host]) -> int:
    """Return NCCL_IB_PKEY, or 0 if it is not set. NCCL reads numbers as C does, including 0x2."""
    values = [setting.value for host in hosts for setting in host.nccl_settings if setting.name == "NCCL_IB_PKEY"]
    return next((int(value, 0) for value in values if re.fullmatch(r"0x[0-9a-fA-F]{1,4}|0|[1-9]\d{0,4}", value)), 0)


def _partitions_of_their_own(hosts: Sequence[Host]) -> PeerEvidence:
    """Yield hosts under the subnet manager of others but in none of their partitions, so in another cluster."""
    below_one: dict[tuple[object, ...], dict[str, frozenset[int]]] = {}
    for host in hosts:
        fabric = fabric_of(host)
        if fabric.sm_lids and fabric.partitions:
            below_one.setdefault((fabric.subnet_prefixes, fabric.sm_lids), {})[host.name] = fabric.partitions
    for partitions in below_one.values():
        usual, _ = Counter(partitions.values()).most_common(1)[0]
        apart = {name: own for name, own in partitions.items() if not own & usual}
        if apart:
            shown = "; ".join(f"{_keys(own)} on {name}" for name, own in apart.items())
            yield tuple(apart), f"partitions {shown}; {_keys(usual)} on others below the same subnet manager"


def _keys(partitions: Iterable[int]) -> str:
    return ", ".join(f"{key:#06x}" for key in sorted(partitions))


HOST_RULES = (
    Rule(
        "NIC-RAILS-NOT-TOLD",
        "W",
        "several RDMA ports may be rails, and it is unknown which",
        "the job may use the front end and leave the rails idle",
        "name the rails by `rails:` in hosts.yaml, or record `ibstat` too",
        FIELD,
        _undetermined,
    ),
)


def _lost_all(hosts: Sequence[Host]) -> Mapping[str, Sequence[str]]:
    """Return hosts without a rail, with their ports of card models that are rails on other hosts of the job."""
    models = {(rail.kind, rail.hca_type) for host in hosts for rail in rails_of(host) if rail.hca_type}
    without = [host for host in hosts if not rails_of(host)]
    down = {
        host.name: [n.hca for n in ports_down(host) if (n.kind, n.hca_type) in models and is_stated(n) is not False]
        for host in without
    }
    return {name: ports for name, ports in down.items() if ports}


def _no_port_up(hosts: Sequence[Host]) -> PeerEvidence:
    """Yield hosts with RDMA cards and no rail. Sockets may be intended: cards without a cable are common."""
    lost = _lost_all(hosts)
    for host in hosts:
        if not rails_of(host) and host.name not in lost:
            yield from (((host.name,), seen) for seen in missing_rails(host))


def _no_card(hosts: Sequence[Host]) -> PeerEvidence:
    """Yield hosts known to have no RDMA port, where most hosts with the same GPUs have rails."""
    alike: dict[tuple[str | None, ...], list[Host]] = {}
    for host in hosts:
        alike.setdefault(tuple(sorted(gpu.name or "" for gpu in host.gpus)), []).append(host)
    for gpus, machines in alike.items():
        without = [
            host
            for host in machines
            if host.nics and all(nic.kind == "Ethernet" and nic.usable_by_nccl_ib is False for nic in host.nics)
        ]
        usual = majority(float(len(rails_of(host))) for host in machines)
        if gpus and usual and 2 * len(without) < len(machines):
            yield from (((host.name,), f"no RDMA port; most hosts with these GPUs have {usual:g}") for host in without)


PEER_RULES = (
    PeerRule(
        "NIC-PKEY",
        "F",
        "the P_Keys that NCCL uses on two hosts of a cluster differ, or both are of limited members",
        "queue pairs connect and nothing arrives: NCCL ends with error 12, retries exceeded",
        "have the fabric's owner make the ports full members (`defmember=full` in opensm's partitions.conf); "
        "or, where another index has a full member's key, set NCCL_IB_PKEY to that index in `launch.environment` of "
        "job.yaml",
        "opensm, doc/partition-config.txt; NCCL, src/transport/net_ib (NCCL_IB_PKEY, 0 by default)",
        _partitions_apart,
    ),
    PeerRule(
        "NIC-PKEY",
        "I",
        "the P_Keys at index 0 do not let all hosts of a cluster talk, and those at other indices do",
        "left alone, NCCL uses index 0 and ends with error 12, retries exceeded",
        "nothing with Holmes, which sets NCCL_IB_PKEY to the index on each host",
        "opensm, doc/partition-config.txt; NCCL, src/transport/net_ib (NCCL_IB_PKEY, 0 by default)",
        _other_partition,
    ),
    PeerRule(
        "NIC-PORT-DOWN",
        "F",
        "all ports of a host are down, and other hosts have rails of the same card model",
        "its rails are missing: all others would wait for one host that is reached by sockets",
        "bring its ports up: cable, optic, switch port; if others are its rails, name them by `rails:` in hosts.yaml; "
        "or leave the host out",
        "NCCL, src/transport/net_ib/init.cc; " + FIELD,
        lambda hosts: (
            ((name,), f"{', '.join(ports)}: all are down; other hosts have rails of this card model")
            for name, ports in _lost_all(hosts).items()
        ),
        scope="job",
    ),
    PeerRule(
        "NIC-PORT-DOWN",
        "W",
        "the host has no rail, and RDMA ports that are not Active; others have none of this card model either",
        "others reach the host by sockets: NCCL skips the ports without a message",
        "if this host is to use RDMA, bring the ports up; ports that are none of its rails leave out of `rails:` in "
        "hosts.yaml",
        "NVIDIA MFT documentation, mlxlink (--port_state); NCCL, src/transport/net_ib/init.cc",
        _no_port_up,
        scope="job",
    ),
    PeerRule(
        "NIC-COUNT-DIFFERS",
        "W",
        "a host has no RDMA port at all, and most hosts with the same GPUs have rails",
        "the host becomes a separate cluster that others reach by sockets",
        "`lspci -d 15b3:` (by vendor) and `lsmod | grep ib_core`: the cards or their driver are gone, or a container "
        "was not given the devices",
        "NVIDIA/NVSentinel, NIC health monitor; " + FIELD,
        _no_card,
        scope="job",
    ),
    PeerRule(
        "NIC-PKEY",
        "W",
        "InfiniBand hosts under one subnet manager are in disjoint partitions",
        "they become separate clusters, and reach each other by sockets",
        "if it is to be one cluster, have the fabric's owner put the ports into one partition",
        "opensm, doc/partition-config.txt",
        _partitions_of_their_own,
        scope="job",
    ),
    PeerRule(
        "TOPO-RAIL-SWAPPED",
        "W",
        "rails with the same number are in different subnets, while each subnet has one rail number on most hosts",
        "GPU i of this host is on another rail than GPU i of its peers; where rails are apart, Holmes has GPUs of one "
        "network meet, and NCCL may still pair rails by number",
        "swap the cables or the addresses; if the numbers are wrong, name the ports with `rails:` in hosts.yaml",
        "NVIDIA DGX SuperPOD reference architecture, network fabrics (rail-aligned groups of nodes); " + FIELD,
        _swapped,
    ),
)
