"""Model of job.yaml: a shape, or a published one by name (`model: {preset: llama-3-8b}`).

Sources: gpt-3.6b, gpt-7.5b and gpt-39.1b are the Holmes paper's (arXiv 2312.03549, table 2); gpt-175b and gpt-1t
Megatron-LM's (Narayanan et al., SC 2021, table 1); the Llama shapes are Meta's published configurations, the mixtures
of experts Mistral's, Qwen's, OpenAI's and DeepSeek's. deepseek-v3-like is DeepSeek-V3 without its layer that predicts a
second token, and with plain rotation; gpt-oss-120b without the biases of its experts.
`holmes model FOLDER` reads any other published model's shape from its config.json.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator

from holmes_runtime.config.layer_kinds import LatentAttention
from holmes_runtime.config.model_shape import ModelShape, RopeScaling

_SHAPE = (
    *("num_layers", "hidden_size", "num_heads", "num_kv_heads", "ffn_hidden_size", "vocab_size", "seq_length"),
    "rope_theta",
)


def _gpt(*shape: int) -> dict[str, Any]:
    """Return a GPT of that many layers, hidden size and heads."""
    return {"family": "gpt", **dict(zip(_SHAPE, shape, strict=False)), "seq_length": 2048, "vocab_size": 51200}


def _llama(*shape: float) -> dict[str, Any]:
    """Return a Llama with these values of `_SHAPE`, in order."""
    return {"family": "llama", **dict(zip(_SHAPE, shape, strict=True))}


def _experts(base: dict[str, Any], experts: int, experts_per_token: int, expert_ffn: int) -> dict[str, Any]:
    return {**base, "experts": experts, "experts_per_token": experts_per_token, "expert_ffn": expert_ffn}


_QWEN3 = {"head_dim": 128, "qk_norm": True, "norm_eps": 1e-6}


def _llama3_rope(factor: float) -> RopeScaling:
    return RopeScaling("llama3", factor, low_freq_factor=1.0, high_freq_factor=4.0, original_seq_length=8192)


PRESETS: dict[str, dict[str, Any]] = {
    "gpt-3.6b": _gpt(30, 3072, 32),
    "gpt-7.5b": _gpt(36, 4096, 32),
    "gpt-39.1b": _gpt(48, 8192, 64),
    "gpt-175b": _gpt(96, 12288, 96),
    "gpt-1t": _gpt(128, 25600, 160),
    "llama-3.2-1b": {
        **_llama(16, 2048, 32, 8, 8192, 128256, 8192, 500000.0),
        "rope_scaling": _llama3_rope(32.0),
        "tied_embeddings": True,
    },
    "llama-2-7b": _llama(32, 4096, 32, 32, 11008, 32000, 4096, 10000.0),
    "llama-2-13b": _llama(40, 5120, 40, 40, 13824, 32000, 4096, 10000.0),
    "llama-2-70b": _llama(80, 8192, 64, 8, 28672, 32000, 4096, 10000.0),
    "llama-3-8b": _llama(32, 4096, 32, 8, 14336, 128256, 8192, 500000.0),
    "llama-3-70b": _llama(80, 8192, 64, 8, 28672, 128256, 8192, 500000.0),
    "llama-3.1-405b": {
        **_llama(126, 16384, 128, 8, 53248, 128256, 8192, 500000.0),
        "rope_scaling": _llama3_rope(8.0),
    },
    "mixtral-8x7b": _experts(_llama(32, 4096, 32, 8, 14336, 32000, 4096, 1000000.0), 8, 2, 14336),
    "qwen3-30b-a3b": _experts(_llama(48, 2048, 32, 4, 6144, 151936, 4096, 1000000.0) | _QWEN3, 128, 8, 768),
    "qwen3-235b-a22b": _experts(_llama(94, 4096, 64, 4, 12288, 151936, 4096, 1000000.0) | _QWEN3, 128, 8, 1536),
    "gpt-oss-120b": {
        **_experts(_llama(36, 2880, 64, 8, 2880, 201088, 4096, 150000.0), 128, 4, 2880),
        "head_dim": 64,
        "qkv_bias": True,
        "sliding_window": 128,
    },
    "deepseek-v3-like": {
        **_experts(_llama(61, 7168, 128, 128, 18432, 129280, 4096, 10000.0), 256, 8, 2048),
        "shared_experts": 1,
        "first_dense_layers": 3,
        "latent_attention": LatentAttention(kv_rank=512, q_rank=1536),
    },
}


def _preset_fills_in(data: object) -> object:
    if not isinstance(data, dict) or data.get("preset") is None:
        return data
    name = data["preset"]
    if name not in PRESETS:
        raise ValueError(f"preset {name!r} is not known; there are {', '.join(PRESETS)}")
    return {**PRESETS[name], **data}


Model = Annotated[ModelShape, BeforeValidator(_preset_fills_in)]
