"""Adapters on frozen layers as torch trains them: what a layer keeps, and what ranks hold under DDP and FSDP."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

from holmes_core.records.trainer_settings import TrainerName
from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.config.run_config import Stage
from holmes_runtime.config.run_settings import OptimizerSettings, Recompute
from holmes_runtime.config.trainable import Lora, Matrix, Trainable
from holmes_runtime.model.decoder import DecoderStage
from holmes_runtime.parallel.zero1 import Zero1
from planner.cost.counts import Execution, layer_activation_bytes, state_bytes
from planner.cost.trained import ParameterCount, stage_of
from planner.problem.candidates import Candidate
from tests.planner.test_cost_of_runtime import GPT, LLAMA
from tests.planner.trainer_plans import trainer_job
from tests.runtime.forked_ranks import with_torch
from tests.runtime.storages_made import StoragesMade

RANKS = 2
SHAPE = ModelShape(
    family="llama", num_layers=2, hidden_size=32, num_heads=4, num_kv_heads=2, seq_length=8, vocab_size=64
)
LORA = Lora(rank=4, targets=("qkv", "projection", "gate", "down"))
APART = Lora(rank=4, targets=("query", "key", "value", "projection", "gate", "up", "down"))
WIDE = replace(SHAPE, hidden_size=128)


class Adapted(nn.Module):
    """A frozen matrix and its adapter, which is in fp32."""

    def __init__(self, matrix: nn.Linear, rank: int) -> None:
        super().__init__()
        self.matrix = matrix.requires_grad_(False)
        self.a = nn.Parameter(torch.zeros(rank, matrix.in_features))
        self.b = nn.Parameter(torch.zeros(matrix.out_features, rank))

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply both."""
        inside = functional.linear(inputs, self.a.to(inputs.dtype))
        adapted: Tensor = self.matrix(inputs) + functional.linear(inside, self.b.to(inputs.dtype))
        return adapted


def with_adapters(stage: DecoderStage, lora: Lora) -> DecoderStage:
    """Freeze all of `stage`, and give the named matrices adapters."""
    stage.requires_grad_(False)
    for parent in list(stage.modules()):
        for name, matrix in list(parent.named_children()):
            if name in lora.targets and isinstance(matrix, nn.Linear):
                setattr(parent, name, Adapted(matrix, lora.rank))
    return stage


@pytest.mark.parametrize("targets", [("qkv", "projection", "up", "down"), ("qkv",), ("up",), ("down",)])
@pytest.mark.parametrize(
    ("model", "recompute"),
    [(GPT, "none"), (LLAMA, "none"), (LLAMA, "selective"), (GPT, "full")],
    ids=["gpt", "llama", "selective", "again"],
)
def test_a_layer_keeps_what_adapters_and_its_inputs_gradients_need(
    model: ModelShape, recompute: Recompute, targets: tuple[Matrix, ...]
) -> None:
    """The bundled runtime's layer, within 3 %, as where all is trained."""
    apart: tuple[Matrix, ...] = ("query", "key", "value") if model is LLAMA else ("qkv",)
    lora = Lora(rank=16, targets=tuple(name for each in targets for name in (apart if each == "qkv" else (each,))))
    stage = DecoderStage(model, Stage(0, 1, 2), seed=0, recompute=recompute, lora=lora)
    hidden = torch.randn(2, model.seq_length, model.hidden_size, requires_grad=True)
    made = StoragesMade()
    with made:
        output = stage(hidden)
    kept = hidden.nbytes + made.alive_bytes() - output.nbytes
    execution = Execution(1, 1, 2, 4, recompute, fused_operators=False, trainable=Trainable(lora=lora))
    assert kept == pytest.approx(layer_activation_bytes(model, execution), rel=0.03)


