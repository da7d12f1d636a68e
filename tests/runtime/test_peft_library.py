"""The bundled trainer's adapters against the peft library itself: steps, and adapters that go there and come back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.config.trainable import Lora
from holmes_runtime.export import export
from holmes_runtime.node.published_files.adapter_names import adapter_sizes
from holmes_runtime.node.published_files.check_published import wrong_weights
from holmes_runtime.published.peft_adapters import write_adapters
from holmes_runtime.trainer import Trainer

from .launched_runs import make_config, write_corpus
from .test_adapters import trainer_of
from .test_peft_adapters import MODELS, TOKENS, adapted, tensors_in
from .test_published import publish, random_stage

transformers: Any = pytest.importorskip("transformers")
peft: Any = pytest.importorskip("peft")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("lone_group")]
STEPS = 50


def opened(published: Path, adapters: Path, is_trained: bool = False) -> Any:
    """The published model in peft with the adapters of a folder."""
    base = transformers.AutoModelForCausalLM.from_pretrained(published, dtype=torch.float32)
    return peft.PeftModel.from_pretrained(base, adapters, is_trainable=is_trained).eval()


def logits_of(model: Any, tokens: Tensor = TOKENS) -> Tensor:
    logits: Tensor = model(input_ids=tokens, use_cache=False).logits
    return logits


def save(trainer: Trainer, shape: ModelShape, lora: Lora, folder: Path) -> None:
    """The adapters of `trainer` as peft reads them."""
    masters = {each.name: each.master.detach().clone().view(each.part.shape) for each in trainer.zero1.shards()}
    write_adapters(folder, shape, lora, None, dict(adapter_sizes(shape, lora)), masters.__getitem__)


@pytest.mark.parametrize("family", MODELS)
def test_fifty_steps_are_those_of_the_library(family: str, tmp_path: Path) -> None:
    shape, lora = MODELS[family]
    publish(random_stage(shape), tmp_path / "published")
    config = make_config(
        write_corpus(tmp_path), model=shape, steps=STEPS, lora=lora, learning_rate=1e-3,
        weights=str(tmp_path / "published"),
    )  # fmt: skip
    trainer = trainer_of(config)
    trainer.begin_from(tmp_path / "published")
    save(trainer, shape, lora, tmp_path / "first")
    model = opened(tmp_path / "published", tmp_path / "first", is_trained=True)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    settings = config.optimizer
    optimizer = torch.optim.AdamW(
        trained, settings.learning_rate, (settings.beta1, settings.beta2), 1e-8, settings.weight_decay
    )
    for step in range(STEPS):
        tokens = trainer._read(trainer.training, step).tokens
        assert tokens is not None
        logits = logits_of(model, tokens[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(trained, settings.grad_clip or torch.inf)
        optimizer.step()
        assert trainer.step(step).loss == pytest.approx(loss.item(), abs=1e-5)

    save(trainer, shape, lora, tmp_path / "last")
    model.save_pretrained(tmp_path / "theirs")
    ours, theirs = (tensors_in(tmp_path / name / "adapter_model.safetensors") for name in ("last", "theirs"))
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert (ours[name] - value).abs().amax() <= 1e-5, name
    with torch.no_grad():
        assert (logits_of(opened(tmp_path / "published", tmp_path / "last")) - logits_of(model)).abs().amax() <= 1e-5


@pytest.mark.parametrize("family", MODELS)
def test_the_library_loads_what_was_trained_here(family: str, tmp_path: Path) -> None:
    stage = adapted(tmp_path, *MODELS[family])
    export(tmp_path / "saved", tmp_path / "out")
    export(tmp_path / "saved", tmp_path / "whole", merge=True)

    model = opened(tmp_path / "published", tmp_path / "out")

    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "whole", dtype=torch.float32).eval()
    with torch.no_grad():
        assert (logits_of(model) - stage(TOKENS)).abs().amax() <= 1e-5
        assert (logits_of(model) - logits_of(merged)).abs().amax() <= 1e-5
        base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "published", dtype=torch.float32)
        assert (logits_of(model) - logits_of(base.eval())).abs().amax() > 0.01


LLAMA_MODULES = ["q_proj", "v_proj", "down_proj"]
STARTS: list[tuple[str, dict[str, Any], Lora]] = [
    ("gpt", {"target_modules": "all-linear"}, Lora(rank=4, targets=("qkv", "projection", "up", "down"), alpha=8.0)),
    ("gpt", {"target_modules": ["c_attn"], "fan_in_fan_out": False}, Lora(rank=4, targets=("qkv",), alpha=8.0)),
    ("llama", {"target_modules": "all-linear", "exclude_modules": ["k_proj"], "lora_dropout": 0.5},
     Lora(rank=4, targets=("query", "value", "projection", "gate", "up", "down"), alpha=8.0)),
    ("llama", {"target_modules": r".*\.(q_proj|v_proj)", "init_lora_weights": "gaussian"},
     Lora(rank=4, targets=("query", "value"), alpha=8.0)),
    ("llama", {"target_modules": LLAMA_MODULES, "init_lora_weights": "orthogonal", "task_type": None},
     Lora(rank=4, targets=("query", "value", "down"), alpha=8.0)),
]  # fmt: skip


@pytest.mark.parametrize(("family", "settings", "lora"), STARTS)
@pytest.mark.parametrize("value_type", [torch.float32, torch.bfloat16])
def test_a_run_starts_from_adapters_of_the_library(
    family: str, settings: dict[str, Any], lora: Lora, value_type: torch.dtype, tmp_path: Path
) -> None:
    shape, _ = MODELS[family]
    publish(random_stage(shape), tmp_path / "published")
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "published", dtype=torch.float32)
    settings = {"r": 4, "lora_alpha": 8, "task_type": "CAUSAL_LM"} | settings
    model = peft.get_peft_model(base, peft.LoraConfig(**settings)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(0.0, 0.3, generator=torch.Generator().manual_seed(len(name)))
                parameter.copy_(parameter.to(value_type))
                parameter.data = parameter.data.to(value_type)
    model.save_pretrained(tmp_path / "adapters")
    model.float()

    lora = replace(lora, adapters=str(tmp_path / "adapters"))
    config = make_config(write_corpus(tmp_path), model=shape, lora=lora, weights=str(tmp_path / "published"))
    assert wrong_weights(config.to_json()) == ()
    trainer = trainer_of(config)
    trainer.begin_from(tmp_path / "published")
    trainer.begin_from_adapters(tmp_path / "adapters")

    with torch.no_grad():
        found = trainer._stages[0].module(TOKENS)
        assert (found - logits_of(model)).abs().amax() <= 1e-5
