"""Emitted plans for a trainer's own command: its files are there, and ranks started elsewhere are the plan's."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from holmes_core.records.plan import Plan
from holmes_runtime.config.node_config import TRAINER_FILE
from holmes_runtime.config.rank_metrics import GROUPS_FILE
from holmes_runtime.config.trainer_config import TrainerConfig
from holmes_runtime.node.start_rank import rank_environment
from holmes_runtime.node.start_torchrun import rank_words
from launcher.emit.emit import emit
from launcher.emit.write_folder import write_folder
from tests.launcher.emitted import FOLDER, emitted_trainer
from tests.launcher.trainer_job import CODE, plan_on_this_machine, trainer_plan


@pytest.mark.parametrize("form", ["torchrun", "slurm", "mpi"])
def test_command_networks_and_code_are_among_the_files(form: str, tmp_path: Path) -> None:
    plan = trainer_plan()
    write_folder(tmp_path / "out", emit(plan, form, CODE))
    names = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*")}
    assert names >= {"trainer.json", "plan.json", "code/train.py", "code/lib/layers.py", "secret-TOKEN"}
    assert "run_config.json" not in names
    config = TrainerConfig.from_json((tmp_path / "out" / "trainer.json").read_text(encoding="utf-8"))
    assert config.command == ("python", "train.py", "--name", "a b")
    assert rank_words(tmp_path / "out") == ("-m", "holmes_runtime.node.start_trainer")


def test_the_trainer_s_configuration_is_the_one_that_is_kept() -> None:
    assert emitted_trainer() == (FOLDER / "trainer" / TRAINER_FILE).read_text(encoding="utf-8")


def test_an_attempt_that_the_starter_counts_reaches_the_command(tmp_path: Path) -> None:
    write_folder(tmp_path / "out", emit(trainer_plan(), "slurm", CODE))
    place = {"HOLMES_HOST": "b1", "LOCAL_RANK": "1"}
    assert rank_environment(tmp_path / "out", place)["HOLMES_ATTEMPT"] == "0"
    assert rank_environment(tmp_path / "out", place | {"HOLMES_ATTEMPT": "2"})["HOLMES_ATTEMPT"] == "2"


def outputs_of_ranks(started: list[subprocess.Popen[str]]) -> list[str]:
    """The lines of all nodes' ranks, by rank; every node ended well."""
    try:
        said = [process.communicate(timeout=300)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * len(started), said
    lines = [line for text in said for line in text.splitlines() if line.startswith("rank ")]
    return sorted(lines)


def expected_of(plan: Plan) -> list[str]:
    """The lines of the script, if ranks are where the plan has them."""
    local = [1 + rank.local_rank for rank in plan.ranks]
    return [f"rank {rank.rank} {rank.host} {rank.local_rank} 2 s3cr3t {local} ['--name', 'a b']" for rank in plan.ranks]


@pytest.mark.process
def test_torchrun_starts_the_command_as_the_ranks_of_the_plan_in_whatever_order(tmp_path: Path) -> None:
    plan = plan_on_this_machine(folder=str(tmp_path))
    write_folder(tmp_path / "out", emit(plan, "torchrun", CODE))
    lines = (tmp_path / "out" / "commands").read_text(encoding="utf-8").splitlines()
    commands = [line for line in lines if line.startswith("HOLMES_HOST=")]
    started = [
        subprocess.Popen(
            ["sh", "-c", line], cwd=tmp_path / "out", env=dict(os.environ), stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )
        for line in commands
    ]  # fmt: skip
    assert outputs_of_ranks(started) == expected_of(plan)
    for rank in plan.ranks:  # the hook was there
        (line,) = (
            (tmp_path / "out" / "out" / GROUPS_FILE.format(rank=rank.rank)).read_text(encoding="utf-8").splitlines()
        )
        group = json.loads(line)
        assert (group["ranks"], group["network"], group["interface"]) == ([0, 1, 2, 3], "shared", "lo")
