"""What ZeRO-3 keeps, gathers and refuses; that it trains like one process is held by test_parity.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.config.run_config import Stage
from holmes_runtime.config.run_settings import OptimizerSettings, Precision, Recompute
from holmes_runtime.model.decoder import DecoderStage
from holmes_runtime.parallel.layer_weights import UseOrder
from holmes_runtime.parallel.zero3 import Zero3
from tests.seeds import few_of

from .launched_runs import TINY_LLAMA, make_config

SETTINGS = OptimizerSettings(1e-2, 0.0, 0, "constant", 0.1, 0.9, 0.95, None)
SHAPE = replace(TINY_LLAMA, num_layers=6, hidden_size=32, num_heads=4, num_kv_heads=2, vocab_size=64, seq_length=8)
DP = 4


@pytest.fixture
def groups() -> Iterator[RankGroups]:
    """Those of one of four replicas; nothing travels, so that numbers mean nothing and memory is what it would be."""
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=DP)
    yield RankGroups(dp=dist.group.WORLD)
    dist.destroy_process_group()


def make_stage(recompute: Recompute = "none", value_type: Precision = "bf16") -> DecoderStage:
    stage = Stage(0, 0, SHAPE.num_layers)
    return DecoderStage(SHAPE, stage, seed=0, recompute=recompute, value_type=value_type, lazily=True)


def make_zero3(module: nn.Module, groups: RankGroups) -> Zero3:
    return Zero3([module], {}, SETTINGS, groups, num_microbatches=2)


def take_step(module: nn.Module, zero3: Zero3) -> None:
    tokens = torch.zeros(1, SHAPE.seq_length, dtype=torch.int64)
    zero3.start()
    for _ in range(2):
        module(tokens).float().mean().backward()
    zero3.finish(2)
    zero3.step(1e-3, torch.ones((), dtype=torch.float64))


def whole_bytes(module: nn.Module) -> int:
    """Bytes of whole weights that are in memory."""
    storages = {parameter.untyped_storage()._cdata: parameter.untyped_storage() for parameter in module.parameters()}
    return sum(storage.nbytes() for storage in storages.values())


def layer_sizes(module: DecoderStage) -> list[int]:
    """Numbers in each block, embedding and head, largest first."""
    layers = [module.token_embedding, module.head, *module.blocks.values()]
    return sorted((sum(map(nn.Parameter.numel, layer.parameters())) for layer in layers), reverse=True)


@pytest.mark.parametrize("recompute", few_of(1, ["none", "selective", "full"]))
def test_a_rank_has_its_part_of_the_weights_and_two_layers_at_most(groups: RankGroups, recompute: Recompute) -> None:
    module = make_stage(recompute)
    total = sum(map(nn.Parameter.numel, module.parameters()))
    assert whole_bytes(module) == 0  # until the optimizer asks for them, layer by layer
    zero3, seen, gradients = make_zero3(module, groups), list[int](), list[int]()
    buckets = [each.bucket for layer in zero3._layers for each in layer.buckets]

    def look(*_: object) -> None:
        seen.append(whole_bytes(module))
        gradients.append(sum(bucket.gradients.untyped_storage().nbytes() for bucket in buckets))

    for layer in range(SHAPE.num_layers):
        module.get_submodule(f"blocks.{layer}.mlp").register_forward_hook(look)
    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(look)  # type: ignore[no-untyped-call]
    for _ in range(2):
        take_step(module, zero3)

    kept = sum(each.kept.nbytes for layer in zero3._layers for each in layer.buckets)
    sums = sum(each.summed.nbytes for layer in zero3._layers for each in layer.buckets)
    padded = total + 64 * DP * len(buckets)  # a part may be filled up
    two_layers = sum(layer_sizes(module)[:2])
    assert total * 2 / DP <= kept <= padded * 2 / DP
    assert total * 4 / DP <= sums <= padded * 4 / DP
    assert layer_sizes(module)[0] * 2 < max(seen) <= 2 * (two_layers + 128 * DP)
    assert max(gradients) <= 4 * (two_layers + 128 * DP)
    assert sum(shard.master.nbytes for shard in zero3.shards()) <= padded * 4 / DP


class Gathered(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """How many numbers were gathered."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "allgather" in str(func):
            self.numbers += args[0].numel()
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("recompute", few_of(1, ["none", "full"]))
def test_a_layer_is_gathered_twice_a_micro_batch_but_the_embedding_and_the_head_once(
    groups: RankGroups, recompute: Recompute
) -> None:
    module = make_stage(recompute)
    zero3 = make_zero3(module, groups)
    take_step(module, zero3)  # after which the order is known
    embedding, *twice, head = (sum(each.bucket.weights.numel() for each in layer.buckets) for layer in zero3._layers)

    with Gathered() as gathered:  # type: ignore[no-untyped-call]
        take_step(module, zero3)

    # The first layer of this step was on its way before; that of the next one is now.
    assert gathered.numbers == 2 * (embedding + 2 * sum(twice) + head)


