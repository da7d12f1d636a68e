"""Inside a Slurm job probe, plan and launch need no SSH: the job's nodes are asked and trained on by its own steps."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import Plan
from holmes_core.records.record_file import read_file
from holmes_core.records.run import Run
from launcher.journal.run_folder import read_run
from tests import doc_session
from tests.testbed.bed import Bed
from tests.testbed.needs_bed import NEEDS_BED
from tests.testbed.rehearsal import Site, only_run, standard_library_corpus
from tests.testbed.slurm_on_bed import SlurmOnBed, missing_for_slurm

MISSING = ", ".join(missing_for_slurm())
pytestmark = [*NEEDS_BED, pytest.mark.skipif(bool(MISSING), reason=f"no Slurm here: {MISSING}")]

HOLMES = f"{sys.executable} -m holmes_cli"
FIVE_LINES = f"""#!/bin/bash
#SBATCH --nodes=4 --exclusive --signal=B:TERM@60
{HOLMES} probe
{HOLMES} plan job.yaml
exec {HOLMES} launch plan.json --json
"""


@pytest.fixture(scope="module")
def slurm(site: Site) -> Iterator[SlurmOnBed]:
    assert site.bed is not None
    with SlurmOnBed(site.bed) as slurm:
        yield slurm


@pytest.fixture
def no_sshd(site: Site) -> Iterator[None]:
    assert site.bed is not None
    for host in site.bed.hosts:
        site.bed.stop_sshd(host.name)
    yield
    for host in site.bed.hosts:
        site.bed.start_sshd(host.name)


def write_job(folder: Path, **changes: Any) -> None:
    job = {
        "model": {"num_layers": 4, "hidden_size": 32, "num_heads": 2, "seq_length": 32},
        "data": standard_library_corpus(),
        "global_batch_size": 8,
        "steps": 6,
        "device": "cpu",
        # Emulated: plans of hosts that share this machine's cores may leave some out.
        "compute": {"emulate": {"forward_s_per_layer": 0.01, "backward_s_per_layer": 0.02}},
        "parallel": {"pp": 2},
        "timeout_s": 60,
        **changes,
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")


def events(script: Path) -> list[dict[str, Any]]:
    said = Path(f"{script}.out").read_text(encoding="utf-8")
    found = [json.loads(line) for line in said.splitlines() if line.startswith('{"event"')]
    assert found, said
    return found


def losses(found: list[dict[str, Any]]) -> list[float]:
    return [event["loss"] for event in found if event["event"] == "step"]


def submitted(slurm: SlurmOnBed, folder: Path, text: str) -> Path:
    script = folder / "train.sh"
    script.write_text(text, encoding="utf-8")
    slurm.wait_for_end(slurm.submit(script))
    return script


def losses_by_ssh(site: Site, folder: Path) -> list[float]:
    """Those of the same job by SSH on the same hosts."""
    for arguments in (("probe", str(site.hosts_yaml)), ("plan", "job.yaml"), ("launch", "plan.json", "--json")):
        done = subprocess.run(site.command(*arguments), cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return losses([json.loads(line) for line in done.stdout.splitlines()])


def test_five_lines_of_a_batch_script_train_as_ssh_does(
    site: Site, slurm: SlurmOnBed, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    write_job(tmp_path)
    (tmp_path / "ssh").mkdir()
    write_job(tmp_path / "ssh")
    expected = losses_by_ssh(site, tmp_path / "ssh")
    request.getfixturevalue("no_sshd")
    found = events(submitted(slurm, tmp_path, FIVE_LINES))
    assert found[-1]["run"]["state"] == "done"
    assert losses(found) == expected
    assert len(expected) == 6
    by_slurm, by_ssh = (read_file(Plan, folder / "plan.json") for folder in (tmp_path, tmp_path / "ssh"))
    assert [group.interfaces for group in by_slurm.groups] == [group.interfaces for group in by_ssh.groups]
    assert {node.access.transport for node in by_slurm.nodes} == {"slurm"}


@pytest.mark.usefixtures("no_sshd")
def test_job_of_the_example_is_submitted_and_trains(
    bed: Bed, slurm: SlurmOnBed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(slurm.folder / "slurm.conf"))
    doc_session.check(doc_session.EXAMPLES / "slurm-job" / "README.md", tmp_path, tuple(bed.controller_command([])))
    assert only_run(tmp_path / "runs").name in said(tmp_path / "train")


@pytest.mark.usefixtures("no_sshd")
def test_partitions_of_a_heterogeneous_job_are_one_fleet(slurm: SlurmOnBed, tmp_path: Path) -> None:
    write_job(tmp_path)
    parts = "#SBATCH --partition=A --nodes=2 --exclusive\n#SBATCH hetjob\n#SBATCH --partition=B --nodes=2 --exclusive"
    script = submitted(slurm, tmp_path, FIVE_LINES.replace("#SBATCH --nodes=4 --exclusive --signal=B:TERM@60", parts))
    assert events(script)[-1]["run"]["state"] == "done"
    clusters = read_file(Inventory, tmp_path / "inventory.json").clusters
    assert sorted(sorted(cluster.hosts) for cluster in clusters) == [["a1", "a2"], ["b1", "b2"]]


def cancelled(slurm: SlurmOnBed, bed: Bed, folder: Path, *how: str, launch: str = "launch") -> Run:
    """The record of the folder's job, cancelled in that way while its ranks step; no process of it is left."""
    script = folder / "train.sh"
    script.write_text(FIVE_LINES.replace("launch", launch), encoding="utf-8")
    before = {host.name: set(bed.guest_pids(host.name)) for host in bed.hosts}
    job = slurm.submit(script)
    slurm.wait(lambda: "train.sh.out" in listed(folder) and '"event": "step"' in said(script), "a step", 120)
    slurm.run("scancel", *how, job)
    slurm.wait_for_end(job)
    assert {host.name: set(bed.guest_pids(host.name)) - before[host.name] for host in bed.hosts} == {
        host.name: set() for host in bed.hosts
    }
    return max((read_run(run) for run in (folder / "runs").iterdir()), key=lambda run: run.started_at_s)


