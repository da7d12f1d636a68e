"""The transformers library and the bundled decoder compute the same, from one folder of either."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from holmes_runtime.checkpoint.checkpoints import Checkpoints
from holmes_runtime.checkpoint.tensor_piece import weights_of
from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.config.run_config import Stage
from holmes_runtime.config.run_settings import CheckpointSettings
from holmes_runtime.export import export
from holmes_runtime.model.decoder import DecoderStage
from holmes_runtime.model.experts import Balancing, balancing_loss
from holmes_runtime.node.checkpoint_files.description import Counters
from holmes_runtime.node.published_files.architectures import read_shape
from holmes_runtime.parallel.zero1 import Zero1
from holmes_runtime.published.first_weights import load_first_weights
from holmes_runtime.rank_notices import RankNotices

from .launched_runs import make_config
from .test_published import SETTINGS, SHAPES, random_stage

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("lone_group")]

TOKENS = torch.randint(256, (2, 32), generator=torch.Generator().manual_seed(0))
SMALL = {
    "vocab_size": 256, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
CONFIGS: dict[str, Any] = {
    "llama 2": transformers.LlamaConfig(**{**SMALL, "num_key_value_heads": 4}),
    "llama 3.1": transformers.LlamaConfig(**SMALL, rope_theta=5e5, rope_scaling=LLAMA3),
    "llama 3.2": transformers.LlamaConfig(**SMALL, rope_theta=5e5, rope_scaling=LLAMA3, tie_word_embeddings=True),
    "llama linear": transformers.LlamaConfig(**SMALL, rope_scaling={"rope_type": "linear", "factor": 4.0}),
    "qwen 2.5": transformers.Qwen2Config(**SMALL, rope_theta=1e6, tie_word_embeddings=True),
    "qwen 3": transformers.Qwen3Config(**SMALL, rope_theta=1e6, head_dim=16),
    "mistral nemo": transformers.MistralConfig(**SMALL, rope_theta=1e6, head_dim=12, sliding_window=None),
    "mistral with a window": transformers.MistralConfig(**SMALL, sliding_window=32),
    "mixtral": transformers.MixtralConfig(**SMALL, rope_theta=1e6, num_local_experts=6, num_experts_per_tok=2),
    "qwen 3 moe": transformers.Qwen3MoeConfig(
        **SMALL, head_dim=16, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=24, norm_topk_prob=True
    ),
    "qwen 3 moe as routed": transformers.Qwen3MoeConfig(
        **SMALL, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=24, norm_topk_prob=False
    ),
    "gpt 2": transformers.GPT2Config(
        vocab_size=256, n_embd=32, n_layer=3, n_head=4, n_positions=64, activation_function="gelu"
    ),
}


def library_logits(model: Any) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model.eval()(TOKENS, use_cache=False).logits
    return logits


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_the_library_wrote_has_the_library_s_logits(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name], dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms too
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path, max_shard_size="20KB" if name != "llama 2" else "5GB")
    assert (tmp_path / "model.safetensors.index.json").exists() == (name != "llama 2")

    shape = read_shape(tmp_path, TOKENS.shape[1])
    stage = DecoderStage(shape, Stage(0, 0, shape.num_layers), 0, draws=False)
    load_first_weights(tmp_path, shape, weights_of(Zero1([stage], stage.parts, SETTINGS, RankGroups(), 1).shards()))

    expected = library_logits(model)
    assert expected.abs().amax() > 0.5
    assert (stage(TOKENS) - expected).abs().amax() <= 1e-5


@pytest.mark.parametrize("name", SHAPES)
def test_a_checkpoint_exported_loads_in_the_library_with_equal_logits(name: str, tmp_path: Path) -> None:
    shape = SHAPES[name]
    stage = random_stage(shape)
    settings = make_config(model=shape, checkpoint=CheckpointSettings(str(tmp_path / "saved"), 1, 1, 2))
    checkpoints = Checkpoints(settings, settings.grid.rank(0), "digest", RankNotices(tmp_path, 0))
    checkpoints.save(Zero1([stage], stage.parts, SETTINGS, RankGroups(), 1).shards(), Counters(1, 1, 1.0, 0, 8))
    checkpoints.finish()

    export(tmp_path / "saved", tmp_path / "out")

    model, said = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", dtype=torch.float32, output_loading_info=True
    )
    assert not any(said[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert (library_logits(model) - stage(TOKENS)).abs().amax() <= 1e-5
    assert read_shape(tmp_path / "out", shape.seq_length) == shape


@pytest.mark.parametrize("chosen", [1, 3])
def test_the_balancing_loss_of_a_layer_is_the_library_s(chosen: int) -> None:
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    logits = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
    probabilities = logits.softmax(-1)

    ours = balancing_loss(probabilities, probabilities.topk(chosen).indices)

    torch.testing.assert_close(ours, load_balancing_loss_func((logits,), 6, chosen))


def test_a_step_adds_the_library_s_balancing_loss_of_each_layer(tmp_path: Path) -> None:
    """The gradients of cross entropy plus the mean over layers, which the library computes of its own model."""
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS["mixtral"], dtype=torch.float32)
    model.save_pretrained(tmp_path)
    targets = TOKENS.roll(-1, 1)
    said = model(TOKENS, use_cache=False, output_router_logits=True)
    losses = [torch.as_tensor(load_balancing_loss_func((logits,), 6, 2)) for logits in said.router_logits]
    loss = functional.cross_entropy(said.logits.flatten(0, 1), targets.flatten()) + 0.3 * torch.stack(losses).mean()
    torch.autograd.backward(loss)

    shape = read_shape(tmp_path, TOKENS.shape[1])
    balancing = Balancing(0.3 / shape.num_layers, lambda: 1.0)
    stage = DecoderStage(shape, Stage(0, 0, shape.num_layers), 0, draws=False, balancing=balancing)
    load_first_weights(tmp_path, shape, weights_of(Zero1([stage], stage.parts, SETTINGS, RankGroups(), 1).shards()))
    torch.autograd.backward(functional.cross_entropy(stage(TOKENS).flatten(0, 1), targets.flatten()))

    for layer in range(shape.num_layers):
        ours, theirs = stage.get_parameter(f"blocks.{layer}.mlp.router.weight"), model.model.layers[layer].mlp.gate
        torch.testing.assert_close(ours.grad, theirs.weight.grad, atol=1e-6, rtol=1e-4)
        assert theirs.weight.grad.abs().max() > 1e-4
    torch.testing.assert_close(stage.get_parameter("head.weight").grad, model.lm_head.weight.grad, atol=1e-6, rtol=1e-4)


def test_an_export_in_bf16_says_so(tmp_path: Path) -> None:
    shape = replace(SHAPES["llama"], tied_embeddings=True)
    settings = make_config(
        model=shape, value_type="bf16", checkpoint=CheckpointSettings(str(tmp_path / "saved"), 1, 1, 2)
    )
    checkpoints = Checkpoints(settings, settings.grid.rank(0), "digest", RankNotices(tmp_path, 0))
    stage = random_stage(shape)
    checkpoints.save(Zero1([stage], stage.parts, SETTINGS, RankGroups(), 1).shards(), Counters(1, 1, 1.0, 0, 8))
    checkpoints.finish()

    export(tmp_path / "saved", tmp_path / "out")

    assert json.loads((tmp_path / "out" / "config.json").read_text())["torch_dtype"] == "bfloat16"
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert model.dtype == torch.bfloat16
    assert model.lm_head.weight is model.model.embed_tokens.weight
