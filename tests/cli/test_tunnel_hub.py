"""Islands at two sites behind NAT, whose tunnel a third host relays: it is measured, planned, killed and comes back."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import IslandsPlan
from holmes_core.records.record_file import read_file
from launcher.journal.run_folder import read_run
from tests.cli.test_encrypted_islands import nothing_is_left
from tests.cli.test_islands_on_bed import JOB, exchanges, holmes, steps_done
from tests.eventually import eventually
from tests.testbed.bed import Bed
from tests.testbed.needs_bed import NEEDS_BED
from tests.testbed.rank_processes import our_pids
from tests.testbed.rehearsal import Site, bed_site, only_run

MISSING = [tool for tool in ("wg", "wireguard-go", "nft", "sysctl") if shutil.which(tool) is None]
pytestmark = [
    *NEEDS_BED,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
    pytest.mark.timeout(600),
]
HUB = "b2"
HOSTS = [
    {"name": "a1", "cluster": "a"},
    {"name": "b1", "cluster": "b"},
    {"name": HUB, "cluster": "relay", "gpus": []},
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with bed_site(tmp_path_factory.mktemp("site"), slow_mbps=20, behind_nat=True) as site:
        bed = site.bed
        assert bed is not None
        hub = bed.host(HUB)
        for words in (["flush", "dev"], ["add", "10.3.0.1/24", "dev"]):  # it shares no fabric with a site
            subprocess.run(bed.on_host_command(HUB, ["ip", "address", *words, hub.fast_interface]), check=True)
        hosts = {
            **yaml.safe_load(site.hosts_yaml.read_text()),
            "hosts": HOSTS,
            "security": {"between_clusters": "wireguard", "tunnel_hub": HUB},
        }
        site.hosts_yaml.write_text(yaml.safe_dump(hosts), encoding="utf-8")
        yield site


@pytest.fixture(scope="module")
def bed(site: Site) -> Bed:
    assert site.bed is not None
    return site.bed


@pytest.fixture(scope="module")
def inventory(site: Site) -> Path:
    inventory = site.folder / "inventory.json"
    done = holmes(site, "probe", str(site.hosts_yaml), "--links", "-o", str(inventory))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "NET-TUNNEL-NOT-MEASURED" not in done.stdout
    return inventory


@pytest.fixture(scope="module")
def plan(site: Site, inventory: Path) -> Path:
    """The plan of islands that do not end by themselves."""
    plan, job = site.folder / "plan.json", site.write_job("job", {**JOB, "steps": 100_000})
    done = holmes(site, "plan", str(job), "-i", str(inventory), "-o", str(plan))
    assert done.returncode == 0, done.stderr
    assert f"{HUB} relays the tunnel between a - b" in done.stdout
    return plan


def test_paths_to_the_hub_are_measured_from_behind_nat_and_priced(inventory: Path, plan: Path) -> None:
    between = [link for link in read_file(Inventory, inventory).links if link.kind == "between"]
    assert {link.hosts for link in between} == {("a1", HUB), ("b1", HUB)}
    assert all(link.tunnel for link in between)
    planned = read_file(IslandsPlan, plan)
    hub = planned.tunnel_hub
    assert hub is not None
    assert (hub.node.host, hub.relayed) == (HUB, (("a", "b"),))
    assert [[node.host for node in nodes] for nodes in planned.tunnel_nodes] == [["a1"], ["b1"], [HUB]]


def rules(bed: Bed) -> str:
    return subprocess.check_output(bed.on_host_command(HUB, ["ip", "rule"]), text=True)


def test_a_hub_that_is_killed_comes_back_and_nothing_is_lost(site: Site, bed: Bed, plan: Path, tmp_path: Path) -> None:
    before = rules(bed)
    words = site.command("launch", str(plan), "--runs", str(tmp_path))
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            assert eventually(lambda: any(steps_done(each) > 25 for each in tmp_path.glob("*/island-1")))
            islands = [only_run(tmp_path) / f"island-{number}" for number in (0, 1)]
            for pid in our_pids(bed, HUB):
                os.kill(pid, signal.SIGKILL)
            assert eventually(lambda: "relays again" in (islands[0] / "events.jsonl").read_text())
            done = [(steps_done(each) + 25, len(exchanges(each)) + 2) for each in islands]
            for island, (steps, synced) in zip(islands, done, strict=True):
                assert eventually(lambda: steps_done(island) > steps and len(exchanges(island)) > synced)  # noqa: B023
            assert [(read_run(each).attempt, read_run(each).state) for each in islands] == [(0, "running")] * 2
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=600) == 130
    digests = [{each["exchange"]: each["digest"] for each in exchanges(island)} for island in islands]
    assert all(digests[1].get(number, digest) == digest for number, digest in digests[0].items())
    assert not any("do not have the same state" in (each / "events.jsonl").read_text() for each in islands)
    assert nothing_is_left(bed)
    assert rules(bed) == before
