"""A ping of the hosts' MTU that is lost where small ones pass."""

from __future__ import annotations

from typing import Any, cast

import pytest

from holmes_core.records.inventory import Inventory
from prober.links.link_pairs import choose_pairs
from prober.links.link_session import LinkSession
from prober.links.pair_test import USUAL_LIMITS, PairTest
from prober.links.path_mtu import path_mtu_findings
from prober.probe import ReadHost, inventory_of_read
from tests.builders.host_facts import host, netdev


class PingingSession:
    """A host that answers pings of up to some bytes; `status` is what ping ends with above them."""

    def __init__(self, passing_bytes: int, status: int) -> None:
        self.passing_bytes, self.status = passing_bytes, status

    def ask(self, command: str, words: list[str], **_: float) -> dict[str, Any]:
        assert (command, words[0]) == ("run_tool", "ping")
        passes = int(words[words.index("-s") + 1]) <= self.passing_bytes
        return {"exit_code": 0 if passes else self.status, "output": "", "errors": ""}


def pair_with_mtu(mtu: int | None) -> Inventory:
    hosts = [host(name, netdevs=(netdev("eth0", f"10.9.0.{at}/24", mtu=mtu),)) for at, name in enumerate("ab", 1)]
    return inventory_of_read([ReadHost(each, (), None) for each in hosts])


@pytest.mark.parametrize(
    ("mtu", "passing_bytes", "status", "found"),
    [
        (9000, 8972, 1, []),
        (9000, 1472, 1, ["NET-PATH-MTU"]),
        (1500, 1422, 1, ["NET-PATH-MTU"]),
        (9000, 0, 1, []),  # ICMP is filtered
        (9000, 1472, 127, []),  # no ping
        (None, 1472, 1, []),
    ],
)
def test_packets_of_the_mtu_that_are_lost_are_told(
    mtu: int | None, passing_bytes: int, status: int, found: list[str]
) -> None:
    inventory = pair_with_mtu(mtu)
    (pair, *_) = choose_pairs(inventory, 8)
    sessions = {name: cast(LinkSession, PingingSession(passing_bytes, status)) for name in pair.hosts}
    test = PairTest(pair, "forward", sessions, USUAL_LIMITS)
    assert [finding.rule for finding in path_mtu_findings(test, inventory)] == found
