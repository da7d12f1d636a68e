"""`holmes calibrate`: what it measures where, without arguments, and that job.yaml takes what it prints."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from holmes_cli.commands.calibrate_command import calibrate_command
from holmes_core.errors import HolmesError, HostError
from holmes_core.records.access import Access
from holmes_core.records.compute import Compute
from holmes_core.records.job import Job
from holmes_runtime.calibrate import make_parser, trial_of
from launcher.nodes.measure_compute import measure_compute, trial_words
from launcher.prepare.user_variables import UserVariables
from tests.builders.local_runs import holmes, small_job, write_inputs
from tests.cli.test_own_code import OWN_MODEL
from tests.planner.fleets import bed_job, gpt_7b

NOTHING = UserVariables({}, {})


@pytest.mark.parametrize(
    "job", [gpt_7b(), gpt_7b(compile=False, precision="fp16"), bed_job(threads_per_slot=2)], ids=["gpu", "eager", "cpu"]
)
def test_what_is_measured_is_the_job_s_own_layer(job: Job) -> None:
    module, *options = trial_words(job, 4)
    arguments = make_parser().parse_args(options)
    config, model = trial_of(arguments).config(), job.model

    assert module == "holmes_runtime.calibrate"
    assert arguments.slots == 4
    assert (config.device, config.value_type, config.compile) == (job.device, job.value_type, job.compiles)
    assert (config.model.family, config.model.hidden_size, config.model.num_heads, config.model.seq_length) == (
        *(model.family, model.hidden_size, model.num_heads, model.seq_length),
    )
    assert config.threads_per_rank == job.threads_per_slot


def test_a_layer_of_experts_is_not_measured() -> None:
    with pytest.raises(HolmesError, match=r"model\.experts: calibrate measures only the plain layers"):
        trial_words(gpt_7b(model={"preset": "mixtral-8x7b"}), 4)


def write_uncalibrated_job(folder: Path, **changes: Any) -> None:
    (folder / "job.yaml").write_text(yaml.safe_dump(small_job(folder, compute={}, **changes)), encoding="utf-8")


def as_written(text: str) -> Compute:
    return Compute.model_validate(yaml.safe_load(text)["compute"])


@pytest.mark.process
def test_without_arguments_it_prints_what_job_yaml_takes_and_a_plan_needs(tmp_path: Path) -> None:
    write_inputs(tmp_path, compute={})
    assert holmes(tmp_path, "probe", "hosts.yaml").returncode == 0
    refused = holmes(tmp_path, "plan", "job.yaml")
    assert "`holmes calibrate --host a1`" in refused.stderr
    done = holmes(tmp_path, "calibrate")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("# measured on a1, 2 at once\n")  # both hosts are this machine
    compute = as_written(done.stdout)
    assert compute.flops_per_s is not None
    assert compute.overheads is not None
    text = yaml.safe_load((tmp_path / "job.yaml").read_text(encoding="utf-8"))
    del text["compute"]
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(text) + done.stdout, encoding="utf-8")
    assert holmes(tmp_path, "plan", "job.yaml").returncode == 0


@pytest.mark.process
@pytest.mark.exhaustive
def test_before_anything_was_probed_this_machine_is_measured_with_the_user_s_own_model(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    shutil.copy(OWN_MODEL, tmp_path / "src" / "whole.py")
    (tmp_path / "src" / "mine.py").write_text("from whole import build\n", encoding="utf-8")
    model = {**small_job(tmp_path)["model"], "factory": "mine.py:build"}
    write_uncalibrated_job(tmp_path, model=model, launch={"code": "src", "secrets": {"TOKEN": "/not/there"}})
    done = holmes(tmp_path, "calibrate")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("# measured on this machine, 1 at once\ncompute:\n")
    assert as_written(done.stdout).flops_per_s is not None


def test_a_rehearsal_has_nothing_to_measure(tmp_path: Path) -> None:
    write_uncalibrated_job(tmp_path)
    sleeping = small_job(tmp_path, compute={"emulate": {"forward_s_per_layer": 0.1, "backward_s_per_layer": 0.1}})
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(sleeping), encoding="utf-8")
    with pytest.raises(HolmesError, match=r"compute\.emulate: its layers sleep"):
        calibrate_command(tmp_path / "job.yaml", tmp_path / "inventory.json", None)


def test_a_host_whose_python_cannot_measure_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho \"No module named 'torch'\" >&2\nexit 1\n", encoding="utf-8")
    broken.chmod(0o755)
    with pytest.raises(HostError, match=r"host a1: nothing was measured: No module named 'torch'") as refused:
        measure_compute(bed_job(), "a1", Access(transport="local", python=str(broken)), 1, NOTHING)
    assert str(broken) in refused.value.hint


def test_a_container_is_measured_by_whoever_is_in_it() -> None:
    access = Access.model_validate({"container": {"engine": "docker", "image": "x"}})
    with pytest.raises(HostError) as refused:
        measure_compute(bed_job(), "a1", access, 1, NOTHING)
    assert "`python3 -m holmes_runtime.calibrate --family gpt" in refused.value.hint


@pytest.mark.process
def test_an_inventory_of_somebody_else_starts_nothing(tmp_path: Path) -> None:
    write_inputs(tmp_path, compute={})
    assert holmes(tmp_path, "probe", "hosts.yaml").returncode == 0
    path = tmp_path / "inventory.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "signature": "hmac-sha256:" + "0" * 64}))
    refused = holmes(tmp_path, "calibrate")
    assert refused.returncode == 2
    assert "was not made here by you" in refused.stderr
    other = holmes(tmp_path, "calibrate", "--host", "zz")
    assert other.returncode == 2
