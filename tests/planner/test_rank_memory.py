"""The memory that a plan counts, against the most that torch's profiler sees in a step of the bundled trainer."""

from __future__ import annotations

import gc
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.config.run_settings import Recompute
from holmes_runtime.config.trainable import Lora, Trainable
from holmes_runtime.data.corpus import load_corpus
from holmes_runtime.trainer import Trainer
from planner.cost.counts import Execution
from planner.cost.rank_memory import memory_bytes
from tests.runtime.launched_runs import make_config

pytestmark = pytest.mark.torch

LLAMA = ModelShape(
    family="llama", num_layers=12, hidden_size=256, ffn_hidden_size=640, num_heads=4, num_kv_heads=2, seq_length=128,
    vocab_size=512,
)  # fmt: skip
GPT = replace(LLAMA, family="gpt", num_kv_heads=None, ffn_hidden_size=None)
SHAPES = {"llama": LLAMA, "gpt": GPT}
ALL = {
    "llama": Lora(rank=8, targets=("query", "key", "value", "projection", "gate", "up", "down")),
    "gpt": Lora(rank=8, targets=("qkv", "projection", "up", "down")),
}
SOME = {"llama": Lora(rank=8, targets=("query", "value")), "gpt": Lora(rank=8, targets=("qkv",))}
TRAINED: dict[str, dict[str, Lora]] = {"all": {}, "attention's adapters": SOME, "adapters": ALL}
FEW = [
    ("llama", "none", "adapters"),
    ("llama", "selective", "attention's adapters"),
    ("llama", "full", "adapters"),
    ("gpt", "full", "all"),
]  # the others are exhaustive: two minutes of a core
MICRO_BATCH_SIZE = 4


def held_bytes() -> int:
    """Bytes of all tensors there are."""
    gc.collect()
    tensors = (found for found in gc.get_objects() if isinstance(found, torch.Tensor))
    return sum({each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}.values())


def most_bytes(trainer: Trainer) -> int:
    """The most bytes beyond those held between steps that tensors of the second step take."""
    trainer.step(0)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        trainer.step(1)
    results: Any = profile.profiler
    events = results.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    most = now = 0
    for _, size_bytes in changes:
        now += size_bytes
        most = max(most, now)
    return most


@pytest.mark.parametrize(
    ("family", "recompute", "trained"),
    [
        pytest.param(*case, marks=() if case in FEW else pytest.mark.exhaustive)
        for case in product(SHAPES, ("none", "selective", "full"), TRAINED)
    ],
)
def test_a_step_takes_the_memory_that_is_planned(
    family: str, recompute: Recompute, trained: str, tmp_path: Path
) -> None:
    """Adapters are within 5 %. Whole models are within 5 %, one case within 6."""
    lora, shape = TRAINED[trained].get(family), SHAPES[family]
    (tmp_path / "text.txt").write_bytes(bytes(range(32, 127)) * 100)
    config = make_config(
        tmp_path / "text.txt",
        cuts=(0, shape.num_layers),
        model=shape,
        steps=2,
        micro_batch_size=MICRO_BATCH_SIZE,
        microbatches=(2,),
        recompute=recompute,
        lora=lora,
    )
    corpus = load_corpus(config.data, "here", shape.seq_length, shape.vocab_size)
    before = held_bytes()
    trainer = Trainer(config, config.grid.rank(0), corpus, RankGroups(), torch.device("cpu"))
    most = most_bytes(trainer) + held_bytes() - before

    trainable = None if lora is None else Trainable(lora=lora)
    execution = Execution(1, 1, MICRO_BATCH_SIZE, 4, recompute, fused_operators=False, trainable=trainable)
    planned = memory_bytes(shape, execution, [shape.num_layers], [1], True, True)
    assert most == pytest.approx(planned, rel=0.05 if lora else 0.06)
