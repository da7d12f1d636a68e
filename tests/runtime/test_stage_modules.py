"""Real and emulated stages in one process."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any, get_args

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.config.run_config import Stage
from holmes_runtime.config.run_settings import EmulationSettings, Precision, Recompute, takes_document_ends
from holmes_runtime.config.trainable import Lora, Matrix
from holmes_runtime.model.decoder import DecoderStage
from holmes_runtime.model.document_mask import document_ends
from holmes_runtime.model.emulated import EmulatedStage, mean_activation
from holmes_runtime.model.initial_weights import initial_value
from holmes_runtime.model.rotary import make_rotation, rotate
from holmes_runtime.model.tensor_parallel import TensorParallel
from holmes_runtime.model.tensor_part import TensorPart

from .launched_runs import TINY, TINY_LLAMA, TINY_MIXTRAL
from .storages_made import StoragesMade

WHOLE = Stage(0, 0, 3)


def elements(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("cut", [1, 2])
def test_any_cut_starts_from_bit_equal_weights(cut: int) -> None:
    whole = dict(DecoderStage(TINY, WHOLE, seed=7).named_parameters())
    parts = [DecoderStage(TINY, Stage(0, 0, cut), 7), DecoderStage(TINY, Stage(1, cut, 3), 7)]
    named = [pair for part in parts for pair in part.named_parameters()]

    assert sorted(name for name, _ in named) == sorted(whole)
    assert all(torch.equal(parameter, whole[name]) for name, parameter in named)


def test_parameter_names_are_those_of_the_whole_model() -> None:
    assert "blocks.2.attention.qkv.weight" in dict(DecoderStage(TINY, Stage(1, 2, 3), 7).named_parameters())


@pytest.mark.parametrize(("name", "dim"), [("head.weight", 0), ("blocks.0.mlp.down.weight", 1), ("mine.weight", 0)])
def test_a_part_has_the_values_that_the_whole_has_there(name: str, dim: int) -> None:
    shape = (300, 270)
    whole = initial_value(name, shape, seed=7, num_layers=3)

    for start, stop in ((0, 100), (100, 201), (128, 256), (201, shape[dim])):
        offset, size = [0, 0], list(shape)
        offset[dim], size[dim] = start, stop - start
        part = TensorPart(shape, (offset[0], offset[1]), (size[0], size[1]))
        assert torch.equal(initial_value(name, shape, 7, 3, part), part.of(whole))
    assert whole.std().item() == pytest.approx(0.02 / 6**0.5 if "mlp.down" in name else 0.02, rel=0.02)
    assert torch.unique(whole).numel() > 0.9 * whole.numel()


def test_a_stage_that_a_checkpoint_fills_draws_nothing() -> None:
    drawn, empty = DecoderStage(TINY, WHOLE, 7), DecoderStage(TINY, WHOLE, 7, draws=False)

    assert [(n, p.shape, p.dtype) for n, p in empty.named_parameters()] == [
        (n, p.shape, p.dtype) for n, p in drawn.named_parameters()
    ]
    assert not any(parameter.any() for parameter in empty.parameters())


def test_another_seed_gives_other_weights() -> None:
    first, second = DecoderStage(TINY, WHOLE, 7), DecoderStage(TINY, WHOLE, 8)

    assert not torch.equal(first.head.weight, second.head.weight)


def test_building_a_stage_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()

    DecoderStage(TINY, WHOLE, 7)

    assert torch.equal(torch.get_rng_state(), before)


def test_a_later_token_does_not_change_earlier_logits() -> None:
    stage = DecoderStage(TINY, WHOLE, 7)
    tokens = torch.zeros(1, 32, dtype=torch.int64)
    changed = tokens.clone()
    changed[0, 20] = 1

    difference = (stage(tokens) - stage(changed)).abs().amax(dim=(0, 2))

    assert difference[:20].max() == 0
    assert difference[20] > 0


@pytest.mark.parametrize("shape", [TINY, TINY_LLAMA, TINY_MIXTRAL])
def test_each_document_of_a_sample_has_the_logits_it_has_by_itself(shape: ModelShape) -> None:
    stage, lengths = DecoderStage(shape, WHOLE, 7), (5, 1, 18, 8)
    tokens = torch.randint(256, (2, 32), generator=torch.Generator().manual_seed(1))
    positions = torch.cat([torch.arange(length) for length in lengths]).expand(2, -1)

    together = stage(tokens, positions)

    start = 0
    for length in lengths:
        alone = torch.zeros(2, 32, dtype=torch.int64)  # what follows a document does not change its logits
        alone[:, :length] = tokens[:, start : start + length]
        torch.testing.assert_close(together[:, start : start + length], stage(alone)[:, :length], atol=1e-6, rtol=1e-5)
        start += length
    assert (together - stage(tokens)).abs().amax() > 1e-3


def test_ends_of_documents_are_counted_over_the_samples_of_a_micro_batch() -> None:
    positions = torch.tensor([[0, 1, 2, 0, 1], [0, 0, 1, 2, 3]])
    assert document_ends(positions, 4).tolist() == [0, 3, 5, 6, 10]
    assert document_ends(positions, 6).tolist() == [0, 3, 5, 6, 10, 10, 10, 10, 10]
    assert document_ends(torch.tensor([[0, 1, 2]]), 1).tolist() == [0, 3]


@pytest.mark.parametrize(
    ("device", "precision", "cp", "heads", "takes"),
    [
        ("cuda", "bf16", 1, 4, True),
        ("cpu", "bf16", 1, 4, False),
        ("cuda", "fp16", 1, 4, False),
        ("cuda", "bf16", 2, 4, False),
        ("cuda", "bf16", 1, 32, False),  # heads of 12
        ("cuda", "bf16", 1, 1, False),  # of 384
    ],
)
def test_the_ends_of_documents_are_taken_where_a_kernel_has_them(
    device: str, precision: Precision, cp: int, heads: int, takes: bool
) -> None:
    model = ModelShape(family="gpt", num_layers=1, hidden_size=384, num_heads=heads, seq_length=64)
    assert takes_document_ends(device, precision, cp, model) is takes


def test_one_document_a_sample_is_as_if_documents_were_joined() -> None:
    stage, tokens = DecoderStage(TINY, WHOLE, 7), torch.arange(32).view(1, 32)

    torch.testing.assert_close(stage(tokens, torch.arange(32).view(1, 32)), stage(tokens), atol=1e-6, rtol=1e-5)


def test_a_document_s_gradients_do_not_depend_on_its_neighbours() -> None:
    stage, gradients = DecoderStage(TINY_LLAMA, WHOLE, 7), []
    positions = torch.cat([torch.arange(20), torch.arange(12)]).view(1, 32)
    for neighbour in (0, 9):
        tokens = torch.arange(32).view(1, 32).clone()
        tokens[0, :20] = neighbour
        stage.zero_grad()
        torch.autograd.backward(stage(tokens, positions)[:, 20:].square().sum())
        gradients.append([parameter.grad for parameter in stage.parameters()])

    for one, other in zip(*gradients, strict=True):
        assert one is not None
        assert other is not None
        assert torch.equal(one, other)


@pytest.mark.parametrize("shape", [TINY, TINY_LLAMA, TINY_MIXTRAL])
@pytest.mark.parametrize("stage", [WHOLE, Stage(0, 0, 1), Stage(1, 1, 2), Stage(2, 1, 3)])
def test_an_emulated_stage_has_as_many_parameters_as_the_real_one(shape: ModelShape, stage: Stage) -> None:
    assert elements(EmulatedStage(shape, stage, EmulationSettings(0, 0, {}))) == elements(DecoderStage(shape, stage, 7))


@pytest.mark.parametrize(("shape", "targets"), [(TINY, ("qkv", "down")), (TINY_LLAMA, ("query", "value", "gate"))])
@pytest.mark.parametrize("stage", [WHOLE, Stage(0, 0, 1), Stage(2, 1, 3)])
def test_an_emulated_stage_with_adapters_trains_as_many_parameters_as_the_real_one(
    shape: ModelShape, targets: tuple[Matrix, ...], stage: Stage
) -> None:
    lora = Lora(rank=3, targets=targets)
    real = DecoderStage(shape, stage, 7, lora=lora)

    emulated = EmulatedStage(shape, stage, EmulationSettings(0, 0, {}), lora=lora)

    assert elements(emulated) == sum(each.numel() for each in real.parameters() if each.requires_grad)


def test_an_emulated_layer_takes_its_time_and_its_gradients_are_ones() -> None:
    stage = EmulatedStage(TINY, WHOLE, EmulationSettings(0.01, 0.02, {}))
    start_s = time.monotonic()

    loss = mean_activation(stage(torch.zeros(2, 32, dtype=torch.int64)), torch.zeros(2, 32, dtype=torch.int64))
    torch.autograd.backward(loss)

    assert time.monotonic() - start_s >= 3 * (0.01 + 0.02)
    assert loss.item() == 1.0
    assert all(p.grad is not None and torch.equal(p.grad, torch.ones_like(p)) for p in stage.parameters())


@pytest.mark.parametrize("shape", [TINY, TINY_LLAMA, TINY_MIXTRAL])
@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize("documents", [(), (torch.arange(32).view(1, 32) % 9,)], ids=["joined", "separate"])
def test_recomputation_changes_no_gradient(
    shape: ModelShape, recompute: Recompute, documents: tuple[torch.Tensor, ...]
) -> None:
    stages = [DecoderStage(shape, WHOLE, 7, recompute=mode) for mode in ("none", recompute)]

    for stage in stages:
        torch.autograd.backward(stage(torch.arange(32).view(1, 32), *documents).square().mean())

    plain, again = ([parameter.grad for parameter in stage.parameters()] for stage in stages)
    assert all(a is not None and b is not None and torch.equal(a, b) for a, b in zip(plain, again, strict=True))


@pytest.mark.parametrize("shape", [TINY, TINY_LLAMA, TINY_MIXTRAL])
def test_selective_recomputation_repeats_no_matrix_product_and_no_attention(shape: ModelShape) -> None:
    plain, again = (operators_of(DecoderStage(shape, WHOLE, 7, recompute=mode)) for mode in ("none", "selective"))
    costly = [name for name in plain if "mm" in name or "attention" in name]

    assert len(costly) >= 3
    assert {name: again[name] for name in costly} == {name: plain[name] for name in costly}
    assert again.total() > plain.total()


def operators_of(stage: DecoderStage) -> Counter[str]:
    """How often a forward and its backward call each of torch's operators."""

    class Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            called[func.__name__] += 1
            return func(*args, **(kwargs or {}))

    called: Counter[str] = Counter()
    with Calls():  # type: ignore[no-untyped-call]
        torch.autograd.backward(stage(torch.arange(32).view(1, 32)).square().mean())
    return called


