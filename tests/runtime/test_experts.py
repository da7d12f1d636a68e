"""The experts of one layer: against a plain loop over tokens, and the loss that balances them."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from holmes_runtime.config.model_shape import ModelShape, layer_parameters, stage_parameters
from holmes_runtime.config.run_config import Stage
from holmes_runtime.model import experts as expert_layer
from holmes_runtime.model.decoder import DecoderStage
from holmes_runtime.model.expert_parallel import ExpertParallel
from holmes_runtime.model.experts import Balancing, Experts, balancing_loss
from holmes_runtime.model.recomputed_values import Keep, keeping, recomputing
from holmes_runtime.model.tensor_parallel import ALONE, TensorParallel

from .launched_runs import TINY_LLAMA, TINY_MIXTRAL, make_config

CPU = torch.device("cpu")


def make_experts(shape: ModelShape = TINY_MIXTRAL, keep: Keep = keeping, balancing: Balancing | None = None) -> Experts:
    experts = Experts(shape, ALONE, keep, balancing)
    generator = torch.Generator().manual_seed(3)
    for parameter in experts.parameters():
        parameter.data.normal_(0.0, 0.5, generator=generator)
    return experts


def inputs(tokens: int = 9) -> Tensor:
    return torch.randn(2, tokens, 32, generator=torch.Generator().manual_seed(4)).requires_grad_()


def one_by_one(experts: Experts, hidden: Tensor) -> Tensor:
    """Each token by itself, and for each the experts that its router's numbers choose."""
    gate, up, down = (each.weight for each in experts.experts.children())
    assert isinstance(gate, Tensor)
    assert isinstance(up, Tensor)
    assert isinstance(down, Tensor)
    rows = []
    for token in hidden.flatten(0, 1):
        shares = (experts.router.weight @ token).softmax(0)
        chosen = shares.argsort(descending=True)[: experts.experts_per_token].tolist()
        total = sum(shares[expert] for expert in chosen) if experts.normalized else 1.0
        results = [
            shares[expert] / total * (down[expert] @ (functional.silu(gate[expert] @ token) * (up[expert] @ token)))
            for expert in chosen
        ]
        rows.append(torch.stack(results).sum(0))
    return torch.stack(rows).view_as(hidden)


def all_gradients(experts: Experts, hidden: Tensor, output: Tensor) -> list[Tensor]:
    weight = torch.linspace(-1, 1, output.numel()).view_as(output)
    return list(torch.autograd.grad((output * weight).sum(), [hidden, *experts.parameters()]))


@pytest.mark.parametrize("keep", [keeping, recomputing])
@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("chosen", [1, 2, 6])
def test_experts_give_results_and_gradients_of_tokens_taken_one_by_one(
    chosen: int, normalized: bool, keep: Keep
) -> None:
    experts = make_experts(replace(TINY_MIXTRAL, experts_per_token=chosen, normalized_routing=normalized), keep)
    hidden = inputs()

    output, expected = experts(hidden), one_by_one(experts, hidden)

    torch.testing.assert_close(output, expected, atol=1e-4, rtol=1e-5)  # results go up to 60
    pairs = zip(all_gradients(experts, hidden, output), all_gradients(experts, hidden, expected), strict=True)
    for got, wanted in pairs:
        torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize("keep", [keeping, recomputing])
