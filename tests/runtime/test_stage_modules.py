"""Real and emulated stages in one process."""

from __future__ import annotations

import time

import pytest
import torch

from holmes_runtime.calibrate import calibrate, layer_flops
from holmes_runtime.emulated import EmulatedStage, block_elements, mean_activation
from holmes_runtime.model import Block, GptStage
from holmes_runtime.run_config import Emulation, Stage

from .launched_runs import TINY

WHOLE = Stage(0, 0, 3)


def elements(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("cut", [1, 2])
def test_any_cut_starts_from_bit_equal_weights(cut: int) -> None:
    whole = dict(GptStage(TINY, WHOLE, seed=7).named_parameters())
    parts = [GptStage(TINY, Stage(0, 0, cut), 7), GptStage(TINY, Stage(1, cut, 3), 7)]
    named = [pair for part in parts for pair in part.named_parameters()]

    assert sorted(name for name, _ in named) == sorted(whole)
    assert all(torch.equal(parameter, whole[name]) for name, parameter in named)


def test_parameter_names_are_those_of_the_whole_model() -> None:
    assert "blocks.2.attention.qkv.weight" in dict(GptStage(TINY, Stage(1, 2, 3), 7).named_parameters())


def test_another_seed_gives_other_weights() -> None:
    first, second = GptStage(TINY, WHOLE, 7), GptStage(TINY, WHOLE, 8)

    assert not torch.equal(first.head.weight, second.head.weight)


def test_building_a_stage_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()

    GptStage(TINY, WHOLE, 7)

    assert torch.equal(torch.get_rng_state(), before)


def test_a_later_token_does_not_change_earlier_logits() -> None:
    stage = GptStage(TINY, WHOLE, 7)
    tokens = torch.zeros(1, 32, dtype=torch.int64)
    changed = tokens.clone()
    changed[0, 20] = 1

    difference = (stage(tokens) - stage(changed)).abs().amax(dim=(0, 2))

    assert difference[:20].max() == 0
    assert difference[20] > 0


@pytest.mark.parametrize("stage", [WHOLE, Stage(0, 0, 1), Stage(1, 1, 2), Stage(2, 1, 3)])
def test_an_emulated_stage_has_as_many_parameters_as_the_real_one(stage: Stage) -> None:
    assert elements(EmulatedStage(TINY, stage, Emulation(0, 0))) == elements(GptStage(TINY, stage, 7))
    assert elements(Block(32, 4)) == block_elements(32)


def test_an_emulated_layer_takes_its_time_and_its_gradients_are_ones() -> None:
    stage = EmulatedStage(TINY, WHOLE, Emulation(forward_s_per_layer=0.01, backward_s_per_layer=0.02))
    start_s = time.monotonic()

    loss = mean_activation(stage(torch.zeros(2, 32, dtype=torch.int64)), torch.zeros(2, 32, dtype=torch.int64))
    torch.autograd.backward(loss)

    assert time.monotonic() - start_s >= 3 * (0.01 + 0.02)
    assert loss.item() == 1.0
    assert all(p.grad is not None and torch.equal(p.grad, torch.ones_like(p)) for p in stage.parameters())


def test_layer_flops_follow_the_formula() -> None:
    assert layer_flops(micro_batch_size=2, seq_length=6, hidden_size=10) == 72 * 2 * 6 * 100 * 1.1


def test_calibration_reports_the_speed_of_its_median_times() -> None:
    hidden = torch.randn(1, 8, 32, requires_grad=True)

    measured = calibrate(Block(32, 4), hidden, flops=1e6, seconds=0.0)

    assert measured.repetitions == 1
    assert measured.flops_per_s == pytest.approx(1e6 / (measured.forward_s + measured.backward_s))
