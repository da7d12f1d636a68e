"""The probe against hosts whose tools are swapped, missing, dying or hanging, on the bed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.testbed.bed import Bed
from tests.testbed.needs_bed import NEEDS_BED
from tests.testbed.rehearsal import Site, bed_site

pytestmark = NEEDS_BED


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A bed of its own: these tests break hosts."""
    with bed_site(tmp_path) as site:
        yield site


@pytest.fixture
def bed(site: Site) -> Bed:
    assert site.bed is not None
    return site.bed


def probe(site: Site, *options: str) -> tuple[int, dict[str, Any]]:
    """Exit code and inventory of one probe."""
    output = site.folder / "inventory.json"
    command = site.command("probe", *options, "-o", str(output))
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, check=False, env={**os.environ, "COLUMNS": "100"}
    )
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(output.read_text(encoding="utf-8"))


def tool(bed: Bed, host: str, name: str, script: str) -> None:
    """Put a shell script in the place of a tool on one host."""
    path = bed.host(host).tools / name
    path.unlink(missing_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)


def rules(inventory: dict[str, Any], host: str) -> dict[str, str]:
    """Evidence by rule of one host's findings."""
    return {f["rule"]: f["evidence"] for f in inventory["findings"] if host in f["hosts"]}


def host_of(inventory: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [host for host in inventory["hosts"] if host["name"] == name]
    assert isinstance(found, dict)
    return found


def test_healthy_bed_is_not_refused_and_a_replay_gives_the_same_bytes(site: Site) -> None:
    recordings = site.folder / "recordings"
    code, _ = probe(site, str(site.hosts_yaml), "--record", str(recordings))
    live = (site.folder / "inventory.json").read_bytes()
    assert code == 0
    assert sorted(path.name for path in recordings.iterdir()) == ["a1", "a2", "b1", "b2"]
    probe(site, "--replay", str(recordings))
    assert (site.folder / "inventory.json").read_bytes() == live


def test_hostile_tools_cost_their_facts_and_hide_nothing_else(site: Site, bed: Bed) -> None:
    tool(bed, "a1", "ibstat", "head -c 200 /proc/self/environ; kill -9 $$")
    tool(bed, "a2", "nvidia-smi", "sleep 300")
    tool(bed, "b1", "nvidia-smi", "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    (bed.host("b2").tools / "nvidia-smi").unlink()
    tool(bed, "b2", "date", 'exec /bin/date -d "@$(( $(/bin/date +%s) + 5 ))" "$@"')
    _, inventory = probe(site, str(site.hosts_yaml))
    assert "HOST-TIME-SKEW" in rules(inventory, "b2")
    assert all(host["reachable"] for host in inventory["hosts"])
    assert {"PROBE-TOOL-FAILED", "PROBE-TRUNCATED"} & set(rules(inventory, "a1"))
    assert any(rule.startswith("PROBE-") and "nvidia-smi" in text for rule, text in rules(inventory, "a2").items())
    assert "GPU-DRIVER-MISMATCH" in rules(inventory, "b1")
    assert "nvidia-smi" in rules(inventory, "b2")["PROBE-TOOL-MISSING"]
    assert [len(host_of(inventory, name)["gpus"]) for name in ("a1", "a2", "b1", "b2")] == [1, 0, 0, 0]
    assert host_of(inventory, "a2")["nics"][0]["state"] == "Active"


def test_swapped_tool_moves_the_host_to_another_cluster(site: Site, bed: Bed) -> None:
    replies = [bed.host(name).folder / "replies" / "ibstat.txt" for name in ("b1", "a2")]
    replies[1].write_text(replies[0].read_text(encoding="utf-8"), encoding="utf-8")
    _, inventory = probe(site, str(site.hosts_yaml))
    clusters = [cluster["hosts"] for cluster in inventory["clusters"]]
    assert ["a1"] in clusters
    assert host_of(inventory, "a2")["nics"][0]["kind"] == "RoCE"


def test_changed_host_key_is_refused_and_hides_no_other_host(site: Site, bed: Bed) -> None:
    known = bed.folder / "known_hosts"
    lines = [line.split() for line in known.read_text(encoding="utf-8").splitlines()]
    other = next(words for words in lines if "10.9.0.2" in words[0])
    changed = [[words[0], *other[1:]] if "10.9.0.1" in words[0] else words for words in lines]
    known.write_text("".join(" ".join(words) + "\n" for words in changed), encoding="utf-8")
    code, inventory = probe(site, str(site.hosts_yaml))
    assert code == 1
    assert "SSH-HOSTKEY-CHANGED" in rules(inventory, "a1")
    assert [host["reachable"] for host in inventory["hosts"]] == [False, True, True, True]


def test_host_behind_a_jump_host_is_reached_through_it(site: Site, bed: Bed) -> None:
    text = bed.ssh_config.read_text(encoding="utf-8")
    jumping = site.folder / "ssh_config"
    jumping.write_text(f"Host b1\n    ProxyJump a1\n{text}", encoding="utf-8")
    hosts = site.folder / "hosts.yaml"
    hosts.write_text(site.hosts_yaml.read_text(encoding="utf-8").replace(str(bed.ssh_config), str(jumping)))
    # b1 listens to a1 alone now: the controller has no way there but the jump host.
    rule = ["ip", "route", "add", "blackhole", "10.9.0.254/32"]
    subprocess.run(bed.on_host_command("b1", rule), check=True)
    _, inventory = probe(site, str(hosts))
    assert [host["reachable"] for host in inventory["hosts"]] == [True, True, True, True]
    _, direct = probe(site, str(site.hosts_yaml))
    assert [host["reachable"] for host in direct["hosts"]] == [True, True, False, True]