def test_products_of_all_experts_at_once_give_what_one_after_the_other_gives(
    keep: Keep, recomputes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = replace(TINY_MIXTRAL, hidden_size=32, experts_per_token=2)
    module, hidden = make_experts(shape, keep).bfloat16(), inputs(tokens=1).detach().bfloat16().requires_grad_()
    results = []
    for at_once in (False, True):
        takes = partial(lambda at_once, *_: at_once and expert_layer._is_right(CPU), at_once)
        monkeypatch.setattr(expert_layer, "multiplies_in_groups", takes)
        expert_layer._is_right.cache_clear()  # so that its own values are made inside of the checkpoint
        output = checkpoint(module, hidden, use_reentrant=False) if recomputes else module(hidden)
        assert isinstance(output, Tensor)
        results.append([output, *all_gradients(module, hidden, output)])

    assert not results[0][2][0].equal(results[0][2][1])  # the router
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(other, one, atol=0.05, rtol=0.02)
    assert any(not gradients.any() for gradients in results[1][3])  # of an expert without tokens


@pytest.mark.parametrize("fault", [lambda rows, *_, **__: rows[:, :32] * 0, None])
def test_a_torch_that_multiplies_groups_wrongly_or_not_at_all_is_not_used_for_it(
    fault: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expert_layer._is_right.cache_clear()
    assert expert_layer._is_right(CPU)
    if fault is None:
        monkeypatch.delattr(functional, "grouped_mm")
    else:
        monkeypatch.setattr(functional, "grouped_mm", fault)
    expert_layer._is_right.cache_clear()
    assert not expert_layer._is_right(CPU)
    assert "one by one" in capsys.readouterr().out


def test_an_expert_without_tokens_has_gradients_of_zero() -> None:
    experts, hidden = make_experts(), inputs(tokens=1)  # two of them choose at most four of six

    gradients = all_gradients(experts, hidden, experts(hidden))

    idle = [expert for expert in range(6) if not gradients[2][expert].any()]
    assert 0 < len(idle) < 6
    assert all(torch.equal(each[idle], torch.zeros_like(each[idle])) for each in gradients[2:])


def test_the_balancing_loss_is_the_number_chosen_if_experts_are_used_alike_and_more_if_not() -> None:
    even = torch.full((6, 3), 1 / 3)
    assert balancing_loss(even, torch.tensor([[0, 1], [1, 2], [2, 0]] * 2)).item() == pytest.approx(2.0)
    # By hand: expert 0 for every token, 1 and 2 for half of them: 3 (1 * 0.6 + 0.5 * 0.3 + 0.5 * 0.1) = 2.4.
    skewed = torch.tensor([[0.6, 0.3, 0.1]] * 6)
    assert balancing_loss(skewed, torch.tensor([[0, 1], [0, 2]] * 3)).item() == pytest.approx(2.4)


def test_the_balancing_loss_adds_its_gradient_and_changes_no_result() -> None:
    hidden, scale = inputs(), 8.0
    plain, balanced = make_experts(), make_experts(balancing=Balancing(0.3, lambda: scale))

    outputs = [experts(hidden) for experts in (plain, balanced)]
    without, got = (
        torch.autograd.grad(output.sum(), [hidden, experts.router.weight])
        for output, experts in zip(outputs, (plain, balanced), strict=True)
    )

    assert torch.equal(*outputs)
    probabilities = plain.router(hidden.flatten(0, 1)).softmax(-1)
    loss = scale * 0.3 * balancing_loss(probabilities, probabilities.topk(2).indices)
    wanted = torch.autograd.grad(loss, [hidden, plain.router.weight])
    for with_loss, alone, added in zip(got, without, wanted, strict=True):
        torch.testing.assert_close(with_loss, alone + added, atol=1e-4, rtol=1e-4)
        assert added.abs().max() > 1e-2


def test_the_stage_has_the_parameters_that_are_counted() -> None:
    stage = DecoderStage(TINY_MIXTRAL, Stage(0, 0, 3), 7)
    count = sum(parameter.numel() for parameter in stage.parameters())
    block = sum(parameter.numel() for parameter in stage.blocks["1"].parameters())

    assert count == stage_parameters(TINY_MIXTRAL, 3, True, True)
    assert block == layer_parameters(TINY_MIXTRAL)


def test_tensor_shards_have_the_parameters_that_are_counted() -> None:
    shard = DecoderStage(TINY_MIXTRAL, Stage(0, 0, 3), 7, tp=TensorParallel(None, 1, 2))

    counted = layer_parameters(TINY_MIXTRAL, tp=2, ep=2)
    assert sum(parameter.numel() for parameter in shard.blocks["1"].parameters()) == counted


def test_replicas_that_share_experts_have_the_parameters_that_are_counted() -> None:
    ep, tp = ExpertParallel(None, 1, 3), TensorParallel(None, 1, 2)
    part = DecoderStage(TINY_MIXTRAL, Stage(0, 0, 3), 7, tp=tp, ep=ep)

    counted = layer_parameters(TINY_MIXTRAL, tp=2, ep=6)
    assert sum(parameter.numel() for parameter in part.blocks["1"].parameters()) == counted


@pytest.mark.parametrize("size", [1, 2, 3])
def test_parts_of_experts_start_as_parts_of_the_whole(size: int) -> None:
    whole = DecoderStage(TINY_MIXTRAL, Stage(0, 0, 3), 7)
    for rank in range(size):
        part = DecoderStage(
            TINY_MIXTRAL, Stage(0, 0, 3), 7, tp=TensorParallel(None, 1, 2), ep=ExpertParallel(None, rank, size)
        )
        for name, parameter in part.named_parameters():
            assert torch.equal(parameter, part.parts[name].of(whole.get_parameter(name))), name
    assert part.parts["blocks.1.mlp.experts.down.weight"].offset == (6 - 6 // size, 0, 12)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ep": 3}, r"ep: must be 1, or a multiple of tp 1 that divides dp \* tp = 2"),
        ({"model": TINY_LLAMA}, "ep: must be 1 without model.experts"),
        ({"model": replace(TINY_MIXTRAL, experts=7)}, "model.experts: must be a multiple of the 2 replicas"),
        ({"microbatches": (3, 5)}, "microbatches: must be equal for replicas 0 to 1"),
        ({"clusters": "ab"}, r"ranks\[0\].cluster: must be one for the ranks \(0, 1\) that share experts, .* a and b"),
        ({"zero": 3}, "ep: must be at most tp 1 under zero 3"),
    ],
)
def test_replicas_that_cannot_share_experts_are_refused(change: dict[str, Any], said: str) -> None:
    arguments = {"pipelines": ((0,), (1,)), "model": TINY_MIXTRAL, "ep": 2, **change}
    with pytest.raises(ValueError, match=said):
        make_config(**arguments)


def test_matrices_of_experts_that_write_to_the_stream_start_smaller() -> None:
    experts = DecoderStage(TINY_MIXTRAL, Stage(0, 0, 3), 7).blocks["1"].mlp
    assert isinstance(experts, Experts)
    stds = {name: parameter.std().item() for name, parameter in experts.named_parameters()}

    assert stds["experts.down.weight"] == pytest.approx(0.02 / 6**0.5, rel=0.05)
    assert stds["experts.up.weight"] == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"shared_experts": 1}, "model.shared_experts: must not be set"),
        ({"first_dense_layers": 1}, "model.first_dense_layers: must not be set"),
    ],
)
def test_a_run_of_experts_that_no_rank_computes_is_refused(change: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make_config(model=replace(TINY_MIXTRAL, **change))  # type: ignore[arg-type]


def test_a_balancing_loss_without_experts_is_refused() -> None:
    with pytest.raises(ValueError, match=r"optimizer\.router_balance: must be 0 for a model without experts"):
        make_config(model=TINY_LLAMA, router_balance=0.1)


def test_only_matrices_that_the_kernel_loads_are_multiplied_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expert_layer, "_is_right", lambda _: True)

    class OnGpu:
        device, dtype = torch.device("cuda"), torch.bfloat16

    def takes(*shape: int, offset: int = 0) -> bool:
        flat = torch.empty(math.prod(shape) + 8, dtype=torch.bfloat16)
        matrix = flat[offset : offset + math.prod(shape)].view(shape)
        return expert_layer.multiplies_in_groups(cast(Tensor, OnGpu()), [matrix])

    assert takes(4, 16, 32)
    assert not takes(4, 16, 32, offset=4)  # at a multiple of 8 bytes, not 16
    assert not takes(4, 12, 32)
    assert not takes(1024, 8, 8)
    assert not expert_layer.multiplies_in_groups(torch.empty(1, 8), [torch.empty(4, 16, 32)])
