"""The rate of a trunk or an uplink, from pairs of hosts that send at once.

A pair alone shows the rate of its hosts' interfaces or of the wire between the clusters, whichever is slower. Pairs
without a host in common show the wire if they carry less together than the sum of their rates alone. If they carry as
much, the hosts are the limit, and only a lower bound of the wire's rate is known.
"""

from __future__ import annotations

import bisect
import itertools
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from holmes_core.records.link import DIRECTIONS, Direction, Link, Trunk, best_links
from prober.links.link_pairs import Pair
from prober.links.link_tools import SKIPPED, WINDOWS, Points

LIMIT_SHARE = 0.85  # of the sum of the pairs' rates alone; single figures vary by a tenth between tests
MIN_OVERLAP = 0.25  # of the longest transfer

Alone = Mapping[tuple[tuple[str, str], Direction], Link]  # by hosts and direction, at its best number of streams


def alone_links(links: Iterable[Link]) -> Alone:
    """Return the best unencrypted TCP link of each pair between clusters, measured alone."""
    clear = [link for link in links if not link.tunnel]
    between = [link for link in clear if link.kind == "between" and link.method != "ib_write_bw"]
    return {(link.hosts, link.direction): link for link in best_links(between)}


def trunk_pairs(pairs: Iterable[Pair], alone: Alone) -> Mapping[tuple[str, str], tuple[Pair, ...]]:
    """Return, for each two clusters, at least two measured pairs that can run at once, as no two share a host."""
    found: dict[tuple[str, str], list[Pair]] = {}
    for pair in pairs:
        if _is_measured(pair, alone):
            found.setdefault(pair.clusters, []).append(pair)
    chosen = {clusters: _apart(members) for clusters, members in found.items()}
    return {clusters: members for clusters, members in chosen.items() if len(members) > 1}


def uplink_pairs(pairs: Iterable[Pair], alone: Alone) -> Mapping[str, tuple[Pair, ...]]:
    """Return, for each cluster, measured pairs with at least two other clusters that can run at once."""
    found: dict[str, list[Pair]] = {}
    for pair in pairs:
        if pair.kind == "between" and _is_measured(pair, alone):
            for cluster in pair.clusters:
                found.setdefault(cluster, []).append(pair)
    chosen = {cluster: _apart(members) for cluster, members in found.items()}
    return {cluster: members for cluster, members in chosen.items() if len({pair.clusters for pair in members}) > 1}


def _is_measured(pair: Pair, alone: Alone) -> bool:
    return all((pair.hosts, direction) in alone for direction in DIRECTIONS)


def _apart(pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    """Return pairs that share no host, about equally many for each two clusters."""
    members: list[Pair] = []
    taken: Counter[tuple[str, str]] = Counter()
    while pairs:
        chosen = min(pairs, key=lambda pair: taken[pair.clusters])
        members.append(chosen)
        taken[chosen.clusters] += 1
        pairs = [pair for pair in pairs if not set(pair.hosts) & set(chosen.hosts)]
    return tuple(members)


def behind_trunks(pairs: Sequence[Pair], rates: Sequence[float], trunks: Iterable[Trunk]) -> list[float]:
    """Return the rates of pairs alone, lowered to their share of a trunk if their sum exceeds it."""
    limits = {trunk.clusters: trunk.bandwidth_bytes_per_s for trunk in trunks}
    totals: dict[tuple[str, str], float] = {}
    for pair, rate in zip(pairs, rates, strict=True):
        totals[pair.clusters] = totals.get(pair.clusters, 0.0) + rate
    parts = {ends: min(1.0, limits.get(ends, total) / total) for ends, total in totals.items()}
    return [rate * parts[pair.clusters] for pair, rate in zip(pairs, rates, strict=True)]


@dataclass(frozen=True)
class Flow:
    """One of several simultaneous transfers. `ended_s` is the time of its last point on their common clock."""

    points: Points
    ended_s: float

    @property
    def length_s(self) -> float:
        """The seconds of the whole transfer."""
        return self.points[-1][0]

    def bytes_at(self, moment_s: float) -> float:
        """Return the bytes received until a moment of the common clock, interpolated between points."""
        elapsed_s = moment_s - self.ended_s + self.length_s
        after = bisect.bisect_left(self.points, elapsed_s, key=lambda point: point[0])
        if after in (0, len(self.points)):
            return self.points[min(after, len(self.points) - 1)][1]
        (began_s, before), (until_s, then) = self.points[after - 1], self.points[after]
        return before + (then - before) * (elapsed_s - began_s) / (until_s - began_s)


def rate_together(flows: Sequence[Flow]) -> float:
    """Return the bytes per second of all flows together, as the median of 8 windows in which all ran.

    The slow start is left out.

    Raises:
        ValueError: They hardly ran at the same time.
    """
    began_s = max(flow.ended_s - (1 - SKIPPED) * flow.length_s for flow in flows)
    common_s = min(flow.ended_s for flow in flows) - began_s
    longest_s = max(flow.length_s for flow in flows)
    if common_s <= MIN_OVERLAP * longest_s:
        raise ValueError(f"of {longest_s:.2f} s they shared {max(0.0, common_s):.2f} s")
    edges_s = [began_s + common_s * number / WINDOWS for number in range(WINDOWS + 1)]
    totals = [sum(flow.bytes_at(edge_s) for flow in flows) for edge_s in edges_s]
    rates = [(then - before) * WINDOWS / common_s for before, then in itertools.pairwise(totals)]
    return statistics.median(rates)


def limiting_rate(ways: Iterable[tuple[float, Sequence[float]]]) -> float | None:
    """Return the trunk's bytes per second in the slower direction, or None if it is not the limit.

    `ways` has the pairs' rate together and each pair's rate alone for each direction. The trunk carries at least the
    rate of a pair alone, even if competing streams use it badly.
    """
    carried = [(max(together, statistics.median(alone)), sum(alone)) for together, alone in ways]
    return min((rate for rate, total in carried if rate < LIMIT_SHARE * total), default=None)
