"""Values that a rank with a part of each sequence keeps and sees; the other ranks are pretended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.config.run_config import Stage
from holmes_runtime.config.run_settings import Recompute
from holmes_runtime.model.context_parallel import ContextParallel
from holmes_runtime.model.decoder import DecoderStage
from holmes_runtime.model.document_mask import causal_mask
from planner.cost.counts import Execution, layer_activation_bytes, mask_bytes
from tests.planner.test_cost_of_runtime import GPT, LLAMA, QWEN
from tests.runtime.storages_made import StoragesMade


@contextmanager
def first_of(size: int) -> Iterator[ContextParallel]:
    """The first part of so many; what the others would send is whatever lies in memory."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    yield ContextParallel(dist.group.WORLD, 0, tuple(range(size)))
    dist.destroy_process_group()


class Gathers(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The number of gathers."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.count += "allgather" in str(operator)
        return operator(*args, **(kwargs or {}))


@pytest.mark.parametrize(("recompute", "times"), [("none", 1), ("selective", 2), ("full", 2)])
def test_keys_are_gathered_once_more_where_anything_is_recomputed(recompute: Recompute, times: int) -> None:
    with first_of(4) as cp, Gathers() as gathers:
        stage = DecoderStage(LLAMA, Stage(0, 1, 2), seed=0, cp=cp, recompute=recompute)
        hidden = torch.zeros(2, LLAMA.seq_length // 4, LLAMA.hidden_size, requires_grad=True)
        stage(hidden).sum().backward()
    assert gathers.count == times


@pytest.mark.parametrize("model", [GPT, LLAMA, QWEN], ids=["gpt", "llama", "qwen"])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("in_documents", [False, True])
def test_a_layer_keeps_what_is_counted_of_its_part_and_of_gathered_keys(
    model: ModelShape, recompute: Recompute, in_documents: bool
) -> None:
    """Within 3 %, as without context parallelism."""
    hidden = torch.randn(2, model.seq_length // 2, model.hidden_size, requires_grad=True)
    positions = torch.arange(model.seq_length).repeat(2, 1) if in_documents else None
    made = StoragesMade()
    with first_of(2) as cp:
        stage = DecoderStage(model, Stage(0, 1, 2), seed=0, cp=cp, recompute=recompute)
        with made:
            output = stage(hidden, positions)
    kept = hidden.nbytes + made.alive_bytes() - output.nbytes
    if model.family == "llama" and recompute != "full":  # RMSNorm's CPU kernel keeps its results as well
        results = 2 * model.hidden_size + (model.query_size + model.kv_size) * model.qk_norm
        kept -= 4 * model.seq_length * results

    execution = Execution(1, 1, micro_batch_size=2, value_bytes=4, recompute=recompute, fused_operators=False)
    execution = execution._replace(cp=2, gathers_keys=True, masked=in_documents)
    counted = layer_activation_bytes(model, execution) + mask_bytes(model, execution)
    assert kept == pytest.approx(counted, rel=0.03)


def test_parts_are_an_early_and_a_late_chunk_and_make_up_the_sequence() -> None:
    whole = torch.arange(12).unsqueeze(0)
    parts = [ContextParallel(None, part, (2, 0, 1)).take(whole)[0].tolist() for part in range(3)]
    assert parts == [[0, 1, 10, 11], [2, 3, 8, 9], [4, 5, 6, 7]]


def test_each_part_attends_to_as_many_keys() -> None:
    masks = [ContextParallel(None, part, (0, 1, 2)).causal_masks(24, torch.float32, None) for part in range(3)]
    seen = [sum(int((mask == 0).sum()) for mask in each[:2]) for each in masks if each is not None]
    assert seen == [24 * 25 // 2 // 3] * 3


def test_the_mask_of_the_cpu_shows_what_a_gpu_s_kernel_sees() -> None:
    """The last queries of more keys, with groups of heads: there the bias's own rule is a mask, too."""
    from torch.nn.attention.bias import causal_lower_right

    query, key = torch.randn(2, 4, 3, 8), torch.randn(2, 2, 9, 8)
    biases = (causal_lower_right(3, 9), causal_mask(3, 9, torch.float32))
    one, other = (
        functional.scaled_dot_product_attention(query, key, key, attn_mask=bias, enable_gqa=True) for bias in biases
    )
    torch.testing.assert_close(one, other)
