"""The test of a trunk or an uplink, in which pairs of hosts send at once, each with its best settings alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace

from holmes_core.records.inventory import Finding
from holmes_core.records.link import DIRECTIONS, Direction, Link, Trunk
from prober.links.link_pairs import Pair
from prober.links.link_session import LinkProblem
from prober.links.pair_test import LinkLimits, PairTest, Sessions, link_finding
from prober.links.trunk_rate import Alone, Flow, behind_trunks, limiting_rate, rate_together

# A transfer is longer than alone, or fast ones would end before all have begun.
MORE_SECONDS, MORE_BYTES = 3, 4


def measure_trunk(
    clusters: tuple[str, ...],
    pairs: Sequence[Pair],
    alone: Alone,
    sessions: Sessions,
    limits: LinkLimits,
    pool: Executor,
    trunks: Sequence[Trunk] = (),
) -> Trunk | Finding | None:
    """Measure the trunk between two `clusters`, or the uplink of one. Return None if it does not limit `pairs`.

    `pairs` share no host. All send out of the first cluster, and then all into it. `trunks` limit some of them.
    Return a finding if a pair gives no figure together with the others. `pool` runs all at once.
    """
    limits = replace(limits, seconds=MORE_SECONDS * limits.seconds, size_bytes=MORE_BYTES * limits.size_bytes)
    ways = []
    for direction in DIRECTIONS:
        other: Direction = "backward" if direction == "forward" else "forward"
        directions = [direction if pair.clusters[0] == clusters[0] else other for pair in pairs]
        links = [alone[pair.hosts, way] for pair, way in zip(pairs, directions, strict=True)]
        tests = [PairTest(pair, way, sessions, limits) for pair, way in zip(pairs, directions, strict=True)]
        flows = list(pool.map(_flow, tests, links))
        failed = next((flow for flow in flows if isinstance(flow, Finding)), None)
        if failed is not None:
            return failed
        try:
            together = rate_together([flow for flow in flows if isinstance(flow, Flow)])
        except ValueError as error:
            hosts = tuple(host for pair in pairs for host in pair.hosts)
            evidence = f"{len(pairs)} pairs of {' and '.join(clusters)} at once, {direction}: {error}"
            return link_finding("PROBE-TOOL-FAILED", hosts, evidence, "probe again when the hosts are less busy")
        rates = [link.bandwidth_bytes_per_s.median for link in links]
        ways.append((together, behind_trunks(pairs, rates, trunks)))
    rate = limiting_rate(ways)
    if rate is None:
        return None
    return Trunk(clusters=clusters, bandwidth_bytes_per_s=rate, source="measured", pairs=len(pairs))


def _flow(test: PairTest, link: Link) -> Flow | Finding:
    try:
        points = test.transfer(link.streams)
    except LinkProblem as problem:
        return test.problem(problem)
    return Flow(points, ended_s=time.monotonic())
