"""A warning about measured links with varying rates: a plan counts the median of the samples, or the least if asked."""

from __future__ import annotations

from collections.abc import Sequence

from holmes_core.records.inventory import Inventory
from holmes_core.records.link import Link, best_links
from holmes_core.records.plan import Plan
from holmes_core.units import format_rate
from planner.advice.unmeasured_wire import network_names, used_networks

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
