"""Verdicts on hosts and links that are slower than the plan expects. Free of torch.

Waiting alone shows nothing: in a synchronous step all ranks wait for the slowest. Compute is therefore timed without
waits, and links with single messages. Both are compared with the values that the plan assumed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from holmes_runtime.config.codec import EdgeSettings
from holmes_runtime.config.rank_grid import Group
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.config.run_settings import Expectation
from holmes_runtime.config.verdicts import AllHostsSlow, DataIsSlow, HostIsSlow, LinkIsSlow, SlowPart, Verdict
from holmes_runtime.health.measured_times import EdgeTime, Measured, StepEstimate

SLOW = 1.5  # how much longer than planned is worth a word; less is within what predictions are off by
SHOWS = 1.1  # by how much slow links must slow the pipeline's pace: for less the launcher plans nothing anew
HAS_A_PART = 1.02  # and one of them alone


def verdicts(plan: RunConfig, config: RunConfig, measured: Measured, used: Sequence[EdgeSettings]) -> list[Verdict]:
    """Return the verdicts, hosts first; none where the plan has no expectation.

    `plan` is the run as planned, `config` as it was measured, and `used` are the settings of its edges from now on: a
    link that they hide is not worth a word.
    """
    expected = plan.expectation
    if expected is None:
        return []
    hosts = _slow_hosts(plan, expected.compute_s, measured)
    return [*hosts, *_slow_data(plan, measured), *_slow_links(plan, config, measured, used, expected)]


def _slow_hosts(config: RunConfig, expected_s: tuple[float, ...], measured: Measured) -> list[SlowPart | AllHostsSlow]:
    ratios: dict[str, float] = {}
    for rank, seconds in enumerate(expected_s):
        if seconds > 0:
            host = config.grid.rank(rank).host
            ratios[host] = max(ratios.get(host, 0.0), measured.compute_s(rank) / seconds)
    slow = {host: ratio for host, ratio in sorted(ratios.items()) if ratio > SLOW}
    if len(slow) > 1 and len(slow) == len(ratios):
        return [AllHostsSlow(min(slow.values()), max(slow.values()))]
    return [HostIsSlow(host, ratio) for host, ratio in slow.items()]


def _slow_data(config: RunConfig, measured: Measured) -> list[DataIsSlow]:
    """Return a verdict for each rank that waits for its samples for a substantial part of a step."""
    most_s = measured.step_s * (1 - 1 / SHOWS)
    return [
        DataIsSlow(config.grid.rank(rank).host, rank, waited_s, measured.step_s)
        for rank, waited_s in enumerate(measured.reading_s)
        if waited_s > most_s
    ]


def _slow_links(
    plan: RunConfig,
    config: RunConfig,
    measured: Measured,
    used: Sequence[EdgeSettings],
    expected: Expectation,
) -> list[LinkIsSlow]:
    """Return, for each pair of hosts or clusters, the message slowest against the plan, if slow links set the pace."""
    expected_s = expected.transfer_s
    worst: dict[tuple[str, str], LinkIsSlow] = {}
    planned_codecs = {group.name: group.codec for group in plan.groups}
    groups = [group for group in config.groups if expected_s.get(group.name, 0.0) > 0 and group.name in measured.edges]
    taken_s = {
        group.name: _as_planned(measured.edges[group.name], *map(config.message_bytes, (group.codec, planned_codec)))
        for group in groups
        if (planned_codec := planned_codecs[group.name])
    }
    slow = [group for group in groups if taken_s[group.name] > SLOW * expected_s[group.name]]
    ratios = {group.name: taken_s[group.name] / expected_s[group.name] for group in slow}
    all_planned = measured.with_edges({name: measured.edges[name].shortened(ratio) for name, ratio in ratios.items()})
    planned_s, slow_s = (StepEstimate(config, each).round_s(used) for each in (all_planned, measured))
    for group in slow if slow_s > planned_s * SHOWS else []:
        alone = all_planned.with_edges({group.name: measured.edges[group.name]})
        if StepEstimate(config, alone).round_s(used) > planned_s * HAS_A_PART:
            hosts = _way(config, group).hosts
            link = LinkIsSlow(*hosts, ratios[group.name], taken_s[group.name], expected_s[group.name])
            link = _with_trunk(link, config, measured, group, set(ratios), expected.bytes_per_s)
            worst[hosts] = max(worst.get(hosts, link), link, key=_ratio)
    return _by_trunk(list(worst.values()))


class _EdgeEnds(NamedTuple):
    """The sender and the receiver of an edge's messages."""

    hosts: tuple[str, str]
    clusters: tuple[str, str]


def _way(config: RunConfig, group: Group) -> _EdgeEnds:
    """Return the ends of an edge. Activations go from the earlier stage's rank, gradients to it."""
    sender, receiver = map(config.grid.rank, group.ranks if group.axis == "pp_forward" else group.ranks[::-1])
    return _EdgeEnds((sender.host, receiver.host), (sender.cluster, receiver.cluster))


def _with_trunk(
    link: LinkIsSlow,
    config: RunConfig,
    measured: Measured,
    group: Group,
    slow: Collection[str],
    planned_bytes_per_s: Mapping[str, float],
) -> LinkIsSlow:
    """The link of `group` with the trunk it crosses, if any, and what that carries where all were slow that crossed it
    the same way at the same time."""
    clusters = _way(config, group).clusters
    if clusters[0] == clusters[1]:
        return link
    link = link._replace(trunk=(min(clusters), max(clusters)))
    beside = [each for each in config.groups if each.axis == group.axis and _way(config, each).clusters == clusters]
    if not all(each.name in slow and each.name in planned_bytes_per_s for each in beside):
        return link
    wire_s = [(each, measured.edges[each.name].full_s - measured.edges[each.name].small_s) for each in beside]
    if not all(seconds > 0 for _, seconds in wire_s):
        return link
    return link._replace(
        carried_bytes_per_s=sum(config.message_bytes(each.codec) / seconds for each, seconds in wire_s),
        planned_bytes_per_s=sum(planned_bytes_per_s[each.name] for each in beside),
    )


def _by_trunk(links: Sequence[LinkIsSlow]) -> list[LinkIsSlow]:
    """Return the slow links of each cluster, and only the worst link between two clusters: one trunk is the cause."""
    across: dict[tuple[str, str], list[LinkIsSlow]] = {}
    for link in links:
        if link.trunk is not None:
            across.setdefault(link.trunk, []).append(link)
    inside = [link for link in links if link.trunk is None]
    worst = (max(shared, key=_ratio)._replace(links=len(shared)) for _, shared in sorted(across.items()))
    return [*sorted(inside), *worst]


def _ratio(link: LinkIsSlow) -> float:
    return link.ratio


def _as_planned(time: EdgeTime, size_bytes: int, planned_bytes: int) -> float:
    """Return the seconds of a message packed as planned, from the time of one of `size_bytes`."""
    return time.small_s + max(0.0, time.full_s - time.small_s) * planned_bytes / size_bytes
