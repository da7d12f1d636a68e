"""Warnings about networks that no test measured, and about measured links with varying rates.

Without a measurement, seconds rest on port rates or on the worst measurement. Of several samples, a plan counts the
median, or the minimum if asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, product

from holmes_core.measured_networks import measured_networks
from holmes_core.records.inventory import Inventory
from holmes_core.records.link import Link, best_links
from holmes_core.records.plan import Plan
from holmes_core.units import format_rate, measured_ago
from planner.cost.measured_link import cluster_pairs
from planner.problem.connections import as_counted, slowest_between

NAMED = 6  # hosts, clusters or pairs named in a sentence
NOMINAL = "rates are nominal"


def unmeasured_wire_sentence(
    plans: Sequence[Plan], inventory: Inventory, now_s: float | None = None
) -> tuple[str, ...]:
    """Name the networks that `plans` use and no test measured; if there are none, the age of the measurements.

    A sketch's rates are its own. Several plans are islands, whose clusters exchange weights. A trunk stated in
    hosts.yaml counts as known. If some clusters were measured, all unmeasured pairs are named: that they count as
    slow may be why no plan uses them.
    """
    if inventory.sketch is not None:
        return ()
    known = measured_networks(inventory)
    unknown = [ends for ends in used_networks(plans, inventory) if ends not in known]
    slowest_bytes_per_s = slowest_between(as_counted(inventory, plans[0].job.wire.cautious))
    if slowest_bytes_per_s is not None:
        wired = _wired(inventory)
        assumed = [pair for pair in cluster_pairs(inventory) if pair not in known and pair & wired]
        rate = f"counts as the slowest measured between clusters, {format_rate(slowest_bytes_per_s)}"
        parts = [(assumed, rate), ([ends for ends in unknown if len(ends) == 1], NOMINAL)]
    else:
        parts = [(unknown, NOMINAL)]
    named = [(network_names(ends), rate) for ends, rate in parts if ends]
    said = [f"Wire not measured ({names}): {rate}; `holmes probe --links` measures it." for names, rate in named]
    age = None if said else measured_ago([link.measured_at_s for link in inventory.links], now_s)
    return (*said, *((f"Wire measured {age}.",) if age else ()), *_untested_hosts(plans, inventory))


def network_names(networks: Sequence[frozenset[str]]) -> str:
    """Return the names of the pairs of clusters and of the clusters, a few of each."""
    across = [" - ".join(sorted(ends)) for ends in networks if len(ends) == 2]
    inside = [name for ends in networks if len(ends) == 1 for name in ends]
    return ", ".join([*_few(across), *([f"inside {' and '.join(_few(inside))}"] if inside else [])])


def _few(names: Sequence[str]) -> list[str]:
    return [*names[:NAMED], *([f"{len(names) - NAMED} more"] if len(names) > NAMED else [])]


def _untested_hosts(plans: Sequence[Plan], inventory: Inventory) -> Iterator[str]:
    """Yield a sentence about hosts that send to another cluster but were in no measured pair of the two clusters."""
    tested: dict[frozenset[str], set[str]] = {}
    for link in inventory.links:
        tested.setdefault(frozenset(link.clusters), set()).update(link.hosts)
    untested: dict[str, None] = {}
    for plan in plans if tested else ():
        for group in plan.groups:
            hosts = {plan.ranks[rank].host: plan.ranks[rank].cluster for rank in group.ranks}
            for (host, cluster), other in product(hosts.items(), dict.fromkeys(hosts.values())):
                pair = frozenset((cluster, other))
                if len(pair) > 1 and host not in tested.get(pair, (host,)):
                    untested[host] = None
    if untested:
        names = ", ".join(_few(list(untested)))
        yield f"In no measured pair: {names}; each counts as slow as the slowest measured host."


def used_networks(plans: Sequence[Plan], inventory: Inventory) -> list[frozenset[str]]:
    """Return pairs of clusters that exchange data, then clusters whose hosts do; a loopback does not count."""
    across: set[frozenset[str]] = set()
    inside: set[frozenset[str]] = set()
    for plan in plans:
        cluster_of, host_of = {rank.host: rank.cluster for rank in plan.ranks}, [rank.host for rank in plan.ranks]
        hosts = (dict.fromkeys(host_of[rank] for rank in group.ranks) for group in plan.groups)
        for names in {tuple(cluster_of[host] for host in each) for each in hosts}:  # most of many groups are alike
            across |= _pairs(names)
            inside |= {frozenset({name}) for name, times in Counter(names).items() if times > 1}
    islands = [{rank.cluster for rank in plan.ranks} for plan in plans]
    for one, other in combinations(islands, 2):
        across |= _pairs([*one, *other])
    wired = _wired(inventory)
    used = [*sorted(across, key=sorted), *sorted(inside, key=sorted)]
    return [ends for ends in used if ends & wired]


def _wired(inventory: Inventory) -> set[str]:
    return {cluster.name for cluster in inventory.clusters if cluster.fabric.kind != "loopback"}


def _pairs(names: Iterable[str]) -> set[frozenset[str]]:
    return {frozenset(pair) for pair in combinations(sorted(set(names)), 2)}


WIDE = 1.5  # median over minimum; assumption: two tests of a steady link differ by a fifth at most


def spread_sentence(plans: Sequence[Plan], inventory: Inventory) -> tuple[str, ...]:
    """Return a sentence with the samples of the link that varies most, and the number of networks with such a link.

    Only networks that `plans` use count. For a cautious job all do: that they count as slow may be why none is used.
    """
    cautious = plans[0].job.wire.cautious
    clear = best_links(link for link in inventory.links if not link.tunnel)
    varying = sorted((link for link in clear if _ratio(link) > WIDE), key=_ratio, reverse=True)
    used = used_networks(plans, inventory) if varying else []
    wide = [link for link in varying if cautious or frozenset(link.clusters) in used]
    if not wide:
        return ()
    rates, networks = wide[0].bandwidth_bytes_per_s, list(dict.fromkeys(frozenset(link.clusters) for link in wide))
    where = f"{network_names(networks[:1])}: minimum {format_rate(rates.min)}, median {format_rate(rates.median)}"
    more = f"; and {len(networks) - 1} more" if len(networks) > 1 else ""
    counted = "the median counts; `--set wire.cautious=true` plans on the minimum"
    if cautious:
        counted = "the minimum counts, as set by `wire.cautious` in job.yaml"
    return (f"Wire varies ({where}{more}): {counted}.",)


def _ratio(link: Link) -> float:
    return link.bandwidth_bytes_per_s.median / link.bandwidth_bytes_per_s.min
