"""One plan on one bed, started by SSH, by emitted torchrun commands, by emitted batch scripts and by mpirun.

The losses are the same bit for bit, and each interface carries as much, but for TCP's acknowledgements and SSH itself.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from holmes_core.records.plan import Plan
from holmes_core.records.record_file import read_file
from tests.cli.test_slurm import losses_by_ssh, write_job
from tests.runtime.launched_runs import read_metrics
from tests.testbed.needs_bed import NEEDS_BED
from tests.testbed.rehearsal import Site, only_run
from tests.testbed.slurm_on_bed import SlurmOnBed, missing_for_slurm

pytestmark = NEEDS_BED
STEPS = 6
NO_SLURM = ", ".join(missing_for_slurm())


Traffic = dict[tuple[str, str], int]
"""Bytes that a host has sent by an interface."""


@dataclass(frozen=True)
class BySsh:
    """The run over SSH: the folder of its plan, the losses, and what its interfaces carried."""

    folder: Path
    losses: list[float]
    traffic: Traffic


@pytest.fixture(scope="module")
def by_ssh(site: Site, tmp_path_factory: pytest.TempPathFactory) -> BySsh:
    """The plan, and its run by `holmes launch`."""
    folder = tmp_path_factory.mktemp("ssh")
    write_job(folder, steps=STEPS, compute={"flops_per_s": 1e10}, parallel={"pp": 2, "dp": 2})
    losses = losses_by_ssh(site, folder)
    assert len(losses) == STEPS
    traffic: Traffic = Counter()
    for line in (only_run(folder / "runs") / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        for moved in json.loads(line)["interfaces"]:
            traffic[moved["host"], moved["netdev"]] += moved["sent_bytes"]
    return BySsh(folder, losses, traffic)


def emitted(site: Site, plan_folder: Path, form: str, folder: Path) -> Path:
    """The plan as files of that format."""
    line = site.command("emit", "plan.json", "--to", form, "-o", str(folder))
    subprocess.run(line, cwd=plan_folder, check=True, capture_output=True, timeout=600)
    return folder


def check_same(folder: Path, by_ssh: BySsh, said: str) -> None:
    """The ranks of an emitted folder wrote the same losses, and their interfaces carried as much; one printed them."""
    printed = [line.partition("step ")[2].split()[2] for line in said.splitlines() if f"/{STEPS}  loss " in line]
    assert printed == [f"{loss:.4f}" for loss in by_ssh.losses], said
    assert sum(line.split()[-1:] == ["done"] for line in said.splitlines()) == 1, said
    assert (folder / "out").is_dir(), said
    by_rank = read_metrics(folder / "out")
    plan = read_file(Plan, by_ssh.folder / "plan.json")
    assert sorted(by_rank) == [rank.rank for rank in plan.ranks], said
    curves = [[line["loss"] for line in lines] for lines in by_rank.values()]
    told = [curve for curve in curves if None not in curve]
    assert told
    assert all(curve == by_ssh.losses for curve in told)
    traffic: Traffic = Counter()
    for rank, lines in by_rank.items():
        for line in lines:
            for netdev, moved in line["interfaces"].items():
                traffic[plan.ranks[rank].host, netdev] += moved["sent_bytes"]
    for where, size in by_ssh.traffic.items():
        if where[1] != "lo":
            assert size > 50_000
            # TCP acknowledges as it sees fit, each packet on a busy machine: 66 bytes for 1,514 received, or for fewer
            # in so little traffic. Other interfaces would carry nothing.
            assert traffic[where] == pytest.approx(size, rel=0.1), where


@pytest.mark.exhaustive  # a batch script has the same command, and test_emitted_trainer.py starts it in any order
def test_torchrun_on_every_node(site: Site, by_ssh: BySsh, tmp_path: Path) -> None:
    assert site.bed is not None
    folder = emitted(site, by_ssh.folder, "torchrun", tmp_path / "emitted")
    lines = (folder / "commands").read_text(encoding="utf-8").splitlines()
    started = []
    for node in read_file(Plan, by_ssh.folder / "plan.json").nodes:
        (command,) = [line for line in lines if line.startswith(f"HOLMES_HOST={node.host} ")]
        words = site.bed.on_host_command(node.host, ["sh", "-c", f"cd {shlex.quote(str(folder))} && {command}"])
        started.append(subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    try:
        said = [process.communicate(timeout=300)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * 4, said
    check_same(folder, by_ssh, "".join(said))


@pytest.mark.skipif(bool(NO_SLURM), reason=f"no Slurm here: {NO_SLURM}")
def test_batch_scripts_on_slurm(site: Site, by_ssh: BySsh, tmp_path: Path) -> None:
    assert site.bed is not None
    partitions = {"a1": "A", "a2": "A", "b1": "B", "b2": "B"}
    with SlurmOnBed(site.bed) as slurm:
        for name in ("job.sbatch", "het.sbatch"):
            folder = emitted(site, by_ssh.folder, "slurm", tmp_path / name.partition(".")[0])
            script = folder / name
            if name == "het.sbatch":  # a found cluster has no name of a partition
                plan = read_file(Plan, by_ssh.folder / "plan.json")
                text = script.read_text(encoding="utf-8")
                for node in plan.nodes:
                    text = text.replace(f"--partition={node.cluster} ", f"--partition={partitions[node.host]} ")
                script.write_text(text, encoding="utf-8")
            slurm.wait_for_end(slurm.submit(script))
            said = Path(f"{script}.out").read_text(encoding="utf-8")
            check_same(folder, by_ssh, said)


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun here")
def test_mpirun_over_ssh(site: Site, by_ssh: BySsh, tmp_path: Path) -> None:
    assert site.bed is not None
    folder = emitted(site, by_ssh.folder, "mpi", tmp_path / "emitted")
    agent = f"ssh -F {site.bed.ssh_config}"
    options = {"OMPI_MCA_plm_rsh_agent": agent, "PRTE_MCA_plm_ssh_agent": agent}
    allowed = {f"{name}_ALLOW_RUN_AS_ROOT{end}": "1" for name in ("OMPI", "PRTE") for end in ("", "_CONFIRM")}
    prefix = Path(str(shutil.which("mpirun"))).parent.parent
    line = [*site.prefix, str(folder / "mpirun.sh"), "--prefix", str(prefix)]
    done = subprocess.run(
        line, env={**os.environ, **options, **allowed}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    check_same(folder, by_ssh, done.stdout)


@pytest.mark.exhaustive  # ranks of test_slurm.py are told by the same signal, and save and go on so
@pytest.mark.skipif(bool(NO_SLURM), reason=f"no Slurm here: {NO_SLURM}")
def test_a_batch_job_that_is_told_to_end_saves_and_the_next_one_goes_on(site: Site, tmp_path: Path) -> None:
    assert site.bed is not None
    checkpoint = {"path": str(tmp_path / "checkpoints"), "every_steps": 100000}
    write_job(tmp_path, steps=100000, parallel={"pp": 2, "dp": 2}, checkpoint=checkpoint)
    for arguments in (("probe", str(site.hosts_yaml)), ("plan", "job.yaml")):
        subprocess.run(site.command(*arguments), cwd=tmp_path, check=True, capture_output=True, timeout=600)
    folder = emitted(site, tmp_path, "slurm", tmp_path / "emitted")
    script = folder / "job.sbatch"
    with SlurmOnBed(site.bed) as slurm:
        before = {host.name: set(site.bed.guest_pids(host.name)) for host in site.bed.hosts}
        first = run_until_step(slurm, script, folder)
        assert "resumes" not in first
        saved = (tmp_path / "checkpoints" / "latest").read_text(encoding="utf-8").strip()
        second = run_until_step(slurm, script, folder)
        assert f"resumed after step {int(saved.removeprefix('step-'))} of 100000 from" in second
        left = {host.name: set(site.bed.guest_pids(host.name)) - before[host.name] for host in site.bed.hosts}
    assert left == {host.name: set() for host in site.bed.hosts}


def run_until_step(slurm: SlurmOnBed, script: Path, folder: Path) -> str:
    """Submit, tell the ranks to end once they train, and return what they said."""
    metrics = folder / "out" / "metrics-rank0.jsonl"
    had = metrics.stat().st_size if metrics.exists() else 0
    job = slurm.submit(script)
    slurm.wait(lambda: metrics.exists() and metrics.stat().st_size > had, "a step", 120)
    slurm.run("scancel", "--signal=TERM", job)
    slurm.wait_for_end(job)
    return Path(f"{script}.out").read_text(encoding="utf-8")
