"""Measuring latency and bandwidth between pairs of hosts, and the bandwidth of trunks and uplinks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field

from holmes_core.errors import HostError
from holmes_core.records.inventory import Finding, Host, Inventory
from holmes_core.records.link import DIRECTIONS, Link, Trunk
from prober.links.link_pairs import Pair, choose_pairs, into_rounds
from prober.links.link_session import LinkProblem, LinkSession
from prober.links.pair_test import USUAL_LIMITS, LinkLimits, PairTest, Sessions, link_finding
from prober.links.path_mtu import path_mtu_findings
from prober.links.trunk_rate import alone_links, trunk_pairs, uplink_pairs
from prober.links.trunk_test import measure_trunk
from prober.links.tunnel_test import measure_in_tunnel
from prober.rules.reported_rules import RULE_OF_ERROR

MAX_AT_ONCE = 64

Progress = Callable[[str, str], None]


@dataclass
class LinkResults:
    """The measured links and trunks, and a finding for each test that gave no figure."""

    links: list[Link] = field(default_factory=list)
    trunks: list[Trunk] = field(default_factory=list)
    problems: list[Finding] = field(default_factory=list)

    def add(self, measured: Iterable[Link | Finding]) -> None:
        """Add links and findings."""
        for each in measured:
            if isinstance(each, Link):
                self.links.append(each)
            else:
                self.problems.append(each)


def measure_links(inventory: Inventory, progress: Progress, limits: LinkLimits = USUAL_LIMITS) -> LinkResults:
    """Measure a few pairs of hosts in every cluster and between every two clusters, then trunks and uplinks.

    No host is in two tests at a time. If hosts.yaml requires encryption between clusters, each pair between clusters is
    measured in a tunnel as well. `progress("a1 - b1", state)` is called after each pair or trunk. Nothing is written on
    the hosts, and the programs there end with this call or, at the latest, soon after this process.
    """
    measured = LinkResults()
    pairs = choose_pairs(inventory, limits.pairs)
    with ThreadPoolExecutor(max_workers=MAX_AT_ONCE) as pool, contextlib.ExitStack() as stack:
        sessions = _open_sessions(inventory, pairs, pool, stack, measured)
        for members in into_rounds(pairs):
            jobs = {pool.submit(_measure_pair, inventory, pair, sessions, limits): pair for pair in members}
            for job in as_completed(jobs):
                result = job.result()
                measured.links += result.links
                measured.problems += result.problems
                progress(" - ".join(jobs[job].hosts), "measured" if result.links else "not measured")
        alone = alone_links(measured.links)
        uplinks = {(cluster,): members for cluster, members in uplink_pairs(pairs, alone).items()}
        for clusters, members in (*trunk_pairs(pairs, alone).items(), *uplinks.items()):
            known = measured.trunks if len(clusters) == 1 else []
            trunk = measure_trunk(clusters, members, alone, sessions, limits, pool, known)
            measured.trunks += [trunk] if isinstance(trunk, Trunk) else []
            measured.problems += [trunk] if isinstance(trunk, Finding) else []
            progress(" - ".join(clusters), f"{len(members)} pairs at once")
    order = {(pair.network, pair.hosts): number for number, pair in enumerate(pairs)}
    measured.links.sort(key=lambda link: order[link.network, link.hosts])
    return measured


def _open_sessions(
    inventory: Inventory, pairs: Sequence[Pair], pool: ThreadPoolExecutor, stack: contextlib.ExitStack, to: LinkResults
) -> dict[str, LinkSession]:
    """Open a session on every host of `pairs`, or add a finding if that fails. `stack` closes the sessions."""
    names = dict.fromkeys(host for pair in pairs for host in pair.hosts)
    sessions = {}
    for opened in pool.map(_open_session, (inventory.host(name) for name in names)):
        if isinstance(opened, Finding):
            to.problems.append(opened)
        else:
            stack.callback(opened.close)
            sessions[opened.host] = opened
    return sessions


def _open_session(host: Host) -> LinkSession | Finding:
    try:
        return LinkSession(host)
    except HostError as error:
        return link_finding(RULE_OF_ERROR[error.kind], (host.name,), error.evidence, error.hint)
    except LinkProblem as problem:
        return link_finding(problem.rule, (host.name,), problem.evidence, "set `python` in hosts.yaml to one that runs")


def _measure_pair(inventory: Inventory, pair: Pair, sessions: Sessions, limits: LinkLimits) -> LinkResults:
    """Run all tests of one pair in turn, in both directions. Run none if a host has no session.

    With a tunnel's hub, hosts may be behind NAT, so only the tunnel is measured. Two hosts other than the hub need not
    reach one another through it.
    """
    result, hub = LinkResults(), inventory.security.tunnel_hub
    if not all(host in sessions for host in pair.hosts):
        return result
    if inventory.encrypts and pair.kind == "between" and hub is not None:
        measured = measure_in_tunnel(inventory, pair, sessions, limits)
        result.add(each for each in measured if hub in pair.hosts or isinstance(each, Link))
        return result
    for direction in DIRECTIONS:
        test = PairTest(pair, direction, sessions, limits)
        result.problems += path_mtu_findings(test, inventory)
        for links in (test.tcp_links(), *test.rdma_links(inventory)):
            try:
                for link in links:
                    result.links.append(link)
            except LinkProblem as problem:
                result.problems.append(test.problem(problem))
    if inventory.encrypts and pair.kind == "between" and result.links:
        result.add(measure_in_tunnel(inventory, pair, sessions, limits))
    return result
