"""The test of the path MTU between two hosts, by pings that routers must not fragment."""

from __future__ import annotations

from collections.abc import Iterator

from holmes_core.records.inventory import Finding, Inventory, NetworkPort
from prober.links.link_session import LinkProblem
from prober.links.pair_test import PairTest
from prober.rules.reported_rules import PATH_MTU

HEADERS_BYTES = 28  # of IPv4 and ICMP
SMALL_BYTES = 64
PING_S = 6.0


def path_mtu_findings(test: PairTest, inventory: Inventory) -> Iterator[Finding]:
    """Yield a finding if packets of both netdevs' MTU are lost and small ones are not."""
    mtus = [_mtu(inventory, port) for port in (test.sender, test.receiver)]
    mtu = min((mtu for mtu in mtus if mtu is not None), default=None)
    if None in mtus or mtu is None or test.sender.address is None or test.receiver.address is None:
        return
    if _answers(test, SMALL_BYTES) and _answers(test, mtu - HEADERS_BYTES) is False:
        way = f"{test.sender.host} to {test.receiver.host} on {test.pair.network}"
        yield PATH_MTU.finding(test.pair.hosts, f"{way}: packets of {mtu} bytes, the MTU of both netdevs, are lost")


def _mtu(inventory: Inventory, port: NetworkPort) -> int | None:
    netdevs = {netdev.name: netdev.mtu for netdev in inventory.host(port.host).netdevs}
    return netdevs.get(port.netdev or "")


def _answers(test: PairTest, size_bytes: int) -> bool | None:
    """Return True if pings were answered, or None if ping did not run: status 1 is no answer, others are faults."""
    words = ["ping", "-n", "-M", "do", "-c", "3", "-i", "0.3", "-W", "1", "-s", str(size_bytes)]
    words += ["-I", str(test.sender.address), str(test.receiver.address)]
    try:
        exit_code: int = test.sessions[test.sender.host].ask("run_tool", words=words, seconds=PING_S)["exit_code"]
    except LinkProblem:
        return None
    return {0: True, 1: False}.get(exit_code)
