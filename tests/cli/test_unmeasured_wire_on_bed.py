"""README's path over a trunk of 20 Mbit/s: a plan on rates that nobody measured says so before anything else."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.testbed.bed_needs import missing_for_trunk
from tests.testbed.needs_bed import NEEDS_BED
from tests.testbed.rehearsal import Site, bed_site, standard_library_corpus

pytestmark = [*NEEDS_BED, pytest.mark.skipif(bool(missing_for_trunk()), reason="no trunk here")]

# README's job, whose plan crosses the trunk.
JOB = {
    "model": {"num_layers": 4, "hidden_size": 64, "num_heads": 4, "seq_length": 64},
    "data": standard_library_corpus(),
    "global_batch_size": 8,
    "steps": 10,
    "parallel": {"pp": 2, "dp": 2, "micro_batch_size": 2},
    "device": "cpu",
    "optimizer": {"learning_rate": 3.0e-3},
    "checkpoint": {"path": "~/holmes-checkpoints", "every_steps": 5},
    "compute": {"flops_per_s": 1.0e10},
}


def holmes(site: Site, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(site.command(*arguments), capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return done


def first_lines(site: Site, job: Path, inventory: Path) -> str:
    """What the plan says before it says what runs where, on one line."""
    text = holmes(site, "plan", str(job), "-i", str(inventory), "-o", str(site.folder / "plan.json")).stdout
    before, placement, _ = text.partition("Placement")
    assert placement, text
    return " ".join(before.split())


@pytest.mark.exhaustive
def test_a_plan_says_that_the_wire_is_not_measured_until_it_is(tmp_path: Path) -> None:
    with bed_site(tmp_path, trunk_mbps=20) as site:
        inventory, job = site.folder / "inventory.json", site.write_job("job", JOB)
        probed = holmes(site, "probe", str(site.hosts_yaml), "-o", str(inventory))
        clusters = sorted(cluster["name"] for cluster in json.loads(inventory.read_text(encoding="utf-8"))["clusters"])
        assert "are nominal; `--links` measures them" in " ".join((probed.stdout + probed.stderr).split())

        assert f"Wire not measured ({' - '.join(clusters)}" in first_lines(site, job, inventory)

        holmes(site, "probe", str(site.hosts_yaml), "--links", "-o", str(inventory))
        assert "not measured" not in first_lines(site, job, inventory)
