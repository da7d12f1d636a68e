"""What passes in a tunnel is measured on the bed beside the clear way, and nothing of it stays, whoever is killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holmes_core.records.inventory import Inventory
from holmes_core.records.link import Link, Security
from prober.links.tunnel_end import ALIAS, INTERFACE
from tests.eventually import eventually
from tests.prober.test_links_on_bed import bed_inventory, controller, measure, nothing_is_left
from tests.testbed.bed import Bed
from tests.testbed.needs_bed import NEEDS_BED

MISSING = [tool for tool in ("wg", "wireguard-go") if shutil.which(tool) is None]
pytestmark = [*NEEDS_BED, pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")]
BUSY = 1.25  # a shaped link lets bursts pass, and what one window of a busy machine counts the next one lacks
ONE_PAIR = {"pairs": 1, "streams": [1], "methods": ["tcp"]}


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    """100 Mbit/s across, which two busy cores encrypt with room to spare."""
    with Bed(fast_mbps=200, slow_mbps=100) as bed:
        yield bed


def encrypting(bed: Bed) -> Inventory:
    return bed_inventory(bed).model_copy(update={"security": Security(between_clusters="wireguard")})


def shown(bed: Bed, host: str) -> str:
    """What the host says of the probe's interface; "" where it has none."""
    show = bed.on_host_command(host, ["ip", "link", "show", "dev", INTERFACE])
    return subprocess.run(show, capture_output=True, text=True, check=False).stdout


def tunnels(bed: Bed) -> list[str]:
    return [host.name for host in bed.hosts if shown(bed, host.name)]


def ends(bed: Bed, host: str) -> list[int]:
    """The processes of the probe's end on that host: the one that is asked first, the one that outlives it last."""
    lock = bed.on_host_command(host, ["cat", "/proc/net/unix"])
    held = subprocess.run(lock, capture_output=True, text=True, check=True).stdout
    inodes = {line.split()[6] for line in held.splitlines() if line.endswith("@holmes-probe")}
    pids = [pid for pid in bed.guest_pids(host) for inode in inodes if f"socket:[{inode}]" in open_files(pid)]
    return sorted(pids)


def open_files(pid: int) -> list[str]:
    folder = Path(f"/proc/{pid}/fd")
    try:
        return [str(file.readlink()) for file in folder.iterdir()]
    except OSError:
        return []


def fastest(links: list[Link], tunnel: bool) -> dict[tuple[object, ...], float]:
    between = sorted(
        (link for link in links if link.kind == "between" and link.tunnel is tunnel),
        key=lambda link: link.bandwidth_bytes_per_s.median,
    )
    return {(link.hosts, link.direction): link.bandwidth_bytes_per_s.median for link in between}


def test_each_way_between_clusters_is_measured_in_the_clear_and_in_a_tunnel(bed: Bed, tmp_path: Path) -> None:
    measured = measure(bed, tmp_path, encrypting(bed), methods=["tcp"], streams=[1, 4])
    assert measured.problems == []
    clear, encrypted = fastest(measured.links, False), fastest(measured.links, True)
    assert clear.keys() == encrypted.keys()
    assert len(clear) == 4
    assert all(encrypted[way] <= BUSY * clear[way] for way in clear)
    assert all(link.latency_s is not None for link in measured.links)
    assert {link.devices for link in measured.links if link.tunnel} == {
        link.devices for link in measured.links if link.kind == "between"
    }
    assert tunnels(bed) == []
    assert nothing_is_left(bed)


def test_a_probe_that_is_killed_leaves_no_tunnel(bed: Bed, tmp_path: Path) -> None:
    process = controller(bed, tmp_path, encrypting(bed), seconds=3, **ONE_PAIR)
    try:
        assert eventually(lambda: len(tunnels(bed)) == 2)
    finally:
        process.kill()
        process.communicate(timeout=600)
    assert eventually(lambda: tunnels(bed) == [])
    assert nothing_is_left(bed)


def test_an_end_that_is_killed_leaves_no_tunnel_and_a_finding(bed: Bed, tmp_path: Path) -> None:
    process = controller(bed, tmp_path, encrypting(bed), seconds=3, **ONE_PAIR)
    try:
        assert eventually(lambda: len(tunnels(bed)) == 2)
        (host, _) = tunnels(bed)
        os.kill(ends(bed, host)[0], signal.SIGKILL)
        assert eventually(lambda: host not in tunnels(bed))
    finally:
        stdout, _ = process.communicate(timeout=600)
    assert "NET-TUNNEL-NOT-MEASURED" in stdout
    assert eventually(lambda: tunnels(bed) == [])
    assert nothing_is_left(bed)


def test_what_is_left_where_all_were_killed_is_removed_by_the_next_probe(bed: Bed, tmp_path: Path) -> None:
    process = controller(bed, tmp_path, encrypting(bed), seconds=3, **ONE_PAIR)
    try:
        assert eventually(lambda: len(tunnels(bed)) == 2 and ALIAS in shown(bed, tunnels(bed)[0]))
        (host, _) = tunnels(bed)
        for pid in reversed(ends(bed, host)):
            os.kill(pid, signal.SIGKILL)
    finally:
        process.kill()
        process.communicate(timeout=600)
    assert eventually(lambda: tunnels(bed) == [host])
    measured = measure(bed, tmp_path, encrypting(bed), **ONE_PAIR)
    assert measured.problems == []
    assert tunnels(bed) == []
    assert nothing_is_left(bed)


def test_an_interface_of_that_name_that_is_somebody_elses_stays(bed: Bed, tmp_path: Path) -> None:
    add, delete = (["ip", "tuntap", act, "dev", INTERFACE, "mode", "tun"] for act in ("add", "delete"))
    subprocess.run(bed.on_host_command("b1", add), check=True)
    try:
        measured = measure(bed, tmp_path, encrypting(bed), **ONE_PAIR)
        assert tunnels(bed) == ["b1"]
    finally:
        subprocess.run(bed.on_host_command("b1", delete), check=True)
    (problem,) = measured.problems
    assert (problem.rule, problem.severity, problem.hosts) == ("NET-TUNNEL-NOT-MEASURED", "W", ("b1",))
    assert problem.evidence == "an interface holmes-probe is there that no probe has made"
    assert fastest(measured.links, True) == {}
    assert len(fastest(measured.links, False)) == 2


def test_a_host_without_the_tools_is_a_finding_and_hides_no_clear_figure(bed: Bed, tmp_path: Path) -> None:
    tool = shutil.which("wg")
    assert tool is not None
    subprocess.run(bed.on_host_command("b1", ["mount", "--bind", "/dev/null", tool]), check=True)
    try:
        measured = measure(bed, tmp_path, encrypting(bed), methods=["tcp"], streams=[1])
    finally:
        subprocess.run(bed.on_host_command("b1", ["umount", tool]), check=True)
    (problem,) = measured.problems
    assert (problem.rule, problem.hosts) == ("NET-TUNNEL-NOT-MEASURED", ("b1",))
    assert problem.evidence == "`wg` is not installed"
    assert problem.remedy == "install the package wireguard-tools"
    assert len(fastest(measured.links, False)) == 4
    assert len(fastest(measured.links, True)) == 2
    assert tunnels(bed) == []
