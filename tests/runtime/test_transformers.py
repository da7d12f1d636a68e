"""The transformers library and the bundled decoder compute the same, from one folder of either."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from holmes_runtime.checkpoint.checkpoints import Checkpoints
from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.config.run_config import Stage
from holmes_runtime.config.run_settings import CheckpointSettings
from holmes_runtime.export import export
from holmes_runtime.model.decoder import DecoderStage
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
    load_first_weights(tmp_path, shape, Zero1([stage], stage.parts, SETTINGS, RankGroups(), 1).shards())

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
