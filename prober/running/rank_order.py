"""The cause of traffic between clusters that another order of the same hosts would avoid.

A collective's peers follow from the numbers of ranks, so traffic stays with the ranks when these move to other hosts.
A move swaps the ranks of two hosts with equally many. The search by such moves may miss a better order. It starts from
the present order and, if all hosts have equally many ranks, from hosts in order of clusters. If every order sends as
much between clusters, it ends with the present one.
"""

from __future__ import annotations

import heapq
import itertools
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from holmes_core.records.inventory import Inventory
from holmes_core.records.link import best_links
from holmes_core.units import format_names, format_rate
from prober.running import running_texts as causes
from prober.running.running_texts import RunFinding
from prober.running.watched_run import BULK_BYTES_PER_S, WatchedRun

MIN_FILLED = 0.5  # of the watch: ranks may not wait at all for a wire that is filled for less
MAX_LEFT = 0.6  # of that time in the other order, as for a ring that crosses twice instead of four times
MAX_NAMED = 64
_CANDIDATES = 16  # hosts of each cluster to try in a step of the search

Places = dict[str, str]
"""The host that would have the ranks of each host."""


@dataclass(frozen=True)
class Exchange:
    """Traffic between hosts by sender and receiver, the clusters of hosts, and the rates of wires.

    `rates` has the rate of a pair of hosts by their clusters, also inside one cluster. `trunks` has the rates that all
    pairs share, by one cluster or two.
    """

    bytes_per_s: Mapping[tuple[str, str], float]
    clusters: Mapping[str, str]
    num_ranks: Mapping[str, int]
    rates: Mapping[tuple[str, str], float]
    trunks: Mapping[frozenset[str], float]

    @property
    def present(self) -> Places:
        """The hosts where they are now."""
        return {host: host for host in self.num_ranks}

    def crossing(self, places: Places) -> float:
        """Return the bytes per second between clusters."""
        return sum(
            rate
            for (sender, receiver), rate in self.bytes_per_s.items()
            if self.clusters[places[sender]] != self.clusters[places[receiver]]
        )

    def filled(self, places: Places) -> float:
        """Return the seconds for which the bytes of one second fill the slowest wire."""
        wires: dict[tuple[str, ...], float] = defaultdict(float)
        for (sender, receiver), rate in self.bytes_per_s.items():
            ends = places[sender], places[receiver]
            one, other = (self.clusters[end] for end in ends)
            wires[ends] += rate / self.rates[one, other]
            ways = ("from", one), ("to", other), ("between", one, other)
            for way in ways if one != other else ():
                if trunk := self.trunks.get(frozenset(way[1:])):
                    wires[way] += rate / trunk
        return max(wires.values(), default=0.0)


def rank_order_cause(run: WatchedRun) -> Iterator[RunFinding]:
    """Yield the cause if the wire between clusters is filled and another order would fill it far less."""
    exchange = _exchange(run)
    if exchange is None or not exchange.rates:
        return
    now = exchange.present
    filled = exchange.filled(now)
    if filled < MIN_FILLED or exchange.crossing(now) < BULK_BYTES_PER_S:
        return
    better = better_places(exchange)
    left, crossing, kept = exchange.filled(better), exchange.crossing(now), exchange.crossing(better)
    if left > MAX_LEFT * filled or kept > MAX_LEFT * crossing:
        return
    gain = min(1.0, filled) * (1 - left / filled)
    order = format_names([better[host] for host in now], MAX_NAMED)
    clusters = exchange.clusters
    across = {ends: rate for ends, rate in exchange.bytes_per_s.items() if clusters[ends[0]] != clusters[ends[1]]}
    (sender, receiver), most = max(across.items(), key=lambda each: each[1])
    ends = clusters[sender], clusters[receiver]
    lines = (
        f"{sender} of {ends[0]} to {receiver} of {ends[1]}: {format_rate(most)}, ranks {_numbers(run, sender)} to "
        f"{_numbers(run, receiver)}",
        f"order {format_names(list(now), MAX_NAMED)}: {format_rate(crossing)} between clusters, which fills the "
        f"measured wire {min(1.0, filled):.0%} of the time",
        f"order {order}: {format_rate(kept)} between clusters, {left / filled:.0%} of that time",
        f"at these rates a step takes at most {gain:.0%} less time, if no rank computes while the wire carries",
    )
    detail = f"{format_rate(crossing)} cross, and in the order {order} {format_rate(kept)} would"
    remedy = f"Start the hosts in the order {order} (node ranks from 0 on). "
    yield causes.RANK_ORDER.finding(detail, *lines, cost=gain, remedy=remedy)


def unmeasured_order(run: WatchedRun) -> str | None:
    """Return the advice to measure links if another order sends far less between clusters with unknown rates."""
    exchange = _exchange(run)
    if exchange is None or exchange.rates:
        return None
    crossing = exchange.crossing(exchange.present)
    kept = exchange.crossing(better_places(exchange))
    if crossing < BULK_BYTES_PER_S or kept > MAX_LEFT * crossing:
        return None
    return (
        f"ranks send {format_rate(crossing)} between clusters, and in another order {format_rate(kept)}: "
        "`holmes probe hosts.yaml --links` measures whether that wire is what they wait for"
    )


