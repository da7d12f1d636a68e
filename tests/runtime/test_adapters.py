"""Adapters of the bundled runtime: trained as their formula says, drawn alike everywhere, and all that is saved."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.config.run_config import RunConfig, Stage
from holmes_runtime.config.run_settings import CheckpointSettings
from holmes_runtime.config.trainable import Lora
from holmes_runtime.data.corpus import load_corpus
from holmes_runtime.model.decoder import DecoderStage
from holmes_runtime.model.initial_weights import initial_value
from holmes_runtime.model.tensor_parallel import TensorParallel
from holmes_runtime.model.tensor_part import part_of
from holmes_runtime.node.checkpoint_files.checkpoint_folder import newest_in
from holmes_runtime.node.checkpoint_files.description import Description
from holmes_runtime.node.checkpoint_files.piece_index import read_index
from holmes_runtime.trainer import Trainer
from tests.seeds import few_of

from .forked_ranks import launch_forked
from .launched_runs import TINY, TINY_LLAMA, layout, make_config, write_corpus
from .test_published import publish, random_stage

GPT_LORA = Lora(rank=4, targets=("qkv", "projection", "up", "down"), alpha=8.0)
LLAMA_LORA = Lora(rank=4, targets=("query", "key", "value", "projection", "gate", "up", "down"), alpha=8.0)


def trainer_of(config: RunConfig) -> Trainer:
    """A trainer on one process."""
    corpus = load_corpus(config.data, "here", config.model.seq_length, config.model.vocab_size)
    return Trainer(config, config.grid.rank(0), corpus, RankGroups(), torch.device("cpu"))


def merged(
    frozen: dict[str, Tensor], adapters: dict[str, Tensor], shape: ModelShape, scale: float
) -> dict[str, Tensor]:
    """All weights, with W + scale B A for each W that has an adapter."""
    weights = dict(frozen)
    for name in (each.removesuffix("_lora.b") for each in adapters if each.endswith(".b")):
        added = scale * adapters[f"{name}_lora.b"] @ adapters[f"{name}_lora.a"]
        owner, _, matrix = name.rpartition(".")
        if matrix in ("query", "key", "value"):  # rows of `qkv` go by key-value head: queries, a key, a value
            of_head = added.view(shape.kv_heads, -1, shape.hidden_size)
            rows, per_kv = shape.head_size, shape.num_heads // shape.kv_heads
            before = {"query": 0, "key": per_kv * rows, "value": (per_kv + 1) * rows}[matrix]
            whole = (shape.kv_heads, (per_kv + 2) * rows, shape.hidden_size)
            after = whole[1] - before - of_head.shape[1]
            added, name = functional.pad(of_head, (0, 0, before, after)).reshape(-1, shape.hidden_size), f"{owner}.qkv"
        weights[f"{name}.weight"] = weights[f"{name}.weight"] + added
    return weights


@pytest.mark.parametrize(
    ("shape", "lora", "steps"),
    few_of(2, [(TINY, GPT_LORA, 8), (TINY_LLAMA, LLAMA_LORA, 8), (TINY_LLAMA, LLAMA_LORA, 50)]),
    ids=["gpt", "llama", "llama, long"],
)
def test_steps_are_those_of_merged_weights(shape: ModelShape, lora: Lora, steps: int, tmp_path: Path) -> None:
    """The same losses as a model without adapters whose weights are W + alpha / rank B A, under torch's own AdamW."""
    config = make_config(write_corpus(tmp_path), model=shape, steps=steps, lora=lora, learning_rate=3e-3)
    trainer = trainer_of(config)
    plain = DecoderStage(shape, Stage(0, 0, shape.num_layers), config.seed)
    frozen = {name: parameter.detach().clone() for name, parameter in plain.named_parameters()}
    adapters = {
        shard.name: shard.master.clone().view(shard.part.shape).requires_grad_() for shard in trainer.zero1.shards()
    }
    settings = config.optimizer
    optimizer = torch.optim.AdamW(
        adapters.values(), settings.learning_rate, (settings.beta1, settings.beta2), 1e-8, settings.weight_decay
    )
    for step in range(steps):
        tokens = trainer._read(trainer.training, step).tokens
        assert tokens is not None
        logits = functional_call(plain, merged(frozen, adapters, shape, lora.scale), (tokens[:, :-1],))
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(adapters.values(), settings.grad_clip or torch.inf)
        optimizer.step()
        assert trainer.step(step).loss == pytest.approx(loss.item(), abs=1e-5)
    for shard in trainer.zero1.shards():
        assert torch.allclose(shard.master.view(shard.part.shape), adapters[shard.name], rtol=0, atol=1e-5), shard.name


