"""Which pairs are measured and when, what the tools' answers say, and what the audit says to them."""

from __future__ import annotations

import itertools
import json
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holmes_core.records.access import Access
from holmes_core.records.devices import Nic
from holmes_core.records.inventory import Cluster, Host, Inventory, Network, NetworkPort
from holmes_core.records.link import Direction, Link, LinkMethod, Spread
from holmes_core.units import bytes_per_s_from_gbps
from prober.links import link_node
from prober.links.link_audit import audit_links
from prober.links.link_pairs import choose_pairs, into_rounds
from prober.links.link_tools import (
    ib_write_bw,
    parse_ib_write_bw,
    window_rates,
)
from prober.links.links import measure_links
from prober.links.pair_test import LinkLimits
from tests.eventually import eventually
from tests.planner.fleets import cpu_inventory

SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=5)


@given(SIZES, st.integers(1, 10))
def test_every_fabric_and_every_two_clusters_are_covered_within_the_limit(sizes: list[int], limit: int) -> None:
    inventory = cpu_inventory(sizes)
    pairs = choose_pairs(inventory, limit)
    inside = Counter(pair.network for pair in pairs if pair.kind == "inside")
    between = Counter(pair.clusters for pair in pairs if pair.kind == "between")
    assert set(inside) == {cluster.name for cluster in inventory.clusters if len(cluster.hosts) > 1}
    assert set(between) == set(itertools.combinations([cluster.name for cluster in inventory.clusters], 2))
    assert max([*inside.values(), *between.values()], default=0) <= limit
    assert all(pair.hosts[0] != pair.hosts[1] for pair in pairs)


@given(SIZES, st.integers(1, 10))
def test_hosts_of_a_cluster_are_used_equally(sizes: list[int], limit: int) -> None:
    inventory = cpu_inventory(sizes)
    used = Counter(host for pair in choose_pairs(inventory, limit) for host in pair.hosts)
    for cluster in inventory.clusters:
        counts = [used[host] for host in cluster.hosts]
        assert max(counts) - min(counts) <= 1


@given(SIZES, st.integers(1, 10))
def test_choice_is_the_same_every_time_and_repeats_no_pair_inside(sizes: list[int], limit: int) -> None:
    pairs = choose_pairs(cpu_inventory(sizes), limit)
    assert pairs == choose_pairs(cpu_inventory(sizes), limit)
    inside = [frozenset(pair.hosts) for pair in pairs if pair.kind == "inside"]
    assert len(inside) == len(set(inside))


@given(SIZES, st.integers(1, 10))
def test_no_two_tests_of_a_round_share_a_host_or_a_way_out(sizes: list[int], limit: int) -> None:
    pairs = choose_pairs(cpu_inventory(sizes), limit)
    rounds = into_rounds(pairs)
    assert sorted(pair.hosts for members in rounds for pair in members) == sorted(pair.hosts for pair in pairs)
    for members in rounds:
        hosts = [host for pair in members for host in pair.hosts]
        ways_out = [cluster for pair in members if pair.kind == "between" for cluster in pair.clusters]
        assert len(hosts) == len(set(hosts))
        assert len(ways_out) == len(set(ways_out))


def test_small_clusters_are_measured_whole() -> None:
    pairs = choose_pairs(cpu_inventory([3, 2]), 8)
    assert [(pair.network, pair.hosts) for pair in pairs] == [
        ("a", ("a1", "a2")),
        ("a", ("a3", "a1")),
        ("b", ("b1", "b2")),
        ("shared", ("a2", "b1")),
        ("shared", ("a3", "b2")),
        ("shared", ("a1", "b1")),
    ]


def test_pairs_inside_run_side_by_side() -> None:
    rounds = into_rounds(choose_pairs(cpu_inventory([4, 4], shared=False), 8))
    assert [len(members) for members in rounds] == [4]


def test_without_a_shared_network_or_addresses_there_is_nothing_between() -> None:
    assert {pair.kind for pair in choose_pairs(cpu_inventory([2, 2], shared=False), 8)} == {"inside"}
    inventory = cpu_inventory([2, 2])
    assert inventory.shared is not None
    ports = tuple(port.model_copy(update={"address": None}) for port in inventory.shared.ports)
    blank = inventory.model_copy(update={"shared": inventory.shared.model_copy(update={"ports": ports})})
    assert {pair.kind for pair in choose_pairs(blank, 8)} == {"inside"}


def test_windows_of_a_steady_transfer_have_its_rate() -> None:
    points = [(0.0, 0)] + [(0.01 * step, 5_000_000 * step) for step in range(1, 101)]
    rates = window_rates(points)
    assert len(rates) == 8
    assert rates == pytest.approx([5e8] * 8)


