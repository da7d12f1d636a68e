"""Choose the connections between nodes that are tried before any rank starts, and their order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from holmes_core.records.plan import Plan
from holmes_runtime.config.messages import Destination, Ready


class ReachCheck(NamedTuple):
    """Node `here` is to reach node `there`, both by rank."""

    here: int
    there: int
    destination: Destination


def tries_of(plan: Plan, answers: Mapping[int, Ready], master_port: int) -> list[ReachCheck]:
    """Return the tries: from each node to the rendezvous and, on its groups' interfaces, to their next members."""
    first = plan.nodes[0].shared_address
    found = [
        ReachCheck(node.node_rank, 0, Destination("the rendezvous", node.shared_address, first, master_port))
        for node in plan.nodes
    ]
    for here, interface, there, other in sorted(set(_neighbours(plan))):
        source, target = answers[here].listeners.get(interface), answers[there].listeners.get(other)
        if source and target:
            what = f"{plan.nodes[there].host} over {interface} to {other}"
            found.append(ReachCheck(here, there, Destination(what, source.address, target.address, target.port)))
    return found


def rounds_of(plan: Plan, tries: Sequence[ReachCheck]) -> list[list[ReachCheck]]:
    """Return the tries in rounds; all tries of one round run at once.

    There is one round, except with tunnels: there the later of two nodes sends first. WireGuard ends that begin at the
    same moment drop each other's answers, and often do so again 5 s later.
    """
    if plan.nodes[0].tunnel_endpoint is None:
        return [list(tries)]
    return [[each for each in tries if each.here >= each.there], [each for each in tries if each.here < each.there]]


def _neighbours(plan: Plan) -> Iterator[tuple[int, str, int, str]]:
    """Yield (node, interface, next node, its interface) for each two neighbours on the ring of a group's members."""
    node_of = {node.host: node.node_rank for node in plan.nodes}
    nodes = [node_of[rank.host] for rank in plan.ranks]
    for group in plan.groups:
        members = list(zip((nodes[rank] for rank in group.ranks), group.interfaces, strict=True))
        for (here, interface), (there, other) in pairwise([*members, members[0]]):
            if here != there:
                yield here, interface, there, other
