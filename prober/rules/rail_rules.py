"""Rails of the hosts against each other: lost ones, cabling, masks, addresses, partitions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from holmes_core.partition_keys import FULL_MEMBER, can_talk, full_member_indices, is_limited
from holmes_core.records.inventory import Host
from prober.clusters import fabric_of
from prober.islands.collisions import addresses_given_twice
from prober.islands.fabric import Fabric
from prober.islands.same_fabric import overlap
from prober.rails.choose_rails import ports_not_told, rails_of
from prober.rails.port_networks import network_of, parsed
from prober.rules.port_rules import ports_down
from prober.rules.rule import FIELD, Evidence, PeerEvidence, PeerRule, Rule, named

POINT_TO_POINT = 30  # bits of an IPv4 prefix that holds a host and its switch port, and no other host


def _swapped(peers: Sequence[Host]) -> PeerEvidence:
    """A rail in the subnet that is another rail of all peers: two cables are swapped, or two addresses."""
    subnets = {host.name: _rail_subnets(fabric_of(host)) for host in peers}
    votes: dict[str, Counter[int]] = {}
    for of_host in subnets.values():
        for subnet, number in of_host.items():
            votes.setdefault(subnet, Counter())[number] += 1
    found: dict[str, str] = {}
    for host in peers:
        rails = fabric_of(host).rails
        moved = []
        for subnet, number in subnets[host.name].items():
            others = votes[subnet].copy()
            others[number] -= 1
            usual, count = max(others.items(), key=lambda item: (item[1], -item[0]))
            if usual != number and count > others[number]:
                moved.append(f"rail {number} ({rails[number].hca}) is in {subnet}, which is rail {usual} elsewhere")
        if moved:
            found[host.name] = f"{host.name}: {'; '.join(moved)}"
    if 2 * len(found) >= len(peers):  # which of them are right, nobody can say
        yield from [(tuple(found), " | ".join(found.values()))] if found else []
    else:
        yield from (((name,), evidence) for name, evidence in found.items())


def _rail_subnets(fabric: Fabric) -> Mapping[str, int]:
    """The number of the one rail in each subnet: network, or prefix of InfiniBand. Empty where rails share one."""
    if fabric.kind == "InfiniBand":
        places = [(nic.subnet_prefix, number) for number, nic in enumerate(fabric.rails) if nic.subnet_prefix]
    elif fabric.kind != "RoCE":
        return {}
    else:
        places = [(network_of(one), number) for number, of_rail in enumerate(fabric.interfaces) for one in of_rail]
    several = len({subnet for subnet, _ in places}) == len(places) == len(set(places)) > 1
    return {str(subnet): number for subnet, number in places} if several else {}


def _masks(peers: Sequence[Host]) -> PeerEvidence:
    """Networks of rails that hold one another and are not the same: a mask is wrong somewhere."""
    owners: dict[str, list[str]] = {}
    for host in peers:
        for network in fabric_of(host).networks:
            owners.setdefault(network, []).append(host.name)
    wide = [network for network in owners if not _is_point_to_point(network)]
    for network in sorted(wide):
        inside = [other for other in sorted(wide) if other != network and overlap(network, other)]
        narrower = [other for other in inside if _length(other) > _length(network)]
        if narrower:
            shown = "; ".join(f"{each} on {', '.join(owners[each])}" for each in (network, *narrower))
            concerned = {name for each in (network, *narrower) for name in owners[each]}
            yield tuple(host.name for host in peers if host.name in concerned), shown


def _is_point_to_point(network: str) -> bool:
    prefix = parsed(network)
    return prefix.max_prefixlen - prefix.prefixlen <= 32 - POINT_TO_POINT


def _length(network: str) -> int:
    return parsed(network).prefixlen


def _ipoib_differs(peers: Sequence[Host]) -> PeerEvidence:
    """InfiniBand hosts whose IPoIB networks do not meet: the interface with the address is another one."""
    of_hosts = {host.name: fabric_of(host).networks for host in peers if fabric_of(host).kind == "InfiniBand"}
    known = {name: networks for name, networks in of_hosts.items() if networks}
    first = next(iter(known.values()), frozenset())
    if any(not any(overlap(a, b) for a in first for b in networks) for networks in known.values()):
        shown = "; ".join(f"{', '.join(sorted(networks))} on {name}" for name, networks in known.items())
        yield tuple(known), f"IPoIB networks of one fabric: {shown}"


def _addresses_twice(peers: Sequence[Host]) -> PeerEvidence:
    for pair, address in addresses_given_twice({host.name: fabric_of(host) for host in peers}).items():
        yield pair, f"a rail of both has the address {address}"


def _not_told(host: Host) -> Evidence:
    """Most ports may or may not be rails: the outputs tell too little of them."""
    ports = ports_not_told(host)
    if ports and rails_of(host):
        rails = ", ".join(nic.hca for nic in rails_of(host))
        yield f"the rails are {rails}, but of {len(ports)} ports more is not known ({ports[0].hca}: {ports[0].why})"


def _partitions_apart(peers: Sequence[Host]) -> PeerEvidence:
    """Ports talk if their keys agree in 15 bits and at least one of both is a full member."""
    keys = {host.name: found for host in peers if (found := _keys_in_use(host))}
    if _other_indices(peers) is not None:
        return
    partitions: dict[str, list[str]] = {}
    for name, found in keys.items():
        shown = ", ".join(f"{key:#06x}" for key in sorted({key & ~FULL_MEMBER for key in found}))
        partitions.setdefault(shown, []).append(name)
    if len(partitions) > 1:
        groups = "; ".join(f"{key} on {named(hosts)}" for key, hosts in sorted(partitions.items()))
        yield tuple(keys), f"the partition that NCCL uses is {groups}"
    limited = [name for name, found in keys.items() if is_limited(found)]
    if len(limited) > 1:
        yield tuple(limited), f"limited members (no 0x8000 in the P_Key at index {_index(peers)}): {named(limited)}"


def _other_partition(peers: Sequence[Host]) -> PeerEvidence:
    """Where the keys at index 0 do not let hosts talk, and those at others do."""
    indices = _other_indices(peers)
    keys = {host.name: _keys_in_use(host) for host in peers}
    if indices is not None and not can_talk(keys):
        at = "; ".join(f"{index} on {name}" for name, index in indices.items())
        yield tuple(indices), f"the P_Keys at index 0 do not let all talk; all rails are full members at index {at}"


def _other_indices(peers: Sequence[Host]) -> dict[str, int] | None:
    """What Holmes sets NCCL_IB_PKEY to, by host; None where a host sets it itself, or nothing serves all."""
    if any(setting.name == "NCCL_IB_PKEY" for host in peers for setting in host.nccl_settings):
        return None
    rails = {host.name: rails_of(host) for host in peers}
    if not all(nic.kind == "InfiniBand" and nic.pkeys for nics in rails.values() for nic in nics):
        return None
    return full_member_indices({name: [nic.pkeys or () for nic in nics] for name, nics in rails.items()})


def _keys_in_use(host: Host) -> set[int]:
    """The P_Keys of the InfiniBand rails at the index that NCCL uses there; void entries are none."""
    index = _index((host,))
    tables = [nic.pkeys for nic in rails_of(host) if nic.kind == "InfiniBand" and nic.pkeys]
    return {table[index] for table in tables if index < len(table)} - {0}


def _index(hosts: Sequence[Host]) -> int:
    """NCCL_IB_PKEY, 0 where nobody sets it; NCCL reads numbers as C does, 0x2 too."""
    values = [setting.value for host in hosts for setting in host.nccl_settings if setting.name == "NCCL_IB_PKEY"]
    return next((int(value, 0) for value in values if re.fullmatch(r"0x[0-9a-fA-F]{1,4}|0|[1-9]\d{0,4}", value)), 0)


HOST_RULES = (
    Rule(
        "NIC-RAILS-NOT-TOLD",
        "W",
        "more RDMA ports may be rails than are known to be any",
        "the job may use the front end and leave the rails idle",
        "name the rails by `rails:` in hosts.yaml, or record `ibstat` too",
        FIELD,
        _not_told,
    ),
)


def _all_rails_down(hosts: Sequence[Host]) -> PeerEvidence:
    """A host without any rail, of the cards by which others of the job have theirs."""
    models = {(rail.kind, rail.hca_type) for host in hosts for rail in rails_of(host) if rail.hca_type}
    for host in hosts:
        down = [nic.hca for nic in ports_down(host) if (nic.kind, nic.hca_type) in models]
        if down and not rails_of(host):
            yield (host.name,), f"{', '.join(down)}: all are down; other hosts have rails of this card model"


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
        "cluster",
        _partitions_apart,
    ),
    PeerRule(
        "NIC-PKEY",
        "I",
        "the P_Keys at index 0 do not let all hosts of a cluster talk, and those at other indices do",
        "left alone, NCCL uses index 0 and ends with error 12, retries exceeded",
        "nothing with Holmes, which sets NCCL_IB_PKEY to the index on each host",
        "opensm, doc/partition-config.txt; NCCL, src/transport/net_ib (NCCL_IB_PKEY, 0 by default)",
        "cluster",
        _other_partition,
    ),
    PeerRule(
        "NIC-PORT-DOWN",
        "F",
        "all ports of a host are down, and other hosts have rails of the same card model",
        "its rails are out: all others would wait for one host that is reached by sockets",
        "bring its ports up: cable, optic, switch port; or leave the host out",
        "NCCL, src/transport/net_ib/init.cc; " + FIELD,
        "job",
        _all_rails_down,
    ),
    PeerRule(
        "TOPO-RAIL-SWAPPED",
        "W",
        "rails of one number stand in different subnets, and each of these has rails of one number on most hosts",
        "GPU i of this host is on another rail than GPU i of its peers; where rails are apart, Holmes has GPUs of one "
        "network meet, and NCCL may still pair rails by number",
        "swap the cables or the addresses; if the numbers are wrong, name the ports with `rails:` in hosts.yaml",
        "NVIDIA DGX SuperPOD reference architecture, network fabrics (rail-aligned groups of nodes); " + FIELD,
        "cluster",
        _swapped,
    ),
    PeerRule(
        "NET-MASK-DIFFERS",
        "W",
        "a network of rails lies inside another one's, with a longer mask",
        "some peers are sent to by a gateway or not at all",
        "give the addresses of one network one mask",
        "Linux, ip-route(8) (the longest prefix wins)",
        "cluster",
        _masks,
    ),
    PeerRule(
        "NET-IPOIB-DIFFERS",
        "W",
        "InfiniBand hosts that look like one fabric have IPoIB networks that do not meet",
        "taken to be one fabric; sockets over IPoIB would not connect",
        "give one interface of each host an address in one network; if it is two fabrics, pin `cluster:` in hosts.yaml",
        "Linux, Documentation/infiniband/ipoib.rst; " + FIELD,
        "cluster",
        _ipoib_differs,
    ),
    PeerRule(
        "NET-ADDRESS-TWICE",
        "W",
        "rails of two hosts have one address, and others that differ",
        "packets for one of the two reach the other",
        "correct one of the addresses; `arping -D -I NETDEV ADDRESS` tells whether another host answers for it",
        "RFC 5227, IPv4 address conflict detection; iputils, arping(8)",
        "cluster",
        _addresses_twice,
    ),
)
