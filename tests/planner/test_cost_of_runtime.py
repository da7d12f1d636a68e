"""model_shape.py and counts.py against the bundled runtime's own model: parameters, FLOPs and kept activations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from holmes_core.records.job import Model, Recompute
from holmes_runtime.config.model_shape import layer_flops, stage_parameters
from holmes_runtime.config.run_config import Stage
from holmes_runtime.model.decoder import Block, DecoderStage, make_rotation
from holmes_runtime.model.tensor_parallel import ALONE
from planner.cost import counts as cost
from tests.runtime.test_model_shape import shape_of

GPT = Model(num_layers=3, hidden_size=256, num_heads=4, seq_length=64, vocab_size=100)
LLAMA = Model(
    family="llama", num_layers=3, hidden_size=256, num_heads=4, num_kv_heads=2, ffn_hidden_size=672, seq_length=64,
    vocab_size=100,
)  # fmt: skip


@pytest.mark.parametrize("model", [GPT, LLAMA], ids=["gpt", "llama"])
@pytest.mark.parametrize(("first", "stop"), [(0, 1), (1, 2), (1, 3), (0, 3)])
def test_parameters_are_the_runtime_s(model: Model, first: int, stop: int) -> None:
    stage = DecoderStage(shape_of(model), Stage(0, first, stop), seed=0)
    counted = sum(parameter.numel() for parameter in stage.parameters())
    assert counted == stage_parameters(model, stop - first, first == 0, stop == model.num_layers)


@pytest.mark.parametrize("model", [GPT, LLAMA], ids=["gpt", "llama"])
def test_forward_flops_are_those_torch_counts(model: Model) -> None:
    block, rotation = block_of(model, "none")
    # The fused CPU kernel of attention is one the counter does not know.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        block(hidden_of(model), rotation)
    assert counter.get_total_flops() == layer_flops(model, 2)


@pytest.mark.parametrize("model", [GPT, LLAMA], ids=["gpt", "llama"])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_kept_activations_are_those_torch_saves(model: Model, recompute: Recompute) -> None:
    """Within 3 %: norms and attention also keep a number or two a token; RMSNorm's CPU kernel keeps 2 h more."""
    saved = saved_bytes(model, recompute)
    if model.family == "llama" and recompute != "full":
        saved -= 2 * 4 * 2 * model.seq_length * model.hidden_size
    execution = cost.Execution(tp=1, dp=1, micro_batch_size=2, value_bytes=4, recompute=recompute)
    assert cost.layer_activation_bytes(model, execution) == pytest.approx(saved, rel=0.03)


def block_of(model: Model, recompute: Recompute) -> tuple[Block, Tensor | None]:
    """One layer with values in place, and the rotation it needs."""
    with torch.device("meta"):
        block = Block(shape_of(model), ALONE, recompute)
    block = block.to_empty(device="cpu")
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    return block, make_rotation(shape_of(model), None) if model.family == "llama" else None


def hidden_of(model: Model) -> Tensor:
    """Hidden states of two samples."""
    return torch.randn(2, model.seq_length, model.hidden_size, requires_grad=True)


def saved_bytes(model: Model, recompute: Recompute) -> int:
    """Bytes of all storages, weights apart, that autograd keeps of one layer's forward."""
    block, rotation = block_of(model, recompute)
    known = {parameter.untyped_storage().data_ptr() for parameter in block.parameters()}
    known |= {rotation.untyped_storage().data_ptr()} if rotation is not None else set()
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    hidden = hidden_of(model)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        if recompute != "full":
            output: Any = block(hidden, rotation)
        else:
            output = checkpoint(block, hidden, rotation, use_reentrant=False)
    del output
    # Full recomputation keeps the input by reference, where no hook sees it.
    return sum(saved.values()) or hidden.untyped_storage().nbytes()
