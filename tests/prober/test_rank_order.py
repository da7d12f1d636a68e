"""holmes doctor on a recorded run of four hosts in two clusters: orders of ranks that cost, and those that do not."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping

import pytest

from holmes_core.records.inventory import Cluster, Inventory, Network
from holmes_core.records.link import Trunk
from prober.running import watch_script as asked
from prober.running.rank_order import Exchange, better_places
from tests.builders.clustered_hosts import host_in_cluster
from tests.builders.watched_runs import PIDS, SECONDS, Watched
from tests.planner.measured_links import measured

ADDRESSES = {"a1": "10.1.0.1", "a2": "10.1.0.2", "b1": "10.1.0.3", "b2": "10.1.0.4"}
CLUSTERS = {"a": ("a1", "a2"), "b": ("b1", "b2")}
MIXED, APART = ("a1", "b1", "a2", "b2"), ("a1", "a2", "b1", "b2")
INSIDE, ACROSS = 1e9, 1e8  # bytes a second
Megabytes = Mapping[tuple[int, int], float]
"""MB that two ranks send to each other in a second, each way."""
HSDP = {(0, 1): 60.0, (2, 3): 60.0, (0, 2): 15.0, (1, 3): 15.0}
RING = {(0, 1): 80.0, (1, 2): 80.0, (2, 3): 80.0, (0, 3): 80.0}
ALL = dict.fromkeys(itertools.combinations(range(4), 2), 60.0)


def watched_in(order: tuple[str, ...], sent: Megabytes) -> Watched:
    """The recording's first host four times, as the hosts of the ranks in `order`, with these bytes between them."""
    watched = Watched()
    recorded = watched.hosts["a1"]
    watched.hosts = {name: list(recorded) for name in ADDRESSES}
    for rank, name in enumerate(order):
        watched.sub(name, asked.ADDRESSES, r"10\.1\.0\.1/", f"{ADDRESSES[name]}/")
        watched.sub(name, asked.ADDRESSES, r"10\.9\.0\.1/", f"10.9.0.{rank + 10}/")
        watched.sub(name, asked.ENVIRONMENT, r":((?:GROUP_)?RANK)=\d+", rf":\1={rank}")
        watched.sub(name, asked.ENVIRONMENT, "WORLD_SIZE=2", "WORLD_SIZE=4")
        watched.answer(name, asked.SOCKETS, *(sockets(order, rank, sent, late) for late in (0, 1)))
    return watched


def sockets(order: tuple[str, ...], rank: int, sent: Megabytes, late: int) -> str:
    lines = []
    for (one, other), rate in sent.items():
        if rank in (one, other):
            peer = other if rank == one else one
            ends = [f"{ADDRESSES[order[at]]}:{4000 + 10 * one + other}" for at in (rank, peer)]
            size = round(rate * 1e6 * SECONDS * late)
            lines.append(f'0 0 {ends[0]} {ends[1]} users:(("python",pid={PIDS["a1"]},fd=8))')
            lines.append(f"\t bytes_sent:{size} bytes_received:{size}")
    return "\n".join(lines)


def inventory(is_measured: bool = True, trunk: float | None = None, across: float = ACROSS) -> Inventory:
    fabric = Network(name="eth", kind="Ethernet", subnet=None, ports=())
    pairs = {("a1", "a2"): INSIDE, ("b1", "b2"): INSIDE, ("a1", "b1"): across, ("a2", "b2"): across}
    return Inventory(
        hosts=tuple(host_in_cluster(name) for name in ADDRESSES),
        clusters=tuple(Cluster(name=name, hosts=hosts, fabric=fabric) for name, hosts in CLUSTERS.items()),
        shared=fabric,
        links=tuple(measured(ends, rate, devices=("ib0", "ib0")) for ends, rate in pairs.items() if is_measured),
        trunks=(Trunk(clusters=("a", "b"), bandwidth_bytes_per_s=trunk, source="measured", pairs=2),) if trunk else (),
        findings=(),
    )