@pytest.mark.usefixtures("no_sshd")
def test_a_cancelled_job_saves_before_it_ends_and_goes_on_when_its_script_is_submitted_again(
    bed: Bed, slurm: SlurmOnBed, tmp_path: Path
) -> None:
    write_job(tmp_path, steps=100000, checkpoint={"path": str(tmp_path / "checkpoints"), "every_steps": 100000})
    steps_done = []
    for _ in range(2):
        (tmp_path / "train.sh.out").unlink(missing_ok=True)
        run = cancelled(slurm, bed, tmp_path, "--signal=TERM", "--batch", launch="launch --resume --from-scratch")
        assert (run.state, run.exit_code) == ("stopped", 130)
        steps_done.append(run.steps_done)
        latest = (tmp_path / "checkpoints" / "latest").read_text(encoding="utf-8").strip()
        assert latest == f"step-{sum(steps_done):08}"
        assert run.safe_steps == sum(steps_done)
    assert f"resumed after step {steps_done[0]} " in said(tmp_path / "train.sh")


@pytest.mark.exhaustive  # "job cancelled" of test_slurm_ends.py has its controller outside the job
@pytest.mark.usefixtures("no_sshd")
def test_a_job_cancelled_without_notice_is_stopped(bed: Bed, slurm: SlurmOnBed, tmp_path: Path) -> None:
    """Its controller, inside the batch job, is told with its steps, and has Slurm's KillWait to end them."""
    write_job(tmp_path, steps=100000)
    run = cancelled(slurm, bed, tmp_path)
    assert (run.state, run.exit_code) == ("stopped", 130)


def listed(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def said(script: Path) -> str:
    return Path(f"{script}.out").read_text(encoding="utf-8")
