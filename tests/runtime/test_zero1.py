"""Buckets, shards and AdamW of one replica; several are compared with one process in test_parity.py."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from benchmarks.gradient_add import gradient_adds
from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.config.model_shape import ModelShape, Part, gradient_order
from holmes_runtime.config.run_config import Stage
from holmes_runtime.config.run_settings import EmulationSettings, OptimizerSettings
from holmes_runtime.model.decoder import DecoderStage
from holmes_runtime.model.emulated import EmulatedStage
from holmes_runtime.model.tensor_part import TensorPart
from holmes_runtime.parallel.gradient_buckets import make_buckets
from holmes_runtime.parallel.zero1 import Zero1, clip_divisor

from .launched_runs import TINY, TINY_LLAMA

SETTINGS = OptimizerSettings(1e-2, 0.0, 0, "constant", 0.1, 0.9, 0.95, None)
NORM = torch.ones((), dtype=torch.float64)


def make_layers(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2)).to(dtype)


@pytest.mark.parametrize("bucket_bytes", [1, 100, 10**6])
def test_gradients_are_means_over_microbatches_whatever_the_buckets(bucket_bytes: int) -> None:
    layers, inputs = make_layers(), torch.randn(4, 3)
    expected = dict(
        zip(
            dict(layers.named_parameters()),
            torch.autograd.grad(layers(inputs).square().mean(), list(layers.parameters())),
            strict=True,
        )
    )
    zero1 = Zero1([layers], {}, SETTINGS, RankGroups(), num_microbatches=4, bucket_bytes=bucket_bytes)

    for _ in range(2):
        zero1.start()
        for sample in inputs:
            torch.autograd.backward(layers(sample).square().mean())
        squares = zero1.finish(4)

    assert {shard.name for shard in zero1.shards()} == set(expected)
    for shard in zero1.shards():
        torch.testing.assert_close(shard.gradient / 4, expected[shard.name].flatten())
    assert squares.item() == pytest.approx(sum(g.square().sum().item() for g in expected.values()), rel=1e-5)


@pytest.mark.parametrize("shape", [TINY, TINY_LLAMA])
@pytest.mark.parametrize("stage", [Stage(0, 0, 3), Stage(0, 0, 2), Stage(1, 1, 2), Stage(1, 1, 3)])
def test_buckets_leave_in_the_order_the_planner_knows(shape: ModelShape, stage: Stage) -> None:
    order = gradient_order(stage.stop_layer - stage.first_layer, stage.first_layer == 0, stage.stop_layer == 3)

    for module in (DecoderStage(shape, stage, seed=0), EmulatedStage(shape, stage, EmulationSettings(0, 0, {}))):
        zero1 = Zero1([module], {}, SETTINGS, RankGroups(), num_microbatches=1, bucket_bytes=1)
        left = list(dict.fromkeys(part_of(shard.name) for shard in zero1.shards()))

        assert tuple(part for part, _ in left) == order
        layers = [int(layer) for _, layer in left if layer]
        assert layers == sorted(layers, reverse=True)


def part_of(parameter: str) -> tuple[Part, str]:
    """The part of the model a parameter belongs to, and of a layer its number."""
    layer = next((word for word in parameter.split(".") if word.isdigit()), "")
    if layer:
        return "layer", layer
    return ("head", "") if "head" in parameter or "final_norm" in parameter else ("embedding", "")


def test_a_gradient_that_never_came_is_an_error() -> None:
    layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    zero1 = Zero1([layers], {}, SETTINGS, RankGroups(), num_microbatches=1)
    zero1.start()
    torch.autograd.backward(layers[0](torch.ones(2)).sum())

    with pytest.raises(RuntimeError, match=r"never came .* bucket of 1\.bias, 1\.weight, 0\.bias, 0\.weight"):
        zero1.finish(1)


def test_two_stages_that_name_parameters_alike_are_refused() -> None:
    with pytest.raises(ValueError, match=r"parameter 0\.weight is in two stages"):
        Zero1([make_layers(), make_layers()], {}, SETTINGS, RankGroups(), num_microbatches=1)


def test_steps_are_those_of_torch_adamw_without_decay_of_biases() -> None:
    ours, theirs = make_layers(), make_layers()
    matrices = [parameter for parameter in theirs.parameters() if parameter.dim() >= 2]
    biases = [parameter for parameter in theirs.parameters() if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": biases, "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95))
    zero1 = Zero1([ours], {}, SETTINGS, RankGroups(), num_microbatches=1)

    for inputs in torch.randn(3, 4, 3):
        adamw.zero_grad()
        torch.autograd.backward(theirs(inputs).square().mean())
        adamw.step()
        zero1.start()
        torch.autograd.backward(ours(inputs).square().mean())
        zero1.finish(1)
        zero1.step(1e-2, NORM)

    assert zero1.steps_taken == 3
    for our, their in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(our, their)


def test_sixteen_bit_weights_have_fp32_masters_and_gradient_sums() -> None:
    layer = nn.Linear(2, 2, dtype=torch.bfloat16)
    zero1 = Zero1([layer], {}, SETTINGS, RankGroups(), num_microbatches=256)
    gradient = torch.tensor([1.0078125, 1.0], dtype=torch.bfloat16)

    zero1.start()
    for _ in range(256):  # in bf16 the sum would stop at 256, where adding 1 is lost
        torch.autograd.backward(layer(torch.ones(1, 2, dtype=torch.bfloat16)), gradient.unsqueeze(0))
    zero1.finish(1)
    bias = next(shard for shard in zero1.shards() if shard.name == "bias")
    summed, before = bias.gradient.tolist(), bias.master.clone()
    zero1.step(1e-6, NORM)

    assert summed == [258.0, 256.0]
    assert bias.master.dtype == torch.float32
    assert not torch.equal(bias.master, before)
    assert torch.equal(layer.bias, bias.master.bfloat16())


def test_loaded_masters_become_weights() -> None:
    layers = make_layers(torch.bfloat16)
    zero1 = Zero1([layers], {}, SETTINGS, RankGroups(), num_microbatches=1)
    for shard in zero1.shards():
        shard.master.fill_(3.0)

    zero1.publish()

    assert all(torch.equal(parameter, torch.full_like(parameter, 3.0)) for parameter in layers.parameters())


def test_masters_of_some_parameters_become_weights_and_leave_other_buckets_alone() -> None:
    layers = make_layers(torch.bfloat16)
    zero1 = Zero1([layers], {}, SETTINGS, RankGroups(), num_microbatches=1, bucket_bytes=1)
    before = {name: parameter.clone() for name, parameter in layers.named_parameters()}
    for shard in zero1.shards():
        shard.master.fill_(3.0)

    zero1.publish(["0.weight"])

    changed = [name for name, parameter in layers.named_parameters() if not torch.equal(parameter, before[name])]
    assert "0.weight" in changed
    assert len(changed) < len(before)


def test_clipping_scales_down_to_the_limit_and_never_up() -> None:
    assert clip_divisor(4 * NORM, 1.0) == 4.0
    assert clip_divisor(NORM / 2, 1.0) == 1.0
    assert clip_divisor(4 * NORM, None) == 1.0


def test_a_clipped_step_is_the_one_of_gradients_of_that_norm() -> None:
    clipped, small = make_layers(), make_layers()
    for layers, factor, norm in ((clipped, 8.0, 8 * NORM), (small, 1.0, NORM)):
        zero1 = Zero1([layers], {}, replace(SETTINGS, grad_clip=1.0), RankGroups(), num_microbatches=1)
        zero1.start()
        torch.autograd.backward(factor * layers(torch.ones(4, 3)).square().mean())
        zero1.finish(1)
        zero1.step(1e-2, norm)

    for ours, theirs in zip(clipped.parameters(), small.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("norm", [float("inf"), float("nan")])
@pytest.mark.parametrize("offload", [False, True])
def test_without_a_finite_norm_weights_moments_and_count_stay(norm: float, offload: bool) -> None:
    layers = make_layers()
    settings = replace(SETTINGS, grad_clip=1.0)
    zero1 = Zero1([layers], {}, settings, RankGroups(), num_microbatches=1, offload=offload)
    for each in (NORM, norm * NORM):
        before = [state.clone() for shard in zero1.shards() for state in (shard.master, shard.exp_avg)]
        zero1.start()
        torch.autograd.backward(layers(torch.ones(4, 3)).square().mean())
        zero1.finish(1)
        zero1.step(1e-2, each)

    after = [state for shard in zero1.shards() for state in (shard.master, shard.exp_avg)]
    assert all(map(torch.equal, before, after))
    assert zero1.steps_taken == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dp", [1, 3, 7])
def test_parts_of_buckets_are_aligned_and_hold_every_number_once(dtype: torch.dtype, dp: int) -> None:
    held: dict[str, int] = {}
    for position in range(dp):
        layers = make_layers(dtype)
        named = dict(layers.named_parameters())
        for bucket in make_buckets([[named]], (), dp, position, full_bytes=50):
            assert bucket.own.start * dtype.itemsize % 128 == 0
            assert bucket.gradients.numel() * dtype.itemsize % (128 * dp) == 0
            for shard in bucket.shards({name: part_of_whole(parameter) for name, parameter in named.items()}):
                assert shard.start == held.get(shard.name, 0)
                held[shard.name] = shard.stop

    assert held == {name: parameter.numel() for name, parameter in named.items()}


def test_buckets_of_two_stages_are_apart_and_the_later_leaves_first() -> None:
    first, second = make_layers(torch.float32), make_layers(torch.float32)
    stages = [
        [{f"{stage}.{name}": each for name, each in layers.named_parameters()}]
        for stage, layers in ((0, first), (2, second))
    ]
    buckets = make_buckets(stages, (), 1, 0, full_bytes=2**40)
    assert [{name[0] for name in bucket.names} for bucket in buckets] == [{"2"}, {"0"}]


def part_of_whole(parameter: nn.Parameter) -> TensorPart:
    shape = tuple(parameter.shape)
    return TensorPart(shape, (0,) * len(shape), shape)


@pytest.mark.parametrize(("dtype", "each_bytes"), [(torch.bfloat16, 10), (torch.float32, 12)])
def test_a_gradient_joins_its_sum_in_one_pass_and_the_first_replaces_it(dtype: torch.dtype, each_bytes: int) -> None:
    first, second = gradient_adds(dtype)

    assert (first.operators, second.operators) == (["aten.copy_.default"], ["aten.add_.Tensor"])
    assert second.total_bytes == each_bytes * 256 * 128


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_states_in_host_memory_change_no_bit_of_the_weights(dtype: torch.dtype) -> None:
    trained = []
    for offload in (False, True):
        layers = make_layers(dtype)
        settings = replace(SETTINGS, grad_clip=1.0)
        zero1 = Zero1([layers], {}, settings, RankGroups(), num_microbatches=1, bucket_bytes=1, offload=offload)
        for step in range(3):
            take_gradients(zero1, layers, step)
            zero1.step(1e-2, 2 * NORM)
        trained.append([parameter.detach().clone() for parameter in layers.parameters()])

    assert all(torch.equal(plain, offloaded) for plain, offloaded in zip(*trained, strict=True))
    assert not torch.equal(trained[0][0], dict(make_layers(dtype).named_parameters())["0.weight"])


def test_states_in_host_memory_share_nothing_with_the_device_and_are_what_a_checkpoint_sees() -> None:
    layers = make_layers()
    zero1 = Zero1([layers], {}, SETTINGS, RankGroups(), num_microbatches=1, offload=True)
    on_device = {parameter.untyped_storage().data_ptr() for parameter in layers.parameters()}

    assert all(shard.master.untyped_storage().data_ptr() not in on_device for shard in zero1.shards())
    for shard in zero1.shards():
        shard.master.fill_(2.0)
    zero1.publish()
    assert all((parameter == 2.0).all() for parameter in layers.parameters())


def take_gradients(zero1: Zero1, layers: nn.Module, step: int) -> None:
    """Forward, backward and the sums of one step."""
    inputs = torch.randn(4, 3, generator=torch.Generator().manual_seed(step))
    zero1.start()
    torch.autograd.backward(layers(inputs.to(next(layers.parameters()).dtype)).square().mean())
    zero1.finish(1)
