"""A warning where a plan sends over networks that no test measured: its seconds rest on the rates ports report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, permutations

from holmes_core.measured_ago import measured_ago
from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import Plan

NAMED = 6  # hosts named in a sentence


def unmeasured_wire_sentence(
    plans: Sequence[Plan], inventory: Inventory, now_s: float | None = None
) -> tuple[str, ...]:
    """Name the networks that `plans` use and no test measured; else say how long ago they were measured, if known.

    Several plans are islands, whose clusters exchange weights. A trunk stated in hosts.yaml counts as known.
    """
    known = {frozenset(link.clusters) for link in inventory.links}
    known |= {frozenset(trunk.clusters) for trunk in inventory.trunks}
    unknown = [ends for ends in _used(plans, inventory) if ends not in known]
    if not unknown:
        age = measured_ago([link.measured_at_s for link in inventory.links], now_s)
        return (*((f"Wire measured {age}.",) if age else ()), *_untested_hosts(plans, inventory))
    across = [" - ".join(sorted(ends)) for ends in unknown if len(ends) == 2]
    inside = [name for ends in unknown if len(ends) == 1 for name in ends]
    where = ", ".join([*across, *([f"inside {' and '.join(inside)}"] if inside else [])])
    nominal = f"Wire not measured ({where}): rates are nominal; `holmes probe --links` measures."
    return (nominal, *_untested_hosts(plans, inventory))


def _untested_hosts(plans: Sequence[Plan], inventory: Inventory) -> Iterator[str]:
    """Name the hosts that send to another cluster and were in none of the pairs measured between the two."""
    tested: dict[frozenset[str], set[str]] = {}
    for link in inventory.links:
        tested.setdefault(frozenset(link.clusters), set()).update(link.hosts)
    untested: dict[str, None] = {}
    for plan in plans:
        for group in plan.groups:
            ranks = [plan.ranks[rank] for rank in group.ranks]
            for one, other in permutations(ranks, 2):
                pair = frozenset((one.cluster, other.cluster))
                if len(pair) > 1 and one.host not in tested.get(pair, (one.host,)):
                    untested[one.host] = None
    if untested:
        names = [*list(untested)[:NAMED], *([f"{len(untested) - NAMED} more"] if len(untested) > NAMED else [])]
        yield f"In no measured pair: {', '.join(names)}; each counts as slow as the slowest host that was measured."


def _used(plans: Sequence[Plan], inventory: Inventory) -> list[frozenset[str]]:
    """Return pairs of clusters that exchange data, then clusters whose hosts do; a loopback is no wire."""
    across: set[frozenset[str]] = set()
    inside: set[frozenset[str]] = set()
    for plan in plans:
        for group in plan.groups:
            hosts = {plan.ranks[rank].host: plan.ranks[rank].cluster for rank in group.ranks}
            names = list(hosts.values())
            across |= _pairs(names)
            inside |= {frozenset({name}) for name in names if names.count(name) > 1}
    islands = [{rank.cluster for rank in plan.ranks} for plan in plans]
    for one, other in combinations(islands, 2):
        across |= _pairs([*one, *other])
    wired = {cluster.name for cluster in inventory.clusters if cluster.fabric.kind != "loopback"}
    used = [*sorted(across, key=sorted), *sorted(inside, key=sorted)]
    return [ends for ends in used if ends & wired]


def _pairs(names: Iterable[str]) -> set[frozenset[str]]:
    return {frozenset(pair) for pair in combinations(sorted(set(names)), 2)}