def test_full_recomputation_keeps_the_input_of_each_layer_alone() -> None:
    kept = {mode: kept_bytes(DecoderStage(TINY, Stage(1, 1, 2), 7, recompute=mode)) for mode in get_args(Recompute)}
    hidden_bytes = 4 * 32 * 32

    assert kept["full"] == hidden_bytes
    assert kept["full"] < kept["selective"] < kept["none"]


def kept_bytes(stage: DecoderStage) -> int:
    """Bytes that a forward of one sample keeps for the backward, its input among them, its output not."""
    hidden = torch.ones(1, 32, 32, requires_grad=True)
    made = StoragesMade()
    with made:
        output: torch.Tensor = stage(hidden)
    return hidden.nbytes + made.alive_bytes() - output.nbytes


def test_rotation_leaves_lengths_and_makes_scores_depend_on_distance_alone() -> None:
    rotation = make_rotation(TINY_LLAMA, None)
    query, key = torch.randn(2, TINY_LLAMA.head_size)
    everywhere = [rotate(vector.expand(1, 32, 1, -1), rotation)[0, :, 0] for vector in (query, key)]

    scores = everywhere[0] @ everywhere[1].T

    torch.testing.assert_close(everywhere[0].norm(dim=1), query.norm().expand(32))
    for distance in (0, 3):
        diagonal = scores.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[0].expand_as(diagonal), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", [TINY, TINY_LLAMA, TINY_MIXTRAL])
