"""Test whether the rails are separate subnets, without a path from one to another."""

from __future__ import annotations

from collections.abc import Sequence

from prober.fabrics.fabric import Fabric
from prober.fabrics.same_fabric import leads_to, overlap
from prober.rails.port_networks import network_of


def rails_apart(fabrics: Sequence[Fabric]) -> bool | None:
    """Return True if no rail reaches a rail with another number; None if subnets are not known, as with EFA.

    InfiniBand rails with different subnet prefixes are apart. Those with one prefix and subnet manager are together.
    RoCE rails in different networks are apart, unless a route over one leads to another one's network.
    """
    counts = {len(fabric.rails) for fabric in fabrics}
    if max(counts, default=0) < 2 or fabrics[0].kind == "EFA":
        return None
    if fabrics[0].kind == "InfiniBand":
        return _infiniband(fabrics)
    found = [_roce(fabric) for fabric in fabrics if len(fabric.rails) > 1]
    return False if False in found else None if None in found else True


def _infiniband(fabrics: Sequence[Fabric]) -> bool | None:
    subnets = [[(nic.subnet_prefix, nic.sm_lid) for nic in fabric.rails] for fabric in fabrics]
    if any(None in subnet for of_host in subnets for subnet in of_host):
        return None
    prefixes = [[prefix for prefix, _ in of_host] for of_host in subnets]
    if all(len(set(of_host)) == len(of_host) for of_host in prefixes):
        return True
    return False if all(len(set(of_host)) == 1 for of_host in subnets) else None


def _roce(fabric: Fabric) -> bool | None:
    networks = [frozenset(map(network_of, interfaces)) for interfaces in fabric.interfaces]
    if not all(networks):
        return None
    if fabric.routed_anywhere:
        return False
    for number, own in enumerate(networks):
        others = [network for rail, there in enumerate(networks) if rail != number for network in there]
        if any(overlap(one, other) for one in own for other in others):
            return False
        if leads_to(fabric.routes[number], others):
            return False
    return True
