"""The command line without a bed: bad input, local processes, what Ctrl-C leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from holmes_core.records.record_file import read_file
from holmes_core.records.run import Run
from tests.builders.local_runs import (
    HOSTS,
    LONG,
    environment,
    holmes,
    nothing_is_left,
    small_job,
    write_inputs,
    write_plan,
)
from tests.cli.conftest import Command


@pytest.mark.process
def test_three_commands_train_on_local_processes(tmp_path: Path) -> None:
    write_inputs(tmp_path)
    for arguments in (("probe", "hosts.yaml"), ("plan", "job.yaml"), ("launch", "plan.json")):
        done = holmes(tmp_path, *arguments)
        assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    run = read_file(Run, folder / "run.json")
    assert (run.state, run.exit_code, run.steps_done) == ("done", 0, 4)
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert run.last_loss == steps[-1]["loss"]
    assert {path.name for path in (folder / "logs").iterdir()} == {"a1-rank0.log", "b1-rank1.log"}
    assert nothing_is_left(tmp_path)


@pytest.mark.process
def test_bad_lines_that_were_skipped_are_counted_in_the_record(tmp_path: Path) -> None:
    text = "".join(f'{{"text": "{number} is a number"}}\n' for number in range(200))
    (tmp_path / "text.jsonl").write_text('{"title": "none"}\n' + text, encoding="utf-8")
    write_plan(tmp_path, data={"path": str(tmp_path / "text.jsonl"), "skip_bad_lines": 3})
    done = holmes(tmp_path, "launch", "plan.json")
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    assert read_file(Run, folder / "run.json").bad_lines_skipped == 1
    assert "text.jsonl, line 1: it has no field" in holmes(tmp_path, "status").stdout


@pytest.mark.process
def test_failing_rank_is_shown_first_with_its_last_lines(tmp_path: Path) -> None:
    write_plan(tmp_path, data={"path": str(tmp_path / "gone")})
    done = holmes(tmp_path, "launch", "plan.json")
    assert done.returncode == 1
    assert done.stderr.index("error: host ") < done.stderr.index("hint: ")
    assert str(tmp_path / "gone") in done.stderr
    assert nothing_is_left(tmp_path)


@pytest.mark.process
def test_ctrl_c_ends_a_local_run_and_says_so(tmp_path: Path) -> None:
    write_plan(tmp_path, **LONG)
    command = [sys.executable, "-m", "holmes_cli", "launch", "plan.json"]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment(tmp_path), stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    seen = next(line for line in process.stderr if line.startswith("step 2/"))
    assert "loss" in seen
    process.send_signal(signal.SIGINT)
    assert any("no rank is left running" in line for line in process.stderr)
    while process.poll() is None:  # as it shows how the run ended, and as Python ends
        process.send_signal(signal.SIGINT)
        time.sleep(0.01)
    assert process.returncode == 130
    assert nothing_is_left(tmp_path)


Refused = Callable[..., str]


@pytest.fixture
def refused(command: Command, tmp_path: Path) -> Refused:
    """The message of a command that must be refused as wrong usage, leaving the folder as it was."""

    def run(*arguments: str) -> str:
        before = sorted(path.name for path in tmp_path.iterdir())
        done = command(*arguments)
        assert done.code == 2, done.stderr
        assert "hint: " in done.stderr
        assert sorted(path.name for path in tmp_path.iterdir()) == before
        return done.stderr

    return run


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_hosts_file_without_permission_is_refused(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").write_text("hosts: [a]\n", encoding="utf-8")
    (tmp_path / "hosts.yaml").chmod(0)
    assert "hosts.yaml: cannot be read: Permission denied" in refused("probe", "hosts.yaml")


def test_missing_hosts_file_is_refused(refused: Refused) -> None:
    assert "hosts.yaml: cannot be read: No such file" in refused("probe", "hosts.yaml")


def test_hosts_file_that_is_a_folder_is_refused(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").mkdir()
    assert "hosts.yaml: cannot be read: Is a directory" in refused("probe", "hosts.yaml")


def test_misspelt_key_of_hosts_file_names_the_nearest(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").write_text("hosts: [{name: a, adress: 10.0.0.1}]\n", encoding="utf-8")
    text = refused("probe", "hosts.yaml")
    assert "hosts.yaml: line 1: hosts.0.adress: unknown key (value '10.0.0.1')" in text
    assert "did you mean `address`?" in text


def test_plan_without_inventory_says_which_command_makes_it(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(small_job(tmp_path)), encoding="utf-8")
    text = refused("plan", "job.yaml")
    assert "inventory.json: cannot be read" in text
    assert "`holmes probe hosts.yaml -o inventory.json` makes it" in text


@pytest.mark.slow
def test_plan_given_for_an_inventory_is_named(command: Command, refused: Refused, tmp_path: Path) -> None:
    write_inputs(tmp_path)
    command("probe", "hosts.yaml")
    command("plan", "job.yaml")
    text = refused("plan", "job.yaml", "-i", "plan.json", "-o", "other.json")
    assert "plan.json: not of kind inventory: its kind is plan" in text
    assert "holmes probe hosts.yaml -o inventory.json" in text


def test_output_that_cannot_be_written_leaves_nothing(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").write_text(yaml.safe_dump(HOSTS), encoding="utf-8")
    assert "gone/inventory.json: cannot be written" in refused("probe", "hosts.yaml", "-o", "gone/inventory.json")


def test_json_on_standard_output_is_the_file(command: Command, tmp_path: Path) -> None:
    write_inputs(tmp_path)
    done = command("probe", "hosts.yaml", "--json")
    assert done.stdout == (tmp_path / "inventory.json").read_text(encoding="utf-8")
    assert [host["name"] for host in json.loads(done.stdout)["hosts"]] == ["a1", "b1"]


def test_help_names_the_three_commands(tmp_path: Path) -> None:
    done = holmes(tmp_path, "--help")
    assert done.returncode == 0
    assert all(f" {name} " in done.stdout for name in ("probe", "plan", "launch"))


def test_unknown_run_is_refused_and_says_how_to_list(
    refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    text = refused("status", "2020")
    assert "run 2020: not known here" in text
    assert "holmes ps" in text


@pytest.mark.process
def test_a_slip_in_ones_own_model_is_found_here_before_anything_is_made(tmp_path: Path) -> None:
    write_plan(tmp_path, model={**small_job(tmp_path)["model"], "factory": "mine.py:build"})
    (tmp_path / "mine.py").write_text("import torch\ndef build(layers, job)\n    ...\n", encoding="utf-8")
    refused = holmes(tmp_path, "launch", "plan.json")
    assert refused.returncode == 2
    assert "error: job.yaml: model.factory: " in refused.stderr
    assert "mine.py, line 2: expected ':'\nhint: correct it; " in refused.stderr
    assert not (tmp_path / "runs").exists()
    assert nothing_is_left(tmp_path)