def test_slow_start_is_left_out_and_a_pause_counts() -> None:
    points = [(0.0, 0.0), (0.1, 1.0), (0.2, 2.0)] + [(0.2 + 0.1 * step, 100.0 * step) for step in range(1, 5)]
    rates = window_rates([*points, (0.9, 400.0), (1.0, 500.0)])
    assert min(rates) == pytest.approx(250.0)
    assert max(rates) == pytest.approx(1000.0)


@pytest.mark.parametrize("points", [[(0.0, 0)], [(0.0, 0), (1.0, 0)], [(0.0, 0), (0.0, 5)]])
def test_transfer_without_bytes_has_no_rate(points: list[Sequence[float]]) -> None:
    with pytest.raises(ValueError, match="too little"):
        window_rates(points)


PERFTEST = """\
                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : mlx5_0
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]
{row}
---------------------------------------------------------------------------------------
"""


@pytest.mark.parametrize(
    ("unit", "average", "bytes_per_s"), [("Gb/sec", "96.41", 96.41e9 / 8), ("MB/sec", "11490.00", 11490 * 2**20)]
)
def test_perftest_table_is_read_in_its_unit(unit: str, average: str, bytes_per_s: float) -> None:
    row = f" 65536      3906             97.02              {average}   \t\t   0.183895"
    assert parse_ib_write_bw(PERFTEST.format(unit=unit, row=row)) == pytest.approx(bytes_per_s)


@pytest.mark.parametrize("row", ["", " 65536", " Couldn't allocate MR", " 65536 3906 nan nan nan"])
def test_perftest_without_figures_gives_none(row: str) -> None:
    with pytest.raises(ValueError, match="no perftest table"):
        parse_ib_write_bw(PERFTEST.format(unit="Gb/sec", row=row))


def test_ib_write_bw_is_asked_for_device_port_and_bytes() -> None:
    words = " ".join(ib_write_bw("mlx5_2:1", "10.9.0.1", "18515", 256 * 10**6))
    assert words == "ib_write_bw -d mlx5_2 -i 1 -s 65536 -n 3906 -F --report_gbits -p 18515 10.9.0.1"


def link(hosts: tuple[str, str], gbps: float, streams: int = 1, **other: Any) -> Link:
    rate = bytes_per_s_from_gbps(gbps)
    method: LinkMethod = other.get("method", "tcp")
    direction: Direction = other.get("direction", "forward")
    return Link(
        kind="between",
        network="shared",
        clusters=("a", "b"),
        hosts=hosts,
        devices=other.get("devices", ("eth0", "eth0")),
        method=method,
        streams=streams,
        direction=direction,
        latency_s=None,
        bandwidth_bytes_per_s=Spread(min=rate / 2, median=rate),
        samples=8,
    )


def test_tcp_below_70_percent_of_the_rate_is_a_finding_for_its_direction() -> None:
    inventory = cpu_inventory([1, 1], shared_gbps=1.0)
    slow = [link(("a1", "b1"), 0.4, 1), link(("a1", "b1"), 0.65, 8), link(("a1", "b1"), 0.9, direction="backward")]
    (finding,) = audit_links(inventory, slow)
    assert (finding.rule, finding.severity, finding.hosts) == ("NET-BW-LOW", "W", ("a1", "b1"))
    assert finding.evidence == "a1 to b1 on shared: 650 Mbit/s, 65% of 1 Gbit/s (tcp, 8 streams)"


def test_tcp_that_reaches_70_percent_with_some_number_of_streams_is_fine() -> None:
    inventory = cpu_inventory([1, 1], shared_gbps=1.0)
    assert audit_links(inventory, [link(("a1", "b1"), 0.4, 1), link(("a1", "b1"), 0.71, 4)]) == ()


@pytest.mark.parametrize(("gbps", "found"), [(8, 0), (6, 1)])
def test_what_one_process_cannot_move_says_nothing_about_a_fast_link(gbps: float, found: int) -> None:
    inventory = cpu_inventory([1, 1], shared_gbps=200.0)
    assert len(audit_links(inventory, [link(("a1", "b1"), gbps)])) == found


def test_unknown_rate_gives_no_finding() -> None:
    assert audit_links(cpu_inventory([1, 1], shared_gbps=None), [link(("a1", "b1"), 0.001)]) == ()


