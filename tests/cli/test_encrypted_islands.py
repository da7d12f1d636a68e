"""Islands whose hosts are joined by one tunnel: who listens reads nothing, islands come and go, and nothing is left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import yaml

from holmes_core.records.plan import TUNNEL_NETDEV
from launcher.journal.run_folder import read_run
from tests.cli.test_encryption import tunnels
from tests.cli.test_islands_on_bed import JOB, exchanges, holmes, lost_hosts, steps_done
from tests.eventually import eventually
from tests.testbed.bed import Bed
from tests.testbed.needs_bed import NEEDS_BED
from tests.testbed.packets import listening
from tests.testbed.rank_processes import our_pids, rank_pids
from tests.testbed.rehearsal import Site, only_run

MISSING = [tool for tool in ("wg", "wireguard-go") if shutil.which(tool) is None]
pytestmark = [
    *NEEDS_BED,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def plan(site: Site) -> Path:
    """The plan of islands that do not end by themselves, in a tunnel."""
    hosts = {**yaml.safe_load(site.hosts_yaml.read_text()), "security": {"between_clusters": "wireguard"}}
    hosts_yaml, inventory, plan = (
        site.folder / name for name in ("hosts-wg.yaml", "inventory-wg.json", "plan-wg.json")
    )
    hosts_yaml.write_text(yaml.safe_dump(hosts), encoding="utf-8")
    job = site.write_job("islands-wg", {**JOB, "steps": 100_000})
    for words in (
        ("probe", str(hosts_yaml), "-o", str(inventory)),
        ("plan", str(job), "-i", str(inventory), "-o", str(plan)),
    ):
        done = holmes(site, *words)
        assert done.returncode == 0, done.stderr
    return plan


def keys(bed: Bed) -> list[str]:
    """The public key of each host's end."""
    show = ["wg", "show", TUNNEL_NETDEV, "public-key"]
    return [subprocess.check_output(bed.on_host_command(host.name, show), text=True) for host in bed.hosts]


def joined(island: Path) -> int:
    """Count the times the island came back and received the state of the others."""
    return sum(each["has_joined"] for each in exchanges(island))


def nothing_is_left(bed: Bed) -> bool:
    return tunnels(bed) == [] and not any(our_pids(bed, host.name) for host in bed.hosts)


def test_an_island_that_is_killed_comes_back_into_the_tunnel_and_nothing_is_read(
    site: Site, bed: Bed, plan: Path, tmp_path: Path
) -> None:
    words = site.command("launch", str(plan), "--runs", str(tmp_path))
    with (
        listening(bed.host("b1"), b"\0" * 4096) as heard,
        subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process,
    ):
        try:
            assert eventually(lambda: any(steps_done(each) > 25 for each in tmp_path.glob("*/island-1")))
            kept, lost = (only_run(tmp_path) / f"island-{number}" for number in (0, 1))
            first, hosts = keys(bed), lost_hosts(lost)
            for host in hosts:
                for pid in our_pids(bed, host):  # the tunnel's too
                    os.kill(pid, signal.SIGKILL)
            assert eventually(lambda: joined(lost) > 0)
            second = keys(bed)
            are_kept = [before == after for before, after in zip(first, second, strict=True)]
            assert are_kept == [host.name not in hosts for host in bed.hosts]
            for pid in rank_pids(bed, hosts[0]):
                os.kill(pid, signal.SIGKILL)
            before = joined(lost)
            assert eventually(lambda: joined(lost) > before)
            assert keys(bed) == second
            assert (read_run(kept).attempt, read_run(kept).state) == (0, "running")
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=600) == 130
    assert heard.frames > steps_done(kept)
    assert not heard.tcp_between_hosts
    assert nothing_is_left(bed)


def test_a_host_without_the_tools_refuses_all_islands_and_nothing_is_left(
    site: Site, bed: Bed, plan: Path, tmp_path: Path
) -> None:
    tool = shutil.which("wg")
    assert tool is not None
    subprocess.run(bed.on_host_command("b2", ["mount", "--bind", "/dev/null", tool]), check=True)
    try:
        done = holmes(site, "launch", str(plan), "--runs", str(tmp_path))
    finally:
        subprocess.run(bed.on_host_command("b2", ["umount", tool]), check=True)
    assert done.returncode == 1
    assert "host b2: preflight check encryption failed: `wg` is not installed" in done.stderr
    assert "install the package wireguard-tools" in done.stderr
    assert eventually(lambda: nothing_is_left(bed))
    assert list(tmp_path.iterdir()) == []


def test_an_island_without_a_network_leaves_the_tunnel_and_a_killed_controller_leaves_none(
    site: Site, bed: Bed, plan: Path, tmp_path: Path
) -> None:
    done = holmes(site, "launch", str(plan), "--detach", "--runs", str(tmp_path))
    assert done.returncode == 0, done.stderr
    kept, lost = (only_run(tmp_path) / f"island-{number}" for number in (0, 1))
    controller = read_run(kept.parent).controller
    assert controller is not None
    try:
        assert eventually(lambda: steps_done(lost) > 25)
        gone = [host for host in bed.hosts if host.name in lost_hosts(lost)]
        for host in gone:
            bed.set_link(host.name, host.slow_interface, up=False)
        assert eventually(lambda: not set(tunnels(bed)) & {host.name for host in gone})
        alone = steps_done(kept)
        assert eventually(lambda: steps_done(kept) > alone + 30)
        for host in gone:
            bed.set_link(host.name, host.slow_interface, up=True)
        assert eventually(lambda: joined(lost) > 0)
        assert tunnels(bed) == [host.name for host in bed.hosts]
        assert (read_run(kept).attempt, read_run(kept).state) == (0, "running")
    finally:
        os.kill(controller.pid, signal.SIGKILL)
    assert eventually(lambda: nothing_is_left(bed))
