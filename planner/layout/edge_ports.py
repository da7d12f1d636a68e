"""The ports of a layout's edges: NICs, trunks and uplinks that edges in both directions share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from holmes_core.records.plan import PlanGroup
from holmes_runtime.config.rank_grid import EDGE_AXES
from planner.layout.layout import Layout
from planner.problem.networks import Networks
from planner.search.closed_form import PortName


def edge_ports(networks: Networks, layout: Layout) -> Mapping[str, tuple[tuple[PortName, float], ...]]:
    """Return the ports of each first shard's edge, by its name, with the bytes/s that each replica gets of them."""
    edges = [group for group in layout.groups_of_first_shards if group.axis in EDGE_AXES]
    found = {group.name: list(_ports(networks, layout, group)) for group in edges}
    replica = {group.name: layout.ranks[group.ranks[0]].dp_rank for group in edges}
    uses = {(group.axis, port, replica[group.name]) for group in edges for port, _ in found[group.name]}
    users = Counter((axis, port) for axis, port, _ in uses)
    tp = layout.candidate.tp  # the shards of a rank share its host
    return {
        group.name: tuple((port, rate / tp / users[group.axis, port]) for port, rate in found[group.name])
        for group in edges
    }


def _ports(networks: Networks, layout: Layout, group: PlanGroup) -> Iterator[tuple[PortName, float]]:
    """Yield an edge's ports with a known rate: the sender's NIC, the receiver's, a trunk and uplinks."""
    ends = [layout.ranks[rank] for rank in group.ranks]
    hosts, positions = [end.host for end in ends], (0, 1) if group.axis == "pp_forward" else (1, 0)
    if hosts[0] == hosts[1]:
        return
    route = networks.route(hosts)
    for position, way in zip(positions, ("out", "in"), strict=True):
        rate = route.ports_bytes_per_s[position]
        if rate:
            yield (hosts[position], "NVLink" if route.nvlink else route.interfaces[position], way), rate
    sender, receiver = (ends[position].cluster for position in positions)
    yield from networks.shared_wires(sender, receiver).items()
