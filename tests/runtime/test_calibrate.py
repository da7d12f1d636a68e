"""What calibration says, and that its trials are runs that a rank accepts."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from dataclasses import replace
from multiprocessing.queues import SimpleQueue

import pytest
import torch
import yaml

from holmes_core.records.compute import Compute
from holmes_runtime.calibrate import CalibrationRound, main, make_parser, trial_of, whole_flops_per_s, yaml_lines
from holmes_runtime.config.model_shape import step_flops
from holmes_runtime.config.run_settings import Precision
from holmes_runtime.model.build_stage import build_stage
from holmes_runtime.model.decoder import DTYPES, DecoderStage
from holmes_runtime.model.tensor_parallel import ALONE
from holmes_runtime.trial import Cost, Trial, first_error, run_trial
from tests.seeds import few_of

from .launched_runs import TINY

SMALL = Trial(replace(TINY, num_layers=2), "cpu", "fp32", 1, 1)
SIZES = ["--hidden-size", "32", "--num-heads", "4", "--seq-length", "16", "--micro-batch-size", "1"]


@pytest.mark.parametrize(("pp", "dp"), [(1, 1), (1, 3), (2, 1), (2, 2)])
def test_a_trial_is_a_run_of_its_degrees(pp: int, dp: int) -> None:
    config = replace(SMALL, pp=pp, dp=dp).config()

    assert config.world_size == pp * dp
    assert [stage.stop_layer - stage.first_layer for stage in config.stages] == [2 // pp] * pp


def said(*options: str) -> Trial:
    """The trial of a small model with those options more."""
    return trial_of(make_parser().parse_args([*SIZES, *options]))


def test_each_slot_is_a_gpu_of_its_own() -> None:
    assert [said("--device", "cuda").device_of(slot) for slot in range(3)] == [
        torch.device("cuda", slot) for slot in range(3)
    ]
    assert {said().device_of(slot) for slot in range(3)} == {torch.device("cpu")}


def test_gpus_are_measured_in_bf16_and_compiled_unless_told_otherwise() -> None:
    as_job = said("--device", "cuda").config()
    told = said("--device", "cuda", "--precision", "fp16", "--no-compile").config()
    plain, asked = said().config(), said("--compile").config()

    assert (as_job.device, as_job.value_type, as_job.compile) == ("cuda", "bf16", True)
    assert (told.value_type, told.compile) == ("fp16", False)
    assert (plain.device, plain.value_type, plain.compile, asked.compile) == ("cpu", "fp32", False, True)
    assert not said("--device", "cuda", "--factory", "own.py:build").compile


@pytest.mark.parametrize(("compiles", "value_type"), few_of(1, [(False, "fp32"), (True, "bf16")]))
def test_the_stage_that_is_measured_is_built_as_a_job_s(compiles: bool, value_type: Precision) -> None:
    trial = replace(SMALL, value_type=value_type, compile=compiles)
    config = trial.config()
    stage = build_stage(config, config.stages[0], config.grid.rank(0), ALONE, trial.device_of(0)).module
    assert isinstance(stage, DecoderStage)

    assert {parameter.dtype for parameter in stage.parameters()} == {DTYPES[value_type]}
    # A compiled forward is called with gradients hidden: it is the first thing given to the function that hides them.
    forwards = (getattr(block.forward, "args", (block.forward,))[0] for block in stage.blocks.values())
    assert {hasattr(forward, "_torchdynamo_orig_callable") for forward in forwards} == {compiles}


def test_more_slots_than_gpus_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main([*SIZES, "--device", "cuda", "--slots", "99"])
    assert refused.value.code == 2
    assert "--slots 99: torch sees" in capsys.readouterr().err


def test_a_process_of_a_trial_that_fails_says_why() -> None:
    without = replace(SMALL, model=replace(SMALL.model, factory="/not/there.py:build"))
    with pytest.raises(
        RuntimeError, match=r"a process of the trial ended with 1: RuntimeError: .*no Python file /not/"
    ):
        run_trial(without, 0.01, 1)


def test_the_reason_of_a_failed_trial_is_an_error_even_if_another_rank_has_reported_its_cost() -> None:
    results: SimpleQueue[tuple[int, Cost | str]] = multiprocessing.SimpleQueue()
    results.put((0, Cost(1.0, 1.0, 1.0, 1.0)))
    results.put((1, "OSError: no space"))

    assert first_error(results) == "OSError: no space"
    assert first_error(results) is None


def test_calibration_says_the_median_of_its_rounds_and_how_far_they_are_apart() -> None:
    rounds = [
        CalibrationRound(1e9, 1e-3, 4e9, 1.2),
        CalibrationRound(5e9, 2e-3, 1e9, 1.8),
        CalibrationRound(2e9, 3e-3, 2e9, 1.5),
    ]

    text = "\n".join(yaml_lines(rounds))

    assert yaml.safe_load(text)["compute"] == {
        "flops_per_s": 2e9,
        "overheads": {"action_s": 2e-3, "update_bytes_per_s": 2e9, "split_factor": 1.5},
    }
    assert "# 1.000e+09 to 5.000e+09 in 3 rounds" in text


def test_a_gpu_s_rate_is_of_the_whole_model_with_its_head_once() -> None:
    """A head of 3 s and layers of 1 s: two take 5 s, four take 7 s, and a model of 24 takes 27 s."""
    trial = replace(SMALL, device="cuda", model=replace(TINY, num_layers=2))
    flops = step_flops(replace(TINY, num_layers=24), 4)

    assert whole_flops_per_s(trial, 5.0, 7.0, 24) == pytest.approx(flops / 27)
    assert whole_flops_per_s(trial, 5.0, 7.0, 2) == pytest.approx(step_flops(trial.model, 4) / 5)


def test_compiled_layers_are_not_split() -> None:
    overheads = yaml.safe_load("\n".join(yaml_lines([CalibrationRound(1e9, 1e-3, 4e9)])))["compute"]["overheads"]
    assert set(overheads) == {"action_s", "update_bytes_per_s"}


def test_a_gpu_has_no_overheads_of_its_own() -> None:
    assert yaml.safe_load("\n".join(yaml_lines([CalibrationRound(1e14)]))) == {"compute": {"flops_per_s": 1e14}}


@pytest.mark.process
def test_calibration_prints_what_job_yaml_accepts() -> None:
    command = [sys.executable, "-m", "holmes_runtime.calibrate", *SIZES, "--seconds", "0.1", "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    compute = Compute.model_validate(yaml.safe_load(done.stdout)["compute"])

    assert compute.flops_per_s is not None
    assert compute.overheads is not None
    assert compute.overheads.action_s >= 0
    assert compute.overheads.split_factor is not None


@pytest.mark.process
def test_under_zero_bubble_the_first_rank_s_backward_counts_as_one() -> None:
    """It runs whole as its weight half, and counted as no lap at all: a hundredth of what the last rank's took."""
    first, last = run_trial(replace(SMALL, pp=2, schedule="zero-bubble"), 0.1, 2)

    assert first.backward_s > last.backward_s / 10
