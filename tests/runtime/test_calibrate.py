"""What calibration says, and that its trials are runs that a rank accepts."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import yaml

from holmes_core.records.job import Compute
from holmes_runtime.calibrate import Measured, yaml_lines
from holmes_runtime.trial import Trial

from .launched_runs import TINY

ALONE = Trial(replace(TINY, num_layers=2), "cpu", "fp32", 1, 1)


@pytest.mark.parametrize(("pp", "dp"), [(1, 1), (1, 3), (2, 1), (2, 2)])
def test_a_trial_is_a_run_of_its_degrees(pp: int, dp: int) -> None:
    config = replace(ALONE, pp=pp, dp=dp).config()

    assert config.world_size == pp * dp
    assert [stage.stop_layer - stage.first_layer for stage in config.stages] == [2 // pp] * pp


def test_calibration_says_the_median_of_its_rounds_and_how_far_they_are_apart() -> None:
    rounds = [Measured(1e9, 1e-3, 4e9), Measured(5e9, 2e-3, 1e9), Measured(2e9, 3e-3, 2e9)]

    text = "\n".join(yaml_lines(rounds))

    assert yaml.safe_load(text)["compute"] == {
        "flops_per_s": 2e9,
        "overheads": {"action_s": 2e-3, "update_bytes_per_s": 2e9},
    }
    assert "# 1.000e+09 to 5.000e+09 in 3 rounds" in text


def test_a_gpu_has_no_overheads_of_its_own() -> None:
    assert yaml.safe_load("\n".join(yaml_lines([Measured(1e14)]))) == {"compute": {"flops_per_s": 1e14}}


@pytest.mark.process
def test_calibration_prints_what_job_yaml_accepts() -> None:
    sizes = ["--hidden-size", "32", "--num-heads", "4", "--seq-length", "16", "--micro-batch-size", "1"]
    command = [sys.executable, "-m", "holmes_runtime.calibrate", *sizes, "--seconds", "0.1", "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    compute = Compute.model_validate(yaml.safe_load(done.stdout)["compute"])

    assert compute.flops_per_s is not None
    assert compute.overheads is not None
    assert compute.overheads.action_s >= 0
