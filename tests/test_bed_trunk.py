"""The trunk of a bed: do both clusters' hosts share its rate, does it delay, and can it be changed while it carries?"""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.eventually import eventually
from tests.test_bed import HOSTS, ROOT, run, send, ssh, traces
from tests.testbed.bed import Bed, missing_for_bed
from tests.testbed.bed_needs import missing_for_trunk
from tests.testbed.bed_process import BedError
from tests.testbed.reaper import process_start_time

MISSING = missing_for_bed() or missing_for_trunk()
pytestmark = [pytest.mark.cluster, pytest.mark.skipif(bool(MISSING), reason=f"no trunk here: {', '.join(MISSING)}")]

NIC_MBPS, TRUNK_MBPS = 200, 50
PAIRS = (("a1", "b1"), ("a2", "b2"))
BUSY = 1.5  # a busy machine may make anything slower by so much, and nothing faster
TRANSFER_S = 1.5

# Sends until it is ended.
FLOOD = """
import socket, sys
with socket.create_connection((sys.argv[1], 5000), timeout=10) as connection:
    connection.settimeout(None)
    while True:
        connection.sendall(bytes(1 << 18))
"""
SINK = """
import socket, sys
with socket.create_server((sys.argv[1], 5000)) as server:
    print("listening", flush=True)
    connection, _ = server.accept()
    while connection.recv(1 << 20):
        pass
"""
# Answers each byte at once / prints the shortest of 20 round trips, in seconds.
ECHO = """
import socket, sys
with socket.create_server((sys.argv[1], 5001)) as server:
    print("listening", flush=True)
    connection, _ = server.accept()
    while byte := connection.recv(1):
        connection.sendall(byte)
"""
PING = """
import socket, sys, time
round_trips = []
with socket.create_connection((sys.argv[1], 5001), timeout=10) as connection:
    for _ in range(20):
        sent = time.monotonic()
        connection.sendall(b".")
        connection.recv(1)
        round_trips.append(time.monotonic() - sent)
print(min(round_trips))
"""
# Sets a bed with a trunk up, says what must be gone later, and waits to be killed.
OWNER = """
import time
from tests.testbed.bed import Bed
with Bed(trunk_mbps=20) as bed:
    print(bed.suffix, bed.folder, bed.trunk_pid, flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    with Bed(fast_mbps=500, slow_mbps=NIC_MBPS, trunk_mbps=TRUNK_MBPS) as bed:
        yield bed


def start(bed: Bed, stack: ExitStack, host: str, program: str, address: str) -> subprocess.Popen[str]:
    """`program` on `host`, until `stack` ends."""
    command = bed.on_host_command(host, [sys.executable, "-S", "-c", program, address])
    process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    stack.callback(process.kill)
    return process


def flood_bits_per_s(bed: Bed, pairs: tuple[tuple[str, str], ...]) -> float:
    """Bits per second that arrive at all receivers together, while every sender sends what it can."""
    receivers = [(receiver, bed.host(receiver).slow_interface) for _, receiver in pairs]

    def received_bytes() -> int:
        return sum(bed.counters(host)[interface][0] for host, interface in receivers)

    with ExitStack() as stack:
        for sender, receiver in pairs:
            address = bed.host(receiver).slow_address
            sink = start(bed, stack, receiver, SINK, address)
            assert sink.stdout is not None
            assert sink.stdout.readline() == "listening\n"
            start(bed, stack, sender, FLOOD, address)
        filled = received_bytes() + TRUNK_MBPS * 10**6 // 8
        assert eventually(lambda: received_bytes() > filled)
        before, began_s = received_bytes(), time.monotonic()
        time.sleep(TRANSFER_S)
        return (received_bytes() - before) * 8 / (time.monotonic() - began_s)


def round_trip_s(bed: Bed, sender: str, receiver: str) -> float:
    """The shortest time in which one byte went to `receiver` and came back."""
    with ExitStack() as stack:
        address = bed.host(receiver).slow_address
        echo = start(bed, stack, receiver, ECHO, address)
        assert echo.stdout is not None
        assert echo.stdout.readline() == "listening\n"
        pinged = run(bed.on_host_command(sender, [sys.executable, "-S", "-c", PING, address]))
        assert pinged.returncode == 0, pinged.stderr
        return float(pinged.stdout)


def test_every_host_is_reached_through_or_beside_the_trunk(bed: Bed) -> None:
    assert [ssh(bed, host, "hostname").stdout for host in HOSTS] == [f"{host}\n" for host in HOSTS]


@pytest.mark.parametrize("pairs", [PAIRS, tuple((b, a) for a, b in PAIRS)], ids=["forward", "backward"])
def test_two_pairs_at_once_share_the_trunks_rate(bed: Bed, pairs: tuple[tuple[str, str], ...]) -> None:
    rate = flood_bits_per_s(bed, pairs)

    assert TRUNK_MBPS * 1e6 / BUSY < rate < TRUNK_MBPS * 1e6 * 1.1


def test_hosts_of_one_cluster_do_not_use_the_trunk(bed: Bed) -> None:
    rate = send(bed, "a1", "a2", bed.host("a2").slow_address, 10_000_000)

    assert rate > TRUNK_MBPS * 1e6 * 1.1


def test_rate_is_changed_while_the_trunk_carries(bed: Bed) -> None:
    bed.set_trunk(rate_mbps=10)
    try:
        slow = flood_bits_per_s(bed, PAIRS)
    finally:
        bed.set_trunk(rate_mbps=TRUNK_MBPS)

    assert 10e6 / BUSY < slow < 10e6 * 1.1
    assert flood_bits_per_s(bed, PAIRS) > 2 * slow


def test_delay_is_added_each_way_and_can_be_changed(bed: Bed) -> None:
    assert round_trip_s(bed, "a1", "b1") < 0.05

    bed.set_trunk(delay_ms=30)
    try:
        across, inside = round_trip_s(bed, "a1", "b1"), round_trip_s(bed, "b2", "b1")
    finally:
        bed.set_trunk(delay_ms=0)

    assert 0.06 <= across < 0.06 * BUSY
    assert inside < 0.05


def test_bed_with_a_trunk_leaves_nothing() -> None:
    with Bed(trunk_mbps=20, trunk_delay_ms=5) as bed:
        relay = bed.trunk_pid
        assert process_start_time(relay) is not None

    assert process_start_time(relay) is None
    assert traces(bed.suffix, bed.folder) == []


def test_trunk_of_a_killed_owner_is_removed() -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True, cwd=ROOT) as owner:
        assert owner.stdout is not None
        suffix, folder, relay = owner.stdout.readline().split()
        assert process_start_time(int(relay)) is not None
        owner.kill()

    assert eventually(lambda: traces(suffix, Path(folder)) == [])
    assert process_start_time(int(relay)) is None


def test_trunk_that_is_gone_says_so_when_it_is_changed(bed: Bed) -> None:
    with Bed(trunk_mbps=20) as other:
        run(["kill", "-9", str(other.trunk_pid)])
        with pytest.raises(BedError, match="trunk"):
            other.set_trunk(rate_mbps=30)
        assert other.trunk_mbps == 20
    assert bed.trunk_mbps == TRUNK_MBPS


@pytest.mark.parametrize(
    ("rate_mbps", "delay_ms", "complaint"),
    [
        (0, 0, "trunk_mbps is 0"),
        (math.nan, 0, "trunk_mbps is nan"),
        (10, -1, "trunk_delay_ms is -1"),
        (10, math.inf, "trunk_delay_ms is inf"),
        (None, 5, "there is no trunk"),
    ],
)
def test_impossible_trunk_is_refused(rate_mbps: int | None, delay_ms: float, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Bed(trunk_mbps=rate_mbps, trunk_delay_ms=delay_ms)