def test_weights_that_are_gathered_for_a_backward_are_those_of_the_forward(groups: RankGroups) -> None:
    """Autograd's saved views follow the memory under them."""
    module = make_stage()
    zero3 = make_zero3(module, groups)
    block = module.blocks["3"]
    hidden = torch.zeros(1, SHAPE.seq_length, SHAPE.hidden_size, dtype=torch.bfloat16, requires_grad=True)
    saved: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = block(hidden, module.rotation)
    storage = module.get_parameter("blocks.3.mlp.down.weight").untyped_storage()
    during = storage.nbytes()
    output.sum().backward()

    assert during == 0
    assert any(tensor.untyped_storage()._cdata == storage._cdata for tensor in saved)
    del zero3


def test_layers_are_gathered_in_the_order_of_the_step_before() -> None:
    order = UseOrder(3)
    uses = [0, 1, 2, 2, 1, 0]

    def step() -> list[int | None]:
        order.begin_step()
        found = []
        for layer in uses:
            order.used(layer)
            found.append(order.after(layer))
        order.end_step()
        return found

    assert step() == [None] * 6
    assert step() == [1, 2, 2, 1, 0, None]
    assert [order.after(layer) for layer in range(3)] == [1, 2, None]  # of an evaluation


def test_an_order_that_changes_gathers_nothing_ahead_and_is_learned_anew() -> None:
    order = UseOrder(3)
    for uses in ([0, 1, 2], [2, 1, 0]):
        order.begin_step()
        ahead = []
        for layer in uses:
            order.used(layer)
            ahead.append(order.after(layer))
        order.end_step()

    assert ahead == [None, 2, None]  # the second use was the same
    assert order.first == 2


def test_replicas_that_share_weights_must_run_as_many_micro_batches() -> None:
    pipelines = [[rank] for rank in range(4)]
    with pytest.raises(ValueError, match=r"^microbatches: must be equal, under zero 3, .* got \(3, 1, 2, 2\)"):
        make_config(pipelines=pipelines, microbatches=(3, 1, 2, 2), zero=3)

    across = make_config(pipelines=pipelines, microbatches=(3, 3, 1, 1), clusters="aabb", zero=3)
    assert all(across.shards_weights(rank) for rank in across.ranks)


def test_zero_bubble_is_refused() -> None:
    pipelines = [[0, 2], [1, 3]]
    with pytest.raises(ValueError, match=r"^schedule: must not be zero-bubble under zero 3"):
        make_config(pipelines=pipelines, cuts=(0, 1, 3), schedule="zero-bubble", zero=3)


def test_a_rank_that_is_alone_in_its_cluster_keeps_whole_weights() -> None:
    config = make_config(pipelines=[[0], [1]], clusters="ab", zero=3)

    assert not config.shards_weights(config.ranks[0])