def crossing(order: tuple[str, ...], sent: Megabytes) -> float:
    return sum(rate for (one, other), rate in sent.items() if order[one][0] != order[other][0])


@pytest.mark.parametrize(
    ("sent", "probed"),
    [(HSDP, inventory()), (HSDP, inventory(trunk=1.5e8)), (RING, inventory(trunk=3.4e8, across=INSIDE))],
)
def test_order_that_sends_most_between_clusters_is_the_verdict_with_the_better_one(
    sent: Megabytes, probed: Inventory
) -> None:
    found = watched_in(MIXED, sent).diagnosis(probed)
    assert found.cause == "rank-order"
    named = re.search(r"in the order (\w\w, \w\w, \w\w, \w\w)", found.remedy)
    assert named is not None
    assert crossing(tuple(named[1].split(", ")), sent) <= crossing(MIXED, sent) / 2
    assert "holmes plan job.yaml" in found.remedy
    assert any("at most" in line for line in found.evidence)


def test_gain_is_the_wires_time_that_the_better_order_saves() -> None:
    """60 of 100 MB/s fill the wire for 60% of the time, and 15 for a quarter of that: 45% fewer seconds."""
    found = watched_in(MIXED, HSDP).diagnosis(inventory())
    assert any("at most 45% less" in line for line in found.evidence), found.evidence


@pytest.mark.parametrize(
    ("order", "sent", "probed"),
    [
        (APART, HSDP, inventory(trunk=2e7)),  # the better order, though the wire is full
        (MIXED, ALL, inventory(trunk=1e8)),  # as much crosses in each order
        (APART, RING, inventory(trunk=1e8)),  # a ring over two clusters crosses twice
        (MIXED, RING, inventory(across=9e7)),  # no pair shares its wire with another
        (MIXED, HSDP, inventory(across=INSIDE)),  # the wire is as fast as those inside
        (MIXED, HSDP, inventory(across=2e8)),  # the wire is filled for 30% of the time
        (MIXED, HSDP, None),
        (MIXED, dict.fromkeys(HSDP, 0.1), inventory(across=1e5)),  # no gradients
    ],
)
def test_order_is_no_cause_where_no_other_is_better_or_the_wire_is_not_full(
    order: tuple[str, ...], sent: Megabytes, probed: Inventory | None
) -> None:
    found = watched_in(order, sent).diagnosis(probed)
    assert (found.cause, found.also) == ("none", ())
    assert not any("--links" in note for note in found.notes)


def test_order_is_no_cause_and_no_note_where_a_host_is_not_watched() -> None:
    watched = watched_in(MIXED, HSDP)
    del watched.hosts["b2"]
    found = watched.diagnosis(inventory())
    assert (found.cause, found.also) == (None, ())


def test_links_that_were_not_measured_leave_a_note_that_says_how() -> None:
    found = watched_in(MIXED, HSDP).diagnosis(inventory(is_measured=False))
    assert found.cause == "none"
    assert any("holmes probe hosts.yaml --links" in note for note in found.notes)


@pytest.mark.parametrize("num_hosts", [8, 16, 64])
@pytest.mark.parametrize("block", [1, 2])
def test_ring_over_hosts_in_turns_or_pairs_crosses_twice_in_the_better_order(num_hosts: int, block: int) -> None:
    """No exchange of two hosts alone helps where the ring takes them in pairs."""
    hosts = [f"h{number}" for number in range(num_hosts)]
    sent = dict.fromkeys(zip(hosts, [*hosts[1:], hosts[0]], strict=True), 100000000.0)
    clusters = {host: "AB"[number // block % 2] for number, host in enumerate(hosts)}
    exchange = Exchange(sent, clusters, dict.fromkeys(hosts, 8), {}, {})
    assert exchange.crossing(better_places(exchange)) == pytest.approx(2e8)
