"""Whoever shares the network with a run, or a host, does not get into it; the run goes on as if nobody had tried."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.testbed.needs_bed import NEEDS_BED
from tests.testbed.rehearsal import Site, only_run, standard_library_corpus
from tests.testbed.strangers import Strangers

pytestmark = [*NEEDS_BED, pytest.mark.timeout(600)]
MIN_TRIES = 200
JOB = {
    "model": {"num_layers": 4, "hidden_size": 32, "num_heads": 2, "seq_length": 32},
    "data": standard_library_corpus(),
    "global_batch_size": 12,
    "steps": 100,
    "device": "cpu",
    "compute": {"flops_per_s": 1e10},
    "timeout_s": 60,
}


def losses_of(site: Site, folder: Path, pp: int, dp: int) -> list[float]:
    """Return the loss of every step of a run with so many stages and replicas, which comes to its end."""
    folder.mkdir()
    job = site.write_job(f"job-{pp}-{dp}", {**JOB, "parallel": {"pp": pp, "dp": dp, "micro_batch_size": 1}})
    plan, runs = folder / "plan.json", folder / "runs"
    command = site.command("plan", str(job), "-i", str(site.folder / "inventory.json"), "-o", str(plan))
    subprocess.run(command, check=True, capture_output=True)
    done = subprocess.run(site.command("launch", str(plan), "--runs", str(runs)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = (only_run(runs) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["loss"] for line in lines]


def test_strangers_get_no_answer_and_the_run_goes_on_with_the_same_losses(site: Site, tmp_path: Path) -> None:
    """The losses are those of one process, which has no open port."""
    assert site.bed is not None
    probe = site.command("probe", str(site.hosts_yaml), "-o", str(site.folder / "inventory.json"))
    subprocess.run(probe, check=True, capture_output=True)
    undisturbed = losses_of(site, tmp_path / "undisturbed", 1, 1)
    strangers = Strangers(site.bed)
    try:
        strangers.begin()
        disturbed = losses_of(site, tmp_path / "disturbed", 2, 2)
    finally:
        strangers.end()
    tries = [*strangers.outside, *strangers.inside]
    assert [each for each in tries if each.joined or each.answer_bytes] == []
    # Gloo's sockets listen for a moment before they are closed to all; one that somebody came to then is given up.
    assert [each for each in strangers.outside if each.held and each.address_and_port in strangers.of_ranks] == []
    assert strangers.of_ranks
    assert len(tries) >= MIN_TRIES
    assert disturbed == pytest.approx(undisturbed, abs=1e-5)
    assert len(disturbed) == JOB["steps"]