@pytest.mark.torch
@pytest.mark.parametrize(("engine", "zero"), [("torch", 1), ("torch", 3), ("accelerate", 3)])
def test_ranks_hold_the_states_that_are_priced(engine: TrainerName, zero: int, tmp_path: Path) -> None:
    """DDP, and FSDP2 as a script calls it."""
    with ProcessPoolExecutor(RANKS, with_torch()) as pool:
        held = list(pool.map(_held_bytes, range(RANKS), [str(tmp_path / "store")] * RANKS, [zero] * RANKS))
    job = trainer_job(
        engine,
        model=asdict(SHAPE),
        global_batch_size=RANKS,
        device="cpu",
        precision="bf16",
        parallel={"zero": zero},
        trainable={"lora": {"rank": LORA.rank, "targets": list(LORA.targets)}},
    )
    parameters = stage_of(SHAPE, job.trainable, SHAPE.num_layers, (True, True))
    candidate = Candidate(1, 1, RANKS, 1, weight_shards=RANKS if zero == 3 else 1)
    wanted = state_bytes(parameters.trained, candidate.execution(job), parameters.frozen)
    assert [(trained, frozen) for trained, frozen, _ in held] == [parameters] * RANKS
    assert [size for *_, size in held] == [wanted] * RANKS


@pytest.mark.torch
def test_ranks_of_the_bundled_runtime_hold_the_states_that_are_priced(tmp_path: Path) -> None:
    """But for padding: the gradients of a rank's part twice, as they come and as they stay."""
    with ProcessPoolExecutor(RANKS, with_torch()) as pool:
        held = list(pool.map(_bundled_bytes, range(RANKS), [str(tmp_path / "store")] * RANKS))
    parameters = stage_of(WIDE, Trainable(lora=APART), WIDE.num_layers, (True, True))
    wanted = state_bytes(parameters.trained, Execution(1, RANKS, 1, 2, "none"), parameters.frozen)
    assert [(trained, frozen) for trained, frozen, _ in held] == [parameters] * RANKS
    assert [size for *_, size in held] == pytest.approx([wanted] * RANKS, rel=0.001)


def _bundled_bytes(rank: int, store: str) -> tuple[int, int, int]:
    """Return the trained and frozen parameters of the model, and the bytes of states of this rank."""
    dist.init_process_group("gloo", f"file://{store}", timedelta(seconds=300), RANKS, rank)
    stage = DecoderStage(WIDE, Stage(0, 0, WIDE.num_layers), seed=0, value_type="bf16", lora=APART)
    zero1 = Zero1([stage], stage.parts, OptimizerSettings(), RankGroups(dp=dist.group.WORLD), 1)
    zero1.start()
    stage(torch.zeros(1, WIDE.seq_length, dtype=torch.int64)).float().square().mean().backward()
    arriving = sum(bucket.reduced().nbytes for bucket in zero1._buckets if bucket.reduced is not None)
    buckets = ("gradients", "weights", "master", "exp_avg", "exp_avg_sq", "gradient")
    tensors = [getattr(bucket, name) for bucket in zero1._buckets for name in buckets]
    tensors += [each.grad for each in stage.parameters() if each.grad is not None] + list(stage.parameters())
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}
    counts = [sum(each.numel() for each in stage.parameters() if each.requires_grad is has) for has in (True, False)]
    dist.destroy_process_group()
    return counts[0], counts[1], sum(storages.values()) + arriving


_KEPT: list[nn.Module] = []
"""Kept until the process ends: the destructor of DDP's reducer joins a thread with the GIL held, and that thread may
need the GIL to end."""


def _held_bytes(rank: int, store: str, zero: int) -> tuple[int, int, int]:
    """Return the trained and frozen parameters of the model, and the bytes of states of this rank after a step."""
    dist.init_process_group("gloo", f"file://{store}", timedelta(seconds=300), RANKS, rank)
    stage = with_adapters(DecoderStage(SHAPE, Stage(0, 0, SHAPE.num_layers), seed=0, value_type="bf16"), LORA)
    counts = ParameterCount(
        sum(each.numel() for each in stage.parameters() if each.requires_grad),
        sum(each.numel() for each in stage.parameters() if not each.requires_grad),
    )
    module: nn.Module = stage
    if zero == 3:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for block in stage.blocks.values():
            fully_shard(block, mp_policy=policy)
        fully_shard(stage, mp_policy=policy)
    else:
        module = nn.parallel.DistributedDataParallel(stage)
    _KEPT.append(module)
    trained = [each for each in stage.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    module(torch.zeros(1, SHAPE.seq_length, dtype=torch.int64)).float().square().mean().backward()
    optimizer.step()
    tensors = [*stage.parameters(), *(each.grad for each in trained if each.grad is not None)]
    tensors += [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    here = [each.to_local() if isinstance(each, DTensor) else each for each in tensors]
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in here}
    dist.destroy_process_group()
    return counts.trained, counts.frozen, sum(storages.values())
