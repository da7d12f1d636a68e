"""A real Slurm takes the topology.conf that is made of a probe, and its own lists give the same hosts and clusters."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from holmes_core.hosts.hosts_file import read_hosts_file
from holmes_core.records.inventory import Inventory
from holmes_core.records.record_file import read_file
from tests.testbed.needs_bed import NEEDS_BED
from tests.testbed.rehearsal import Site
from tests.testbed.slurm_on_bed import SlurmOnBed, missing_for_slurm

MISSING = ", ".join(missing_for_slurm())
pytestmark = [*NEEDS_BED, pytest.mark.skipif(bool(MISSING), reason=f"no Slurm here: {MISSING}")]


def test_hosts_and_clusters_come_back_from_slurms_own_lists(site: Site, tmp_path: Path) -> None:
    assert site.bed is not None
    inventory, topology, listed = tmp_path / "inventory.json", tmp_path / "topology.conf", tmp_path / "listed.txt"
    for arguments in (
        ("probe", str(site.hosts_yaml), "-o", str(inventory)),
        ("hosts", "--to", "topology", str(inventory), "-o", str(topology)),
    ):
        subprocess.run(site.command(*arguments), check=True, capture_output=True)
    with SlurmOnBed(site.bed, topology.read_text(encoding="utf-8")) as slurm:
        drained = site.bed.hosts[0].name
        slurm.run("scontrol", "update", f"NodeName={drained}", "State=DRAIN", "Reason=State=IDLE NodeName=evil")
        nodes, switches = slurm.run("scontrol", "-o", "show", "nodes"), slurm.run("scontrol", "show", "topology")
        ran = slurm.run("srun", f"--nodes={len(site.bed.hosts) - 1}", "hostname")
    listed.write_text(nodes + switches, encoding="utf-8")
    imported = site.command("hosts", "--from", "slurm", str(listed), "-o", str(tmp_path / "hosts.yaml"))
    said = subprocess.run(imported, check=True, capture_output=True, text=True).stderr
    assert said.startswith(f"left out: {drained}: IDLE+DRAIN")
    found = {entry.name: entry for entry in read_hosts_file(tmp_path / "hosts.yaml").hosts}
    others = [host for host in site.bed.hosts if host.name != drained]
    assert {name: entry.address for name, entry in found.items()} == {host.name: host.slow_address for host in others}
    clusters = {name: cluster.name for cluster in read_file(Inventory, inventory).clusters for name in cluster.hosts}
    expected = {host.name: (clusters[host.name], "holmes-all") for host in others}
    assert {name: entry.hints.network for name, entry in found.items()} == expected
    assert sorted(ran.split()) == sorted(found)  # over all clusters, since one switch joins them
