"""The test of a trunk: pairs of hosts of two clusters send at once, each as it did best alone."""

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
from prober.links.trunk_rate import Alone, Flow, limiting_rate, rate_together

# A transfer lasts longer than alone, or fast ones would be over before all have begun.
MORE_SECONDS, MORE_BYTES = 3, 4


def measure_trunk(
    pairs: Sequence[Pair], alone: Alone, sessions: Sessions, limits: LinkLimits, pool: Executor
) -> Trunk | Finding | None:
    """Measure the trunk between the two clusters of `pairs`, which share no host; None if it does not limit them.

    Return a finding if a pair that was measured alone gives no figure with the others. `pool` runs all at once.
    """
    limits = replace(limits, seconds=MORE_SECONDS * limits.seconds, size_bytes=MORE_BYTES * limits.size_bytes)
    ways = []
    for direction in DIRECTIONS:
        links = [alone[pair.hosts, direction] for pair in pairs]
        tests = [PairTest(pair, direction, sessions, limits) for pair in pairs]
        flows = list(pool.map(_flow, tests, links))
        failed = next((flow for flow in flows if isinstance(flow, Finding)), None)
        if failed is not None:
            return failed
        try:
            together = rate_together([flow for flow in flows if isinstance(flow, Flow)])
        except ValueError as error:
            return _not_at_once(pairs, direction, str(error))
        ways.append((together, [link.bandwidth_bytes_per_s.median for link in links]))
    rate = limiting_rate(ways)
    if rate is None:
        return None
    return Trunk(clusters=pairs[0].clusters, bandwidth_bytes_per_s=rate, source="measured", pairs=len(pairs))


def _flow(test: PairTest, link: Link) -> Flow | Finding:
    try:
        points = test.transfer(link.streams)
    except LinkProblem as problem:
        return test.problem(problem)
    return Flow(points, ended_s=time.monotonic())


def _not_at_once(pairs: Sequence[Pair], direction: Direction, evidence: str) -> Finding:
    hosts = tuple(host for pair in pairs for host in pair.hosts)
    evidence = f"{len(pairs)} pairs between {' and '.join(pairs[0].clusters)} at once, {direction}: {evidence}"
    return link_finding("PROBE-TOOL-FAILED", hosts, evidence, "probe again when the hosts are less busy")