def better_places(exchange: Exchange) -> Places:
    """Return the better of two orders, found by swaps from the present one and from one by clusters."""
    present, grouped = exchange.present, exchange.present
    if len(set(exchange.num_ranks.values())) == 1:
        grouped = dict(zip(present, sorted(present, key=exchange.clusters.__getitem__), strict=True))
    return min((_improved(exchange, places) for places in (present, grouped)), key=exchange.crossing)


def _improved(exchange: Exchange, places: Places) -> Places:
    """Return the places after swaps, made as long as they reduce the bytes between clusters."""
    while swap := max(_swaps(exchange, places), default=None):
        saved, one, other = swap
        if saved <= 1e-6 * exchange.crossing(places):
            break
        places[one], places[other] = places[other], places[one]
    return places


def _swaps(exchange: Exchange, places: Places) -> Iterator[tuple[float, str, str]]:
    """Yield pairs of hosts in two clusters with the bytes that no longer cross after they swap ranks."""
    at = {host: exchange.clusters[place] for host, place in places.items()}
    both: dict[tuple[str, str], float] = defaultdict(float)
    near: dict[tuple[str, str], float] = defaultdict(float)
    for (sender, receiver), rate in exchange.bytes_per_s.items():
        for one, other in ((sender, receiver), (receiver, sender)):
            both[one, other] += rate
            near[one, at[other]] += rate
    groups: dict[tuple[str, int], list[str]] = {}
    for host, count in exchange.num_ranks.items():
        groups.setdefault((at[host], count), []).append(host)
    for (here, count), (there, equal) in itertools.permutations(groups, 2):
        if here < there and count == equal:
            ones, others = (
                heapq.nlargest(_CANDIDATES, groups[a, count], key=lambda host, a=a, b=b: near[host, b] - near[host, a])  # type: ignore[misc]
                for a, b in ((here, there), (there, here))
            )
            for one, other in itertools.product(ones, others):
                saved = near[one, there] - near[one, here] + near[other, here] - near[other, there]
                yield saved - 2 * both[one, other], one, other


def _exchange(run: WatchedRun) -> Exchange | None:
    """Return the traffic of the ranks, or None if a part of it or the clusters are not known. Rates may be missing."""
    hosts = list(dict.fromkeys(rank.host for rank in run.ranks))
    clusters = {host: each.name for each in run.probed.clusters for host in each.hosts} if run.probed else {}
    seen = all(run.bytes_of(rank) is not None for rank in run.ranks)
    if run.probed is None or not seen or run.unwatched() or len({clusters.get(host) for host in hosts} | {None}) < 3:
        return None
    if any(host not in clusters for host in hosts):
        return None
    paths = [path for path in run.paths if path.leaves_host and path.is_watched and path.sent_bytes]
    sums: Counter[tuple[str, str]] = Counter()
    used: Counter[tuple[str, str]] = Counter()
    for path in paths:
        sums[path.sender, path.receiver] += path.sent_bytes
        used[path.sender, path.interface] += path.sent_bytes
    bytes_per_s = {ends: total / run.by_name[ends[0]].seconds for ends, total in sums.items()}
    num_ranks = {host: len(run.of_host(host)) for host in hosts}
    devices = {host: interface for (host, interface), _ in reversed(used.most_common())}
    trunks = {frozenset(each.clusters): each.bandwidth_bytes_per_s for each in run.probed.trunks}
    rates = _rates(run.probed, devices)
    needed = itertools.permutations(dict.fromkeys(clusters[host] for host in hosts), 2)
    return Exchange(bytes_per_s, clusters, num_ranks, rates if all(each in rates for each in needed) else {}, trunks)


def _rates(probed: Inventory, devices: Mapping[str, str]) -> dict[tuple[str, str], float]:
    """Return the median rates from one cluster to another and inside each, of links between the devices in use.

    If links inside a cluster were measured by other devices, its rate is at least that of its links to others.
    """
    measured: dict[tuple[str, str], list[float]] = {}
    for link in best_links(link for link in probed.links if link.method != "stated" and not link.tunnel):
        if all(devices.get(host) == device for host, device in zip(link.hosts, link.devices, strict=True)):
            way = link.clusters if link.direction == "forward" else link.clusters[::-1]
            measured.setdefault((way[0], way[1]), []).append(link.bandwidth_bytes_per_s.median)
    rates = {way: statistics.median(each) for way, each in measured.items()}
    for one, other in tuple(rates):
        rates.setdefault((other, one), rates[one, other])
    for one in {cluster for way in rates for cluster in way}:
        rates.setdefault((one, one), max(rate for way, rate in rates.items() if one in way))
    return rates


def _numbers(run: WatchedRun, host: str) -> str:
    return format_names([str(rank.number) for rank in run.of_host(host)], MAX_NAMED)
