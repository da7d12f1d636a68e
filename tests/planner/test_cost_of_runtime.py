"""model_shape.py and counts.py against the bundled runtime's own model: parameters, FLOPs and kept activations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from holmes_runtime.config.model_shape import ModelShape, expert_parameters, layer_flops, stage_parameters
from holmes_runtime.config.run_config import Stage
from holmes_runtime.config.run_settings import Recompute
from holmes_runtime.model.decoder import Block, DecoderStage
from holmes_runtime.model.expert_parallel import ExpertParallel
from holmes_runtime.model.rotary import make_rotation
from holmes_runtime.model.tensor_parallel import ALONE
from holmes_runtime.model.tensor_part import has_experts
from holmes_runtime.parallel.gradient_buckets import ExpertBuckets, make_buckets
from planner.cost import counts as cost
from tests.runtime.storages_made import StoragesMade
from tests.seeds import few_of

GPT = ModelShape(num_layers=3, hidden_size=256, num_heads=4, seq_length=64, vocab_size=100)
LLAMA = ModelShape(
    family="llama",
    num_layers=3,
    hidden_size=256,
    num_heads=4,
    num_kv_heads=2,
    ffn_hidden_size=672,
    seq_length=64,
    vocab_size=100,
)

TIED = replace(GPT, tied_embeddings=True)
QWEN = replace(LLAMA, tied_embeddings=True, qkv_bias=True, qk_norm=True, head_dim=96)
WIDE_HEADS = replace(LLAMA, head_dim=96)
MIXTRAL = replace(LLAMA, experts=4, experts_per_token=2, expert_ffn=448)


@pytest.mark.parametrize("model", few_of(2, [GPT, LLAMA, TIED, QWEN]), ids=["gpt", "llama", "tied gpt", "qwen"])
@pytest.mark.parametrize(("first", "stop"), [(0, 1), (1, 2), (1, 3), (0, 3)])
def test_parameters_are_the_runtime_s(model: ModelShape, first: int, stop: int) -> None:
    stage = DecoderStage(model, Stage(0, first, stop), seed=0)
    counted = sum(parameter.numel() for parameter in stage.parameters())
    assert counted == stage_parameters(model, stop - first, first == 0, stop == model.num_layers)


@pytest.mark.parametrize("model", few_of(1, [GPT, LLAMA, QWEN]), ids=["gpt", "llama", "qwen"])
def test_forward_flops_are_those_torch_counts(model: ModelShape) -> None:
    block, rotation = block_of(model, "none")
    # The fused CPU kernel of attention is one the counter does not know.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        block(hidden_of(model), rotation)
    assert counter.get_total_flops() == layer_flops(model, 2)


@pytest.mark.parametrize("model", [GPT, LLAMA, WIDE_HEADS, QWEN], ids=["gpt", "llama", "wide heads", "qwen"])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_kept_activations_are_those_torch_saves(model: ModelShape, recompute: Recompute) -> None:
    """Within 3 %: norms and attention also keep a number or two a token; RMSNorm's CPU kernel keeps its result too."""
    kept = kept_bytes(model, recompute)
    if model.family == "llama" and recompute != "full":
        results = 2 * model.hidden_size + (model.query_size + model.kv_size) * model.qk_norm
        kept -= 4 * 2 * model.seq_length * results
    execution = cost.Execution(1, 1, micro_batch_size=2, value_bytes=4, recompute=recompute, fused_operators=False)
    assert cost.layer_activation_bytes(model, execution) == pytest.approx(kept, rel=0.03)


