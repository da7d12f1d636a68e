"""`holmes plan --set`: keys of job.yaml from the command line, which the plan names and is judged stale by."""

from __future__ import annotations

from pathlib import Path

import pytest

from holmes_core.records.plan import Plan
from holmes_core.records.record_file import read_file, write_atomically, write_signed
from tests.cli.conftest import Command, Done
from tests.planner.fleets import bed_job, cpu_inventory


@pytest.fixture
def plan(command: Command, tmp_path: Path) -> Command:
    """Runs `holmes plan` on two hosts."""
    write_signed(tmp_path / "inventory.json", cpu_inventory([1, 1]))
    with_steps(tmp_path, 10)

    def run(*options: str) -> Done:
        return command("plan", "job.yaml", *options)

    return run


def with_steps(folder: Path, steps: int) -> None:
    parallel = {"pp": 2, "dp": 1, "micro_batch_size": 1, "schedule": "gpipe"}
    job = bed_job(steps=steps, global_batch_size=4, parallel=parallel)
    write_atomically(folder / "job.yaml", job.model_dump_json(exclude_defaults=True))


def test_overrides_win_over_the_file_and_make_sections_it_lacks(plan: Command, tmp_path: Path) -> None:
    done = plan("--set", "steps=7", "--set", "optimizer.learning_rate=0.5", "--set", "wire={edges: int8}")

    job = read_file(Plan, tmp_path / "plan.json").job
    assert (done.code, job.steps, job.optimizer.learning_rate, job.wire.edges) == (0, 7, 0.5, "int8")
    assert job.optimizer.weight_decay == bed_job().optimizer.weight_decay
    assert "--set steps=7 --set optimizer.learning_rate=0.5 --set 'wire={edges: int8}'" in " ".join(done.stdout.split())


def test_an_empty_value_is_null(plan: Command, tmp_path: Path) -> None:
    with_steps(tmp_path, 5)
    assert plan("--set", "parallel.micro_batch_size=").code == 0
    assert read_file(Plan, tmp_path / "plan.json").job_source.overrides == ("parallel.micro_batch_size=",)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("stpes=10", "did you mean `steps`?"),
        ("optimizer.learning_rat=1", "did you mean `learning_rate`?"),
        ("steps=many", "steps: must be a whole number"),
        ("steps", "not KEY=VALUE"),
        (".steps=1", "not KEY=VALUE"),
        ("steps.more=1", "--set steps.more=1: "),
        ("wire={edges", "--set wire={edges: "),
        ("steps=" + "[" * 100 + "]" * 100, "nested more than"),
        ("data.path=" + "!!python/name:os.system", "could not determine a constructor"),
    ],
)
def test_what_the_job_does_not_take_is_refused_by_name(plan: Command, tmp_path: Path, override: str, said: str) -> None:
    done = plan("--set", override)

    assert done.code == 2
    assert said in done.stderr
    assert override.partition("=")[0] in done.stderr
    assert not (tmp_path / "plan.json").exists()


def test_a_plan_with_overrides_is_launched_and_names_them(plan: Command, command: Command) -> None:
    assert plan("--set", "steps=7").code == 0

    done = command("launch", "plan.json", "--dry-run", "--json")

    assert done.code == 0, done.stderr
    assert "planned with --set steps=7" in done.stderr


def test_a_plan_with_overrides_is_stale_when_another_key_has_changed(
    plan: Command, command: Command, tmp_path: Path
) -> None:
    assert plan("--set", "seed=3").code == 0
    with_steps(tmp_path, 99)

    done = command("launch", "plan.json", "--dry-run")

    assert done.code == 2
    assert "job.yaml has changed" in done.stderr
    assert "`holmes plan job.yaml --set seed=3`" in " ".join(done.stderr.split())


def test_a_plan_with_overrides_is_not_stale_when_only_what_they_set_has_changed(
    plan: Command, command: Command, tmp_path: Path
) -> None:
    assert plan("--set", "steps=7").code == 0
    with_steps(tmp_path, 99)

    assert command("launch", "plan.json", "--dry-run").code == 0
