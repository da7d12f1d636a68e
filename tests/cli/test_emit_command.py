"""`holmes emit`: the files are there or nothing is; what a launch refuses to start is not written either."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from holmes_core.records.plan import Plan
from holmes_core.records.record_file import write_atomically, write_signed
from tests.cli.conftest import Command
from tests.launcher.emitted import suited
from tests.launcher.plans import cpu_plan
from tests.launcher.trainer_job import trainer_plan
from tests.seeds import few_of


@pytest.fixture
def plan(request: pytest.FixtureRequest, tmp_path: Path) -> Plan:
    """plan.json of this user, alone in the folder."""
    request.getfixturevalue("command")
    plan = cpu_plan()
    write_signed(tmp_path / "plan.json", plan)
    return plan


@pytest.mark.usefixtures("plan")
def test_says_what_it_wrote_and_what_to_do_with_it(command: Command, tmp_path: Path) -> None:
    done = command("emit", "plan.json", "--to", "slurm", "-o", "out")
    assert (done.code, done.stderr) == (0, "")
    first, last = done.stdout.splitlines()
    assert first.startswith("out: ranks, hostfile, node-0.env")
    assert last == "next: where all nodes see the folder, in it: sbatch job.sbatch, or het.sbatch over partitions"
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert set(first.removeprefix("out: ").split(", ")) | {"holmes_runtime"} == names


@pytest.mark.usefixtures("plan")
def test_the_same_plan_gives_the_same_bytes(command: Command, tmp_path: Path) -> None:
    def files(folder: str) -> dict[str, bytes]:
        assert command("emit", "plan.json", "--to", "torchrun", "-o", folder).code == 0
        found = sorted((tmp_path / folder).rglob("*"))
        return {str(path.relative_to(tmp_path / folder)): path.read_bytes() for path in found if path.is_file()}

    first = files("one")
    assert len(first) > 50
    assert files("two") == first


def other_job(folder: Path, plan: Plan) -> None:
    write_atomically(folder / "job.yaml", plan.job.model_copy(update={"steps": 11}).model_dump_json())


def foreign(folder: Path, plan: Plan) -> None:
    write_atomically(folder / "plan.json", plan.to_json())


def edited(folder: Path, plan: Plan) -> None:
    write_atomically(folder / "plan.json", plan.to_json().replace('"master_port": 29500', '"master_port": 29501'))


def full(folder: Path, _: Plan) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "mine").touch()


@pytest.mark.parametrize(
    ("change", "form", "message"),
    [
        (other_job, "files", "plan.json: stale: "),
        (foreign, "files", "not made here by you"),
        (edited, "files", "changed since it was written"),
        (full, "files", "out: already exists"),
        (lambda *_: None, "helm", "--to helm: no format of that name"),
    ],
)
def test_refused_before_anything_is_written(
    command: Command, tmp_path: Path, plan: Plan, change: Callable[[Path, Plan], None], form: str, message: str
) -> None:
    change(tmp_path, plan)
    before = sorted(tmp_path.rglob("*"))
    done = command("emit", "plan.json", "--to", form, "-o", "out")
    assert done.code == 2
    assert message in " ".join(done.stderr.split())
    assert sorted(tmp_path.rglob("*")) == before


def test_a_foreign_plan_is_written_when_it_is_trusted(command: Command, tmp_path: Path, plan: Plan) -> None:
    foreign(tmp_path, plan)
    done = command("emit", "plan.json", "--to", "files", "-o", "out", "--trust", plan.digest())
    assert done.code == 0, done.stderr
    assert (tmp_path / "out" / "ranks").exists()


@pytest.mark.parametrize("form", few_of(1, ["slurm", "kubernetes"]))
def test_a_trainer_s_code_is_read_beside_job_yaml(command: Command, tmp_path: Path, form: str) -> None:
    write_signed(tmp_path / "plan.json", suited(trainer_plan(), form))
    assert command("emit", "plan.json", "--to", form, "-o", "out").code == 2
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text("print(1)\n", encoding="utf-8")
    done = command("emit", "plan.json", "--to", form, "-o", "out")
    assert done.code == 0, done.stderr
    assert (tmp_path / "out" / "code" / "train.py").exists() == (form == "slurm")


@pytest.mark.usefixtures("plan")
def test_the_dry_run_points_to_it(command: Command) -> None:
    assert "holmes emit plan.json --to files -o DIR" in command("launch", "plan.json", "--dry-run").stdout


@pytest.mark.parametrize("form", ["slurm", "mpi", "torchrun"])
@pytest.mark.usefixtures("plan")
def test_scripts_are_sound_shell(command: Command, tmp_path: Path, form: str) -> None:
    assert command("emit", "plan.json", "--to", form, "-o", "out").code == 0
    scripts = [path for path in (tmp_path / "out").iterdir() if path.is_file() and path.stat().st_mode & 0o100]
    assert scripts
    for script in scripts:
        assert subprocess.run(["sh", "-n", str(script)], check=False).returncode == 0


def test_unknown_format_lists_the_formats_before_anything_else_is_asked(command: Command) -> None:
    done = command("emit", "--to", "help")
    assert done.code == 2
    assert "files, torchrun, slurm, mpi" in done.stderr