def test_forward_flops_of_experts_are_those_torch_counts() -> None:
    block, rotation = block_of(MIXTRAL, "none")
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        block(hidden_of(MIXTRAL), rotation)
    assert counter.get_total_flops() == layer_flops(MIXTRAL, 2)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_experts_keep_no_more_than_is_counted_for_uneven_routing(recompute: Recompute) -> None:
    """As above, and where tokens are spread evenly a tenth of the rows that came for experts less."""
    kept = kept_bytes(MIXTRAL, recompute)
    if recompute != "full":
        kept -= 4 * 2 * MIXTRAL.seq_length * 2 * MIXTRAL.hidden_size
    execution = cost.Execution(1, 1, micro_batch_size=2, value_bytes=4, recompute=recompute, fused_operators=False)
    assert kept <= cost.layer_activation_bytes(MIXTRAL, execution) <= 1.3 * kept


def test_states_of_shared_experts_take_the_bytes_that_are_counted() -> None:
    """As the buckets of a rank hold them, but for padding; its part of the sums twice, as it comes and as it stays."""
    sizes = {}
    for ep in (1, 2):
        module = DecoderStage(MIXTRAL, Stage(0, 0, MIXTRAL.num_layers), 7, ep=ExpertParallel(None, 0, ep))
        names = {name for name, _ in module.named_parameters() if has_experts(name)}
        layers = [dict(module.named_parameters())]
        held = make_buckets([layers], (), 2, 0, None, experts=ExpertBuckets(names if ep > 1 else (), 2 // ep, 0))
        sizes[ep] = sum(
            sum(each.nbytes for each in (bucket.gradients, bucket.weights, bucket.exp_avg, bucket.exp_avg_sq))
            + (2 * bucket.gradient.nbytes if bucket.gradient is not bucket.gradients else 0)
            for bucket in held
        )
    one, two = (cost.Execution(1, 2, 1, 4, "none", ep=ep, splits_experts=True) for ep in (1, 2))
    experts = [MIXTRAL.num_layers * expert_parameters(MIXTRAL, ep) for ep in (1, 2)]
    whole = cost.state_bytes(experts[0], one), cost.state_bytes(experts[1], two._replace(dp=two.expert_dp))
    assert sizes[1] - sizes[2] == pytest.approx(whole[0] - whole[1], rel=0.02)


@pytest.mark.torch
@pytest.mark.parametrize("model", [GPT, LLAMA], ids=["gpt", "llama"])
def test_a_compiled_layer_keeps_no_more_than_is_counted_where_it_recomputes_selectively(model: ModelShape) -> None:
    """Within 3 %, too. The values that are kept are chosen before kernels are made, and none are made here."""
    block, rotation = block_of(model, "selective")
    hidden = hidden_of(model)
    output: Any = torch.compile(block.forward_to_compile, backend="aot_eager_decomp_partition")(hidden, rotation)
    storages = {each.data_ptr(): each.untyped_storage().nbytes() for each in output.grad_fn.saved_tensors}
    weights = {each.data_ptr() for each in (*block.parameters(), rotation) if each is not None}

    execution = cost.Execution(tp=1, dp=1, micro_batch_size=2, value_bytes=4, recompute="selective")
    kept = sum(nbytes for address, nbytes in storages.items() if address not in weights)
    assert kept == pytest.approx(cost.layer_activation_bytes(model, execution), rel=0.03)


def block_of(model: ModelShape, recompute: Recompute) -> tuple[Block, Tensor | None]:
    """One layer with values in place, and the rotation it needs."""
    with torch.device("meta"):
        block = Block(model, ALONE, recompute)
    block = block.to_empty(device="cpu")
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    return block, make_rotation(model, None) if model.family == "llama" else None


def hidden_of(model: ModelShape) -> Tensor:
    """Hidden states of two samples."""
    return torch.randn(2, model.seq_length, model.hidden_size, requires_grad=True)


def kept_bytes(model: ModelShape, recompute: Recompute) -> int:
    """Bytes of the input and of all that one layer's forward leaves behind, its output apart."""
    block, rotation = block_of(model, recompute)
    hidden = hidden_of(model)
    made = StoragesMade()
    with made:
        output: Tensor = (
            checkpoint(block, hidden, rotation, use_reentrant=False) if recompute == "full" else block(hidden, rotation)
        )
    return hidden.nbytes + made.alive_bytes() - output.nbytes