@pytest.mark.parametrize(("gbps", "rules"), [(89.0, ["RDMA-BW-LOW"]), (91.0, [])])
def test_rdma_below_90_percent_of_the_port_is_a_finding(gbps: float, rules: list[str]) -> None:
    nic = Nic(
        device="mlx5_0",
        port=1,
        kind="InfiniBand",
        rate_gbps=100.0,
        state="Active",
        phys_state="LinkUp",
        netdev=None,
        subnet_prefix=None,
        sm_lid=1,
        usable_by_nccl_ib=True,
        why="active",
    )
    inventory = cpu_inventory([1, 1])
    hosts = tuple(host.model_copy(update={"nics": (nic,)}) for host in inventory.hosts)
    measured = link(("a1", "b1"), gbps, method="ib_write_bw", devices=("mlx5_0:1", "mlx5_0:1"))
    findings = audit_links(inventory.model_copy(update={"hosts": hosts}), [measured])
    assert [finding.rule for finding in findings] == rules


def local_inventory() -> Inventory:
    """Two names for this machine, on the loopback."""
    access = Access(transport="local", python=sys.executable)
    hosts = tuple(Host(name=name, access=access, reachable=True) for name in ("one", "two"))
    ports = tuple(
        NetworkPort(host=host.name, netdev="lo", address="127.0.0.1", bandwidth_bytes_per_s=None) for host in hosts
    )
    fabric = Network(name="local-1", kind="loopback", subnet=None, ports=ports)
    cluster = Cluster(name="local-1", hosts=("one", "two"), fabric=fabric)
    return Inventory(hosts=hosts, clusters=(cluster,), shared=None, findings=())


def test_loopback_is_measured_both_ways_by_local_processes() -> None:
    seen: list[tuple[str, str]] = []
    limits = LinkLimits(seconds=30.0, size_bytes=50 * 10**6, streams=(1, 2), methods=("tcp",))
    measured = measure_links(local_inventory(), lambda pair, state: seen.append((pair, state)), limits)
    assert measured.problems == []
    assert [(link.streams, link.direction) for link in measured.links] == [
        (1, "forward"),
        (2, "forward"),
        (1, "backward"),
        (2, "backward"),
    ]
    assert all(link.bandwidth_bytes_per_s.median > 1e7 for link in measured.links)
    assert seen == [("one - two", "measured")]


@pytest.fixture
def node() -> Iterator[subprocess.Popen[bytes]]:
    """The node's program on its own."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, link_node.__file__], stdin=pipe, stdout=pipe) as process:
        yield process
        process.kill()


def tell(node: subprocess.Popen[bytes], **command: Any) -> None:
    assert node.stdin is not None
    node.stdin.write(json.dumps(command).encode() + b"\n")
    node.stdin.flush()


def told(node: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert node.stdout is not None
    line = node.stdout.readline().decode()
    assert line.startswith(link_node.MARK)
    answer: dict[str, Any] = json.loads(line[len(link_node.MARK) :])
    return answer


def test_node_ends_when_its_input_does_even_while_waiting(node: subprocess.Popen[bytes]) -> None:
    tell(node, do="receive", address="127.0.0.1", token="t" * 16, streams=1, seconds=1, size_bytes=1)
    assert told(node)["port"] > 0
    assert node.stdin is not None
    node.stdin.close()
    assert node.wait(timeout=link_node.IDLE_S / 2) == 0


def test_node_takes_its_tool_with_it(node: subprocess.Popen[bytes], tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    tell(node, do="run_tool", words=["sh", "-c", f"echo $$ > {mark}; exec sleep 600"], seconds=600)
    assert eventually(lambda: mark.exists() and mark.read_text().strip() != "")
    pid = int(mark.read_text())
    assert node.stdin is not None
    node.stdin.close()
    assert node.wait(timeout=link_node.IDLE_S / 2) == 0
    assert eventually(lambda: not Path(f"/proc/{pid}").exists())


def test_node_counts_no_stranger(node: subprocess.Popen[bytes]) -> None:
    tell(node, do="receive", address="127.0.0.1", token="t" * 16, streams=1, seconds=60, size_bytes=10**6)
    port = told(node)["port"]
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with socket.create_connection(("127.0.0.1", port)) as friend:
            friend.sendall(b"t" * 16 + b"x" * 10**6)
            assert told(node)["points"][-1][1] == 10**6


def test_node_says_which_connection_was_refused(node: subprocess.Popen[bytes]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        values = {"count": 1, "seconds": 1, "token": "t" * 16}
        tell(node, do="ping", source="127.0.0.1", address="127.0.0.1", port=port, **values)
        answer = told(node)
    assert answer["closed"] is True
    assert answer["error"] == f"connecting to 127.0.0.1 port {port}: Connection refused"
