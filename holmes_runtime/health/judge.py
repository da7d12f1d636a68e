"""Verdicts on hosts and links that are slower than the plan expects. Free of torch.

Waiting alone shows nothing: in a synchronous step all ranks wait for the slowest. Compute is therefore timed without
waits, and links with messages of their own. Both are compared with the plan's expectations.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from holmes_runtime.config.codec import EdgeSettings
from holmes_runtime.config.rank_grid import Group
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.config.run_settings import Expectation
from holmes_runtime.config.verdicts import AllHostsSlow, DataIsSlow, HostIsSlow, LinkIsSlow, SlowPart, Verdict
from holmes_runtime.health.measured_times import EdgeTime, Measured, StepEstimate

SLOW = 1.5  # ratio to the plan that is reported; smaller ones are within the error of predictions
MIN_SLOWDOWN = 1.1  # of the pipeline's pace by all slow links: the launcher does not replan for less
MIN_ALONE = 1.02  # slowdown of the pace by one of them alone


def verdicts(plan: RunConfig, config: RunConfig, measured: Measured, used: Sequence[EdgeSettings]) -> list[Verdict]:
    """Return the verdicts, hosts first; none if the plan has no expectation.

    `plan` is the run as planned and `config` as it was measured. `used` are the edge settings from now on: a slow link
    that they hide is not reported.
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
    max_s = measured.step_s * (1 - 1 / MIN_SLOWDOWN)
    return [
        DataIsSlow(config.grid.rank(rank).host, rank, waited_s, measured.step_s)
        for rank, waited_s in enumerate(measured.reading_s)
        if waited_s > max_s
    ]


def _slow_links(
    plan: RunConfig,
    config: RunConfig,
    measured: Measured,
    used: Sequence[EdgeSettings],
    expected: Expectation,
) -> list[LinkIsSlow]:
    """Return the slowest link, relative to the plan, of each pair of hosts or clusters, if slow links set the pace."""
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
    for group in slow if slow_s > planned_s * MIN_SLOWDOWN else []:
        alone = all_planned.with_edges({group.name: measured.edges[group.name]})
        if StepEstimate(config, alone).round_s(used) > planned_s * MIN_ALONE:
            hosts = _ends(config, group).hosts
            link = LinkIsSlow(*hosts, ratios[group.name], taken_s[group.name], expected_s[group.name])
            link = _with_trunk(link, config, measured, group, set(ratios), expected.bytes_per_s)
            worst[hosts] = max(worst.get(hosts, link), link, key=attrgetter("ratio"))
    return _by_trunk(list(worst.values()))


class _EdgeEnds(NamedTuple):
    """The sender and the receiver of an edge's messages."""

    hosts: tuple[str, str]
    clusters: tuple[str, str]


def _ends(config: RunConfig, group: Group) -> _EdgeEnds:
    """Return the ends of an edge. The earlier stage's rank sends activations and receives gradients."""
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
    """Return the link of `group` with the trunk that it crosses, if any.

    If all groups that cross the trunk in this direction were slow, add the bandwidth that the trunk carried in total.
    """
    clusters = _ends(config, group).clusters
    if clusters[0] == clusters[1]:
        return link
    link = link._replace(trunk=(min(clusters), max(clusters)))
    sharing = [each for each in config.groups if each.axis == group.axis and _ends(config, each).clusters == clusters]
    if not all(each.name in slow and each.name in planned_bytes_per_s for each in sharing):
        return link
    wire_s = [(each, measured.edges[each.name].full_s - measured.edges[each.name].small_s) for each in sharing]
    if not all(seconds > 0 for _, seconds in wire_s):
        return link
    return link._replace(
        carried_bytes_per_s=sum(config.message_bytes(each.codec) / seconds for each, seconds in wire_s),
        planned_bytes_per_s=sum(planned_bytes_per_s[each.name] for each in sharing),
    )


def _by_trunk(links: Sequence[LinkIsSlow]) -> list[LinkIsSlow]:
    """Return the slow links inside clusters and, of all links between two clusters, the slowest: they share a trunk."""
    across: dict[tuple[str, str], list[LinkIsSlow]] = {}
    for link in links:
        if link.trunk is not None:
            across.setdefault(link.trunk, []).append(link)
    inside = [link for link in links if link.trunk is None]
    worst = (max(shared, key=attrgetter("ratio"))._replace(links=len(shared)) for _, shared in sorted(across.items()))
    return [*sorted(inside), *worst]


def _as_planned(time: EdgeTime, size_bytes: int, planned_bytes: int) -> float:
    """Return the seconds of a message packed as planned, from the time of one of `size_bytes`."""
    return time.small_s + max(0.0, time.full_s - time.small_s) * planned_bytes / size_bytes
