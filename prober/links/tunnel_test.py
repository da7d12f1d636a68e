"""The test of a pair inside a temporary WireGuard tunnel, which shows the rate with encryption."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from holmes_core.errors import HostError
from holmes_core.records.inventory import Finding, Host, Inventory
from holmes_core.records.link import DIRECTIONS, Link
from prober.links.link_pairs import Pair
from prober.links.link_session import LinkProblem, TunnelSession
from prober.links.pair_test import LinkLimits, PairTest, Sessions
from prober.rules.reported_rules import TUNNEL_NOT_MEASURED

# The end of the block for tests between networks (RFC 2544). The tunnels of runs use its beginning.
ADDRESSES, PREFIX = ("198.19.255.253", "198.19.255.254"), 30


def measure_in_tunnel(
    inventory: Inventory,
    pair: Pair,
    sessions: Sessions,
    limits: LinkLimits,
    enter: Callable[[Host], TunnelSession] = TunnelSession,
) -> Iterator[Link | Finding]:
    """Yield the pair's TCP links in a tunnel in both directions, and a finding if one could not be measured.

    `enter` opens the session that makes a host's end. The tunnel is removed when both are closed at the end.
    """
    hosts: tuple[str, ...] = pair.hosts
    try:
        with contextlib.ExitStack() as stack:
            ends = []
            for name, address in zip(pair.hosts, ADDRESSES, strict=True):
                hosts = (name,)
                session = enter(inventory.host(name))
                stack.callback(session.close)
                ends.append((session, session.ask("open", address=f"{address}/{PREFIX}")))
            hosts = pair.hosts
            _join(inventory, pair, ends)
            for direction in DIRECTIONS:
                test = PairTest(_inside(pair), direction, sessions, limits)
                for link in _links(test, tries=1 if inventory.security.tunnel_hub is None else 2):
                    yield link.model_copy(update={"tunnel": True})
    except LinkProblem as problem:
        yield TUNNEL_NOT_MEASURED.finding(hosts, problem.evidence, problem.remedy)
    except HostError as error:
        yield TUNNEL_NOT_MEASURED.finding(hosts, error.evidence, error.hint)


def _links(test: PairTest, tries: int) -> list[Link]:
    """Return the links of the test. Ends behind NAT find each other after 5 s, when the first try may have ended."""
    try:
        return list(test.tcp_links())
    except LinkProblem:
        if tries == 1:
            raise
        return _links(test, tries - 1)


def _join(inventory: Inventory, pair: Pair, ends: Sequence[tuple[TunnelSession, Mapping[str, Any]]]) -> None:
    """Send each end the key and address of the other.

    With a hub in hosts.yaml, either end may be behind NAT and opens the path from its side.
    """
    security = inventory.security
    for (session, _), (_, other), port, address in zip(
        ends, ends[::-1], pair.ports[::-1], ADDRESSES[::-1], strict=True
    ):
        at = security.tunnel_hub_address if port.host == security.tunnel_hub else None
        peer = [other["public_key"], at or port.address, other["port"], address, [], security.tunnel_hub is not None]
        session.ask("meet", peer=peer)


def _inside(pair: Pair) -> Pair:
    """Return the pair with its addresses in the tunnel and the names of the interfaces that carry it."""
    first, second = (
        port.model_copy(update={"address": address, "netdev": port.netdev or port.address})
        for port, address in zip(pair.ports, ADDRESSES, strict=True)
    )
    return replace(pair, ports=(first, second))