def test_frozen_weights_have_no_gradients_and_stay_as_they_are(tmp_path: Path) -> None:
    config = make_config(write_corpus(tmp_path), model=TINY_LLAMA, steps=2, lora=LLAMA_LORA, value_type="bf16")
    trainer = trainer_of(config)
    named = dict(trainer._stages[0].module.named_parameters())
    frozen = {name: each.detach().clone() for name, each in named.items() if not each.requires_grad}
    for step in range(2):
        trainer.step(step)
    assert {shard.name for shard in trainer.zero1.shards()} == named.keys() - frozen.keys()
    assert len(named) - len(frozen) == TINY_LLAMA.num_layers * len(LLAMA_LORA.targets) * 2
    for name, before in frozen.items():
        assert named[name].dtype == torch.bfloat16
        assert named[name].grad is None
        assert torch.equal(named[name], before)


def test_first_adapters_are_uniform_and_zero_and_the_same_in_shards() -> None:
    name, size = "blocks.1.mlp.down_lora.a", (16, 400)
    whole = initial_value(name, size, 7, 3)
    assert float(whole.abs().max()) == pytest.approx(1 / 20, rel=0.01)  # kaiming-uniform of sqrt(5): 1 / sqrt(inputs)
    assert float(whole.std()) == pytest.approx(1 / 20 / 3**0.5, rel=0.05)
    for rank in range(2):
        part = part_of(name, size, TensorParallel(None, rank, 2))
        assert torch.equal(initial_value(name, size, 7, 3, part), part.of(whole))
    assert not initial_value("blocks.1.mlp.down_lora.b", (32, 16), 7, 3).any()
    first = initial_value("blocks.1.attention.query_lora.a", (4, 32), 7, 3)
    assert not torch.equal(first, initial_value("blocks.1.attention.key_lora.a", (4, 32), 7, 3))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"zero": 3}, "lora"),
        ({"lora": Lora(rank=4, targets=("query",))}, "lora.targets"),
        ({"lora": Lora(rank=4, targets=("gate",))}, "lora.targets"),
        ({"model": TINY_LLAMA}, "lora.targets"),
        ({"model": replace(TINY, factory="/m.py:build")}, "lora.targets"),
    ],
)
def test_adapters_that_the_runtime_does_not_train_are_refused(change: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=rf"^{named}: "):
        replace(make_config(lora=GPT_LORA), **change)  # type: ignore[arg-type]


@pytest.mark.torch
@pytest.mark.timeout(600)
def test_a_resumed_run_loads_adapters_and_reads_frozen_weights_again(tmp_path: Path) -> None:
    """Under another plan the losses go on, the checkpoint has adapters alone, and another base is refused."""
    publish(random_stage(TINY_LLAMA), tmp_path / "published")
    saved = CheckpointSettings(str(tmp_path / "saved"), 2, 3, 2)
    corpus = write_corpus(tmp_path)
    config = make_config(
        corpus, model=TINY_LLAMA, steps=4, lora=LLAMA_LORA, learning_rate=1e-3,
        weights=str(tmp_path / "published"),
    )  # fmt: skip
    whole = launch_forked(config, tmp_path / "whole")
    assert whole.exit_code == 0, whole.stderr[-2000:]
    first = launch_forked(replace(config, steps=2, checkpoint=saved), tmp_path / "first")
    assert first.exit_code == 0, first.stderr[-2000:]

    shards = make_config(
        corpus, cuts=(0, 1, 3), shards=layout(2, 2, 1), model=TINY_LLAMA, steps=4, lora=LLAMA_LORA,
        learning_rate=1e-3, weights=config.weights, checkpoint=saved, resume=True,
    )  # fmt: skip
    second = launch_forked(shards, tmp_path / "second")
    assert second.exit_code == 0, second.stderr[-2000:]
    assert first.losses() + second.losses() == pytest.approx(whole.losses(), abs=1e-6)

    newest = newest_in(tmp_path / "saved")
    assert newest is not None
    names = {tensor.name for tensor in read_index(newest).tensors}
    matrices = {"attention": ("query", "key", "value", "projection"), "mlp": ("gate", "up", "down")}
    assert names == {
        f"{kind}/blocks.{layer}.{part}.{matrix}_lora.{which}"
        for kind in ("weight", "exp_avg", "exp_avg_sq")
        for layer in range(3)
        for part, of_part in matrices.items()
        for matrix in of_part
        for which in "ab"
    }
    lora = Description.read(newest).lora
    assert lora is not None
    assert (lora["rank"], lora["alpha"], lora["targets"]) == (4, 8.0, sorted(LLAMA_LORA.targets))
    shutil.rmtree(tmp_path / "published")
    publish(DecoderStage(TINY_LLAMA, Stage(0, 0, 3), 9), tmp_path / "published")
    other = launch_forked(replace(config, steps=6, checkpoint=saved, resume=True), tmp_path / "other")
    assert other.exit_code != 0
    assert "is of another model: lora.frozen_weights: digest" in other.stderr
