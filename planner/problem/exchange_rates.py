"""Speeds of exchanging gradients and weights, by the sites of a stage's replicas: seconds per parameter byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from math import inf

from planner.cost.collectives import shard_exchange_bytes, times_as_long
from planner.problem.coefficients import Coefficients, crossings_of, joined_s

RINGS_WHERE_HOSTS_ARE_SHARED = 2  # per NIC: if stages do not begin at hosts' boundaries, two may share a host

Site = tuple[int, ...]
"""The classes that hold the replicas of one stage, ascending."""


def site_latency_s(coeffs: Coefficients, site: Site) -> float:
    """Return the latency of one hop between the hosts of a site."""
    return max(crossing.latency_s for crossing in crossings_of(coeffs, site)) if coeffs.crossings else 0.0


def around_latency_s(coeffs: Coefficients, site: Site) -> float:
    """Return the latency of all hops around the replicas of a site: in one ring, or inside clusters and across."""
    dp, copies = coeffs.candidate.dp, coeffs.candidate.copies
    if copies == 1:
        return (dp - 1) * site_latency_s(coeffs, site)
    return (dp // copies - 1) * inside_latency_s(coeffs, site) + (copies - 1) * site_latency_s(coeffs, site)


def inside_latency_s(coeffs: Coefficients, site: Site) -> float:
    """Return the latency of one hop between hosts of the same cluster."""
    return max(site_latency_s(coeffs, (c,)) for c in site)


def rings_on_nic(coeffs: Coefficients, site: Site, whole_replicas: Mapping[int, int] | None = None) -> int:
    """Return the data-parallel rings on the busiest NIC while a stage on `site` is reduced; 0 inside one host.

    `whole_replicas`, by class: the replicas that keep all stages in one class, so that all stages of a host reduce at
    once. Without it, a site of one class shares NICs only if stages do not begin at hosts' boundaries. A site of
    several classes uses the slots that others leave, so it shares hosts; over several clusters it has the shared
    network to itself.
    """
    if whole_replicas is not None:
        stages = (-(-coeffs.group_slots_per_host[c] // whole_replicas[c]) for c in site)
        return max(min(coeffs.candidate.pp, at_once) for at_once in stages)
    if len(site) > 1:
        return RINGS_WHERE_HOSTS_ARE_SHARED if len({coeffs.cluster[c] for c in site}) == 1 else 1
    per_host, dp = coeffs.group_slots_per_host[site[0]], coeffs.candidate.dp
    if coeffs.aligned:
        return 0 if dp <= per_host else 1
    return 1 if per_host and dp % per_host == 0 else RINGS_WHERE_HOSTS_ARE_SHARED


def trunk_slowdowns(coeffs: Coefficients, sites: Sequence[Site], layers: Sequence[int]) -> list[float]:
    """Return, by pipeline rank, the slowdown of its exchange by others on the same trunk."""
    sizes = [coeffs.sync_bytes(rank, held) for rank, held in enumerate(layers)]
    crosses = [len({coeffs.cluster[c] for c in site}) > 1 for site in sites]
    longer = times_as_long([size for size, far in zip(sizes, crosses, strict=True) if far])
    return [longer[size] if far else 1.0 for size, far in zip(sizes, crosses, strict=True)]


def are_even(clusters: Iterable[Hashable]) -> bool:
    """Return True if all clusters with replicas of a stage hold equally many; `clusters` are by replica."""
    return len(set(Counter(clusters).values())) == 1


def replicas_by_cluster(coeffs: Coefficients, site: Site) -> int | None:
    """Return the number of replicas per cluster of `site` if all clusters can hold equally many, else None."""
    slots: Counter[Hashable] = Counter()
    for c in site:
        slots[coeffs.cluster[c]] += coeffs.group_slots[c]
    each, rest = divmod(coeffs.candidate.dp, len(slots))
    return each if rest == 0 and each <= min(slots.values()) else None


def sync_s_per_byte(
    coeffs: Coefficients, site: Site, rings: int, times_as_long: float = 1.0, is_even: bool | None = None
) -> float:
    """Return the seconds per byte of a stage's exchange while `rings` share the busiest NIC; 0 rings: inside one host.

    Other stages on the trunk between clusters slow it down by `times_as_long`. The exchange uses one ring, or two
    levels (inside clusters first, then across) if the engine can and every cluster has equally many replicas. If every
    cluster has copies, it always uses two levels. `is_even` states if clusters have equally many; None: if they can.
    """
    if rings == 0:
        return max(coeffs.inside_sync_s_per_byte[c] for c in site)
    flat = _ring_s_per_byte(coeffs, site, rings, times_as_long)
    num_clusters = len({coeffs.cluster[c] for c in site})
    if num_clusters == 1 or not coeffs.has_two_levels:
        return flat
    if is_even is None:
        is_even = replicas_by_cluster(coeffs, site) is not None
    if not is_even:
        return flat
    levels = levels_s_per_byte(coeffs, site, rings, times_as_long)
    in_levels = max(levels) if coeffs.engine.overlaps_levels else sum(levels)
    return in_levels if coeffs.candidate.copies > 1 else min(flat, in_levels)


def levels_s_per_byte(coeffs: Coefficients, site: Site, rings: int, times_as_long: float) -> tuple[float, float]:
    """Return the seconds per byte of a stage's exchange inside the clusters of `site`, and across them."""
    num_clusters = len({coeffs.cluster[c] for c in site})
    across, _ = _levels(coeffs, num_clusters)
    by_class = [_class_levels_s(coeffs, c, num_clusters, rings, times_as_long) for c in site]
    inside_s, across_s = (max(seconds) for seconds in zip(*by_class, strict=True))
    groups = max(_groups_across(coeffs, c, num_clusters, times_as_long) for c in site)
    inside = coeffs.candidate.dp // num_clusters
    for crossing in crossings_of(coeffs, site):
        path_s = crossing.path_s_per_byte * across * groups
        across_s = max(across_s, path_s, crossing.trunk_s_per_byte * across * inside * times_as_long)
    return inside_s, across_s


