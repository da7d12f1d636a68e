"""A warning of measured wires whose rate varies: a plan counts the middle of the samples, or the least if asked."""

from __future__ import annotations

from collections.abc import Sequence

from holmes_core.records.inventory import Inventory
from holmes_core.records.link import Link, best_links
from holmes_core.records.plan import Plan
from holmes_core.units import format_rate
from planner.advice.unmeasured_wire import network_names, used_networks

WIDE = 1.5  # median over minimum; an assumption: two tests of a steady link differ by a fifth at most


def spread_sentence(plans: Sequence[Plan], inventory: Inventory) -> tuple[str, ...]:
    """Name the samples of the link that varies most, and how many networks of `plans` have one that varies by much."""
    found: list[tuple[float, str]] = []
    for ends in used_networks(plans, inventory):
        links = best_links(link for link in inventory.links if frozenset(link.clusters) == ends and not link.tunnel)
        for rates in (link.bandwidth_bytes_per_s for link in sorted(links, key=_ratio)[-1:]):
            where = f"{network_names([ends])}: minimum {format_rate(rates.min)}, median {format_rate(rates.median)}"
            found.append((rates.median / rates.min, where))
    wide = [where for ratio, where in sorted(found, reverse=True) if ratio > WIDE]
    if not wide:
        return ()
    more = f"; and {len(wide) - 1} more" if len(wide) > 1 else ""
    counted = "the median counts; `--set wire.cautious=true` plans on the minimum"
    if plans[0].job.wire.cautious:
        counted = "the minimum counts, as `wire.cautious` in job.yaml asks"
    return (f"Wire varies ({wide[0]}{more}): {counted}.",)


def _ratio(link: Link) -> float:
    return link.bandwidth_bytes_per_s.median / link.bandwidth_bytes_per_s.min