def test_the_parts_of_tensor_shards_make_up_the_whole(shape: ModelShape) -> None:
    whole = dict(DecoderStage(shape, WHOLE, 7).named_parameters())
    shards = [DecoderStage(shape, WHOLE, 7, tp=TensorParallel(None, rank, 2)) for rank in range(2)]

    for name, tensor in whole.items():
        pieces = [dict(shard.named_parameters())[name] for shard in shards]
        for shard, piece in zip(shards, pieces, strict=True):
            assert torch.equal(shard.parts[name].of(tensor), piece)
        assert sum(piece.numel() for piece in pieces) == tensor.numel() * (2 if shards[0].parts[name].is_whole else 1)


@pytest.mark.slow
def test_a_compiled_block_is_one_graph_although_gradients_are_summed_in_another_type() -> None:
    """Else the compiler stops at every parameter."""
    graphs = list[Any]()

    def keep_graph(graph: torch.fx.GraphModule, _: object) -> Any:
        graphs.append(graph)
        return graph.forward

    stage = DecoderStage(TINY_LLAMA, Stage(1, 1, 2), 7, value_type="bf16")
    for parameter in stage.parameters():
        parameter.grad_dtype = None
        parameter.grad = torch.zeros(parameter.shape)
    gradients = [parameter.grad for parameter in stage.parameters()]
    with torch.compiler.set_stance("default", force_backend=keep_graph):
        stage.compile_blocks()
        stage(torch.ones(1, 32, 32, dtype=torch.bfloat16)).sum().backward()

    assert len(graphs) == 1
    assert all(parameter.grad is gradient for parameter, gradient in zip(stage.parameters(), gradients, strict=True))
    assert all(bool(gradient.any()) for gradient in gradients if gradient is not None)
