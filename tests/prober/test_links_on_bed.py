"""The link test on the bed: the rates measured are those the network is shaped to, and nothing stays behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holmes_core.records.access import Access
from holmes_core.records.devices import Netdev
from holmes_core.records.inventory import Cluster, Finding, Host, Inventory, Network, NetworkPort
from holmes_core.records.link import Link, Trunk
from holmes_core.units import bytes_per_s_from_mbps
from prober.links.link_audit import audit_links
from prober.links.links import LinkResults
from tests.eventually import eventually
from tests.testbed.bed import Bed, BedHost, missing_for_bed
from tests.testbed.bed_needs import missing_for_trunk

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(bool(missing_for_bed()), reason=f"no bed here: {', '.join(missing_for_bed())}"),
]

ROOT = Path(__file__).parent.parent.parent
MUCH_BYTES = 5_000_000  # more than logins and messages take: a link is under test
CONTROLLER = """
import json, sys
from pathlib import Path
from holmes_core.records.inventory import Inventory
from holmes_core.records.record_file import read_file
from prober.links.links import measure_links
from prober.links.pair_test import LinkLimits

inventory = read_file(Inventory, Path(sys.argv[1]))
limits = LinkLimits(**json.loads(sys.argv[2]))
measured = measure_links(inventory, lambda pair, state: print(pair, state, file=sys.stderr, flush=True), limits)
parts = (measured.links, measured.problems, measured.trunks)
print(json.dumps([[record.model_dump(mode="json") for record in part] for part in parts]))
"""


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    """A bed so slow that a busy machine can fill its links."""
    with Bed(fast_mbps=200, slow_mbps=50) as bed:
        yield bed


def bed_inventory(bed: Bed) -> Inventory:
    """What a probe of the bed finds, without asking it."""
    access = Access(ssh_config=str(bed.ssh_config), python=sys.executable)
    hosts = tuple(
        Host(name=host.name, access=access, reachable=True, netdevs=bed_netdevs(bed, host)) for host in bed.hosts
    )
    clusters = tuple(
        Cluster(name=name, hosts=tuple(host.name for host in members), fabric=fabric(bed, name, members))
        for name in ("A", "B")
        for members in [[host for host in bed.hosts if host.cluster == name]]
    )
    ports = tuple(port_on_bed(host.name, host.slow_interface, host.slow_address, bed.slow_mbps) for host in bed.hosts)
    shared = Network(name="shared", kind="Ethernet", subnet="10.9.0.0/24", ports=ports)
    return Inventory(hosts=hosts, clusters=clusters, shared=shared, findings=())


def bed_netdevs(bed: Bed, host: BedHost) -> tuple[Netdev, ...]:
    fast = (host.fast_interface, host.fast_address, bed.fast_mbps)
    slow = (host.slow_interface, host.slow_address, bed.slow_mbps)
    return tuple(
        Netdev(name=name, up=True, mtu=1500, addresses=(f"{at}/24",), speed_bytes_per_s=bytes_per_s_from_mbps(mbps))
        for name, at, mbps in (fast, slow)
    )


def fabric(bed: Bed, name: str, hosts: list[BedHost]) -> Network:
    ports = tuple(port_on_bed(host.name, host.fast_interface, host.fast_address, bed.fast_mbps) for host in hosts)
    return Network(name=name, kind="Ethernet", subnet=None, ports=ports)


def port_on_bed(host: str, netdev: str, address: str, mbps: int) -> NetworkPort:
    rate = bytes_per_s_from_mbps(mbps)
    return NetworkPort(host=host, netdev=netdev, address=address, bandwidth_bytes_per_s=rate)


def controller(bed: Bed, folder: Path, inventory: Inventory, **limits: object) -> subprocess.Popen[str]:
    """The link test as the controller runs it."""
    path = folder / "inventory.json"
    path.write_text(inventory.to_json(), encoding="utf-8")
    command = bed.controller_command([sys.executable, "-c", CONTROLLER, str(path), json.dumps(limits)])
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


def measure(bed: Bed, folder: Path, inventory: Inventory, **limits: object) -> LinkResults:
    process = controller(bed, folder, inventory, **limits)
    stdout, stderr = process.communicate(timeout=600)
    assert process.returncode == 0, stderr
    links, problems, trunks = json.loads(stdout)
    return LinkResults(
        links=[Link.model_validate(link) for link in links],
        problems=[Finding.model_validate(finding) for finding in problems],
        trunks=[Trunk.model_validate(trunk) for trunk in trunks],
    )


def best_streams(links: list[Link]) -> list[Link]:
    """Of each pair and direction the link with the highest median: what the network can carry."""
    ordered = sorted(links, key=lambda link: link.bandwidth_bytes_per_s.median)
    return list({(link.network, link.hosts, link.direction): link for link in ordered}.values())


def nothing_is_left(bed: Bed) -> bool:
    return eventually(lambda: not any(bed.guest_pids(host.name) for host in bed.hosts))


def test_measured_bandwidth_is_the_shaped_rate(bed: Bed, tmp_path: Path) -> None:
    inventory = bed_inventory(bed)
    measured = measure(bed, tmp_path, inventory, methods=["tcp"])
    assert measured.problems == []
    assert len(measured.links) == (2 + 2) * 2 * 3
    for link in best_streams(measured.links):
        shaped = bytes_per_s_from_mbps(bed.fast_mbps if link.kind == "inside" else bed.slow_mbps)
        # On a busy machine what waited in a buffer comes within a later sample: 10 % too much was seen.
        assert link.bandwidth_bytes_per_s.median == pytest.approx(shaped, rel=0.25), link
        assert link.latency_s is not None
        assert link.latency_s.median < 0.1
        assert link.samples >= 4
    assert audit_links(inventory, measured.links) == ()
    assert measured.trunks == []
    assert nothing_is_left(bed)


def test_slow_direction_is_a_finding(bed: Bed, tmp_path: Path) -> None:
    switch = ["ip", "netns", "exec", bed.switch_namespace]
    shape = "qdisc replace dev b1-fast root tbf rate {}mbit burst 512kb latency 50ms"
    subprocess.run([*switch, "tc", *shape.format(80).split()], check=True)
    try:
        measured = measure(bed, tmp_path, bed_inventory(bed), methods=["tcp"], streams=[1, 4])
    finally:
        subprocess.run([*switch, "tc", *shape.format(bed.fast_mbps).split()], check=True)
    (finding,) = audit_links(bed_inventory(bed), measured.links)
    assert measured.problems == []
    assert finding.rule == "NET-BW-LOW"
    direction, _, rate = finding.evidence.partition(": ")
    assert direction == "b2 to b1 on B"
    assert 60 < float(rate.split()[0]) < 100  # a burst passes at once, so that the mean may be above the shape
    assert "of 200 Mbit/s (tcp, " in finding.evidence


def test_unreachable_address_is_a_finding_and_hides_no_other_pair(bed: Bed, tmp_path: Path) -> None:
    bed.set_link("a2", "ib0", up=False)
    try:
        measured = measure(bed, tmp_path, bed_inventory(bed), methods=["tcp"], streams=[1])
    finally:
        bed.set_link("a2", "ib0", up=True)
    assert {problem.rule for problem in measured.problems} == {"NET-PORT-CLOSED"}
    assert {problem.hosts for problem in measured.problems} == {("a1", "a2")}
    assert any("a1 to a2 on A: connecting to 10.1.0.2 port" in problem.evidence for problem in measured.problems)
    assert sorted({link.network for link in measured.links}) == ["B", "shared"]
    assert nothing_is_left(bed)


def test_host_without_python_is_a_finding_and_hides_no_other_pair(bed: Bed, tmp_path: Path) -> None:
    inventory = bed_inventory(bed)
    missing = inventory.host("b1").access.model_copy(update={"python": "/no/such/python"})
    hosts = [host.model_copy(update={"access": missing}) if host.name == "b1" else host for host in inventory.hosts]
    measured = measure(bed, tmp_path, inventory.model_copy(update={"hosts": tuple(hosts)}), streams=[1])
    (problem,) = measured.problems
    assert (problem.rule, problem.hosts) == ("PROBE-TOOL-FAILED", ("b1",))
    assert "`/no/such/python` ended the link test with 127" in problem.evidence
    assert {link.hosts for link in measured.links} == {("a1", "a2"), ("a2", "b2")}


def received_bytes(bed: Bed) -> int:
    """What the hosts received by all interfaces since the bed began."""
    return sum(received for host in bed.hosts for received, _ in bed.counters(host.name).values())


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_ended_controller_leaves_no_process(bed: Bed, tmp_path: Path, ending: signal.Signals) -> None:
    process = controller(bed, tmp_path, bed_inventory(bed), methods=["tcp"], seconds=4, streams=[8])
    try:
        assert eventually(lambda: all(len(bed.guest_pids(host.name)) >= 2 for host in bed.hosts))
        before = received_bytes(bed)
        assert eventually(lambda: received_bytes(bed) > before + MUCH_BYTES)
    finally:
        process.send_signal(ending)
        process.communicate(timeout=600)
    assert nothing_is_left(bed)


@pytest.mark.skipif(bool(missing_for_trunk()), reason=f"no trunk here: {', '.join(missing_for_trunk())}")
@pytest.mark.parametrize("delay_ms", [pytest.param(0, marks=pytest.mark.exhaustive), 20])
def test_trunk_that_two_pairs_share_is_measured(tmp_path: Path, delay_ms: float) -> None:
    with Bed(fast_mbps=200, slow_mbps=200, trunk_mbps=50, trunk_delay_ms=delay_ms) as bed:
        measured = measure(bed, tmp_path, bed_inventory(bed), methods=["tcp"])
    assert measured.problems == []
    (trunk,) = measured.trunks
    assert (trunk.clusters, trunk.source, trunk.pairs) == (("A", "B"), "measured", 2)
    assert bytes_per_s_from_mbps(50) / 1.5 < trunk.bandwidth_bytes_per_s < bytes_per_s_from_mbps(50) * 1.5