def _class_levels_s(
    coeffs: Coefficients, c: int, num_clusters: int, rings: int, times_as_long: float
) -> tuple[float, float]:
    """Return the seconds per byte of each level on the NICs of a class."""
    across, inside = _levels(coeffs, num_clusters)
    groups = _groups_across(coeffs, c, num_clusters, times_as_long)
    return rings * inside * coeffs.fabric_sync_s_per_byte[c], groups * across * coeffs.shared_sync_s_per_byte[c]


def _groups_across(coeffs: Coefficients, c: int, num_clusters: int, times_as_long: float) -> int:
    """Return the number of groups across clusters that share a NIC: one for each replica on its host."""
    per_host = coeffs.group_slots_per_host[c]
    return max(1, per_host if times_as_long > 1 else min(per_host, coeffs.candidate.dp // num_clusters))


def _levels(coeffs: Coefficients, num_clusters: int) -> tuple[float, float]:
    across, inside = two_levels(coeffs.candidate.dp, num_clusters)
    return across * coeffs.across_part, inside


def two_levels(dp: int, num_clusters: int) -> tuple[float, float]:
    """Return the bytes sent by a group across clusters and by one inside, relative to one ring of all dp replicas."""
    inside = dp // num_clusters
    ring = shard_exchange_bytes(1.0, dp)
    return shard_exchange_bytes(1.0, num_clusters) / inside / ring, shard_exchange_bytes(1.0, inside) / ring


def least_crossing_s_per_byte(coeffs: Coefficients, c: int) -> float:
    """Return a lower bound on the seconds per byte of a stage over several clusters with replicas in class c."""
    if not coeffs.has_two_levels:
        return coeffs.shared_sync_s_per_byte[c]
    dp, slots = coeffs.candidate.dp, coeffs.cluster_slots
    numbers = [count for count in range(2, len(slots) + 1) if dp % count == 0]
    held = [count for count in numbers if dp // count <= slots[coeffs.cluster[c]]]
    levels = [max(_class_levels_s(coeffs, c, count, 1, 1)) for count in held]
    return min([coeffs.shared_sync_s_per_byte[c], *levels])


def least_sync_s_per_byte(coeffs: Coefficients, c: int, crossing: bool) -> float:
    """Return a lower bound on the seconds per byte of a stage with replicas in class c; infinite if there can be none.

    The stage is on that class alone, with others of its cluster or, if `crossing`, over several clusters.
    """
    found, cluster = list[float](), coeffs.cluster[c]
    if coeffs.most_stages[c]:
        found.append(sync_s_per_byte(coeffs, (c,), rings_on_nic(coeffs, (c,))))
    if coeffs.cluster.count(cluster) > 1 and coeffs.cluster_slots[cluster] >= coeffs.candidate.dp:
        found += [coeffs.fabric_sync_s_per_byte[c], coeffs.shared_sync_s_per_byte[c]]
    if crossing:
        found.append(least_crossing_s_per_byte(coeffs, c))
    return min(found, default=inf)


def _ring_s_per_byte(coeffs: Coefficients, site: Site, rings: int, times_as_long: float) -> float:
    """Return the seconds per byte of one ring of all replicas."""
    nics = joined_s(coeffs, site, coeffs.fabric_sync_s_per_byte, coeffs.shared_sync_s_per_byte)
    if not coeffs.crossings:
        return rings * nics
    ways = [
        max(rings * crossing.path_s_per_byte, times_as_long * crossing.trunk_s_per_byte)
        for crossing in crossings_of(coeffs, site)
    ]
    return max(rings * nics, *ways)
