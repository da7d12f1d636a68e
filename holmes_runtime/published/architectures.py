"""config.json of a published model, read into a shape and written from one. Free of torch.

Of each architecture what the bundled decoder computes exactly is taken, and all else is refused by its key. The keys
are those of the transformers library's configurations, of version 4 and of version 5.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holmes_runtime.config.model_shape import ModelShape, RopeScaling
from holmes_runtime.config.run_settings import Precision

CONFIG_FILE = "config.json"
MOST_CONFIG_BYTES = 2**20  # those of published models have a few thousand
MOST = 2**31 - 1  # of any size: far more than a model has, and its products are still numbers
LIBRARYS_WINDOW, QWEN3_HEAD_DIM = 4096, 128  # the library's where a configuration leaves the key out
ROTARY = ("llama", "mistral", "qwen2", "qwen3")
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
DTYPE_NAMES: dict[Precision, str] = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
Config = Mapping[str, Any]


def read_shape(folder: Path, seq_length: int | None = None) -> ModelShape:
    """The shape of the model in `folder`, with the longest sequence it attends over in full unless one is given.

    Raises ValueError, naming the file and the key, for a model that this runtime does not compute as published.
    """
    path = folder / CONFIG_FILE
    try:
        if path.stat().st_size > MOST_CONFIG_BYTES:
            raise ValueError(f"has {path.stat().st_size} bytes, which no configuration needs")
        config = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise ValueError(f"holds {type(config).__name__}, not keys and values")
        kind = config.get("model_type")
        if kind == "gpt2":
            return _gpt(config, seq_length)
        if kind not in ROTARY:
            raise ValueError(f"model_type {kind!r} is not one of {', '.join((*ROTARY, 'gpt2'))}")
        return _rotary(config, seq_length)
    except (OSError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _rotary(config: Config, seq_length: int | None) -> ModelShape:
    kind = config["model_type"]
    _refuse_unless(config, "hidden_act", "silu")
    _refuse_unless(config, "attention_bias", False)
    _refuse_unless(config, "mlp_bias", False)
    window = _window(config)
    if seq_length is not None and window is not None and window < seq_length:
        raise ValueError(f"sliding_window {window} is shorter than seq_length {seq_length}, and is not computed")
    longest = _whole(config, "max_position_embeddings", 2048)
    heads, hidden = _whole(config, "num_attention_heads"), _whole(config, "hidden_size")
    head_dim = _whole(config, "head_dim", QWEN3_HEAD_DIM if kind == "qwen3" else hidden // heads)
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise ValueError(f"rope_scaling is {rope!r}, not keys and values")
    _refuse_unless(rope, "partial_rotary_factor", 1.0)
    _refuse_unless(config, "partial_rotary_factor", 1.0)
    return ModelShape(
        family="llama",
        num_layers=_whole(config, "num_hidden_layers"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=_whole(config, "num_key_value_heads", heads if kind == "llama" else None),
        ffn_hidden_size=_whole(config, "intermediate_size"),
        vocab_size=_whole(config, "vocab_size"),
        seq_length=seq_length or min(longest, window or longest),
        rope_theta=_number(rope if "rope_theta" in rope else config, "rope_theta", 10000.0),
        rope_scaling=_scaling(rope),
        norm_eps=_number(config, "rms_norm_eps", 1e-6),
        head_dim=None if head_dim * heads == hidden else head_dim,
        qkv_bias=kind == "qwen2",
        qk_norm=kind == "qwen3",
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        factory=None,
    )


def _gpt(config: Config, seq_length: int | None) -> ModelShape:
    _refuse_unless(config, "activation_function", "gelu", "gelu_new")
    for key, plain in (("scale_attn_weights", True), ("scale_attn_by_inverse_layer_idx", False)):
        _refuse_unless(config, key, plain)
    hidden, longest = _whole(config, "n_embd"), _whole(config, "n_positions")
    if seq_length is not None and seq_length > longest:
        raise ValueError(f"n_positions is {longest}, fewer than seq_length {seq_length}")
    heads = _whole(config, "n_head")
    return ModelShape(
        family="gpt",
        num_layers=_whole(config, "n_layer"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=heads,
        ffn_hidden_size=_whole(config, "n_inner", 4 * hidden),
        vocab_size=_whole(config, "vocab_size"),
        seq_length=seq_length or longest,
        rope_theta=10000.0,
        rope_scaling=None,
        norm_eps=_number(config, "layer_norm_epsilon", 1e-5),
        head_dim=None,
        qkv_bias=False,
        qk_norm=False,
        tied_embeddings=bool(config.get("tie_word_embeddings", True)),
        factory=None,
    )


def _scaling(rope: Config) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling("linear", _number(rope, "factor"), 1.0, 4.0, 8192)
    if kind == "llama3":
        low, high = _number(rope, "low_freq_factor"), _number(rope, "high_freq_factor")
        original = _whole(rope, "original_max_position_embeddings")
        return RopeScaling("llama3", _number(rope, "factor"), low, high, original)
    raise ValueError(f"rope scaling {kind!r} is not one of default, linear, llama3")


def _window(config: Config) -> int | None:
    """How many tokens attention looks back, if not all: of a Mistral where it is given, of a Qwen where it is used."""
    is_used = config.get("use_sliding_window", config["model_type"] == "mistral")
    given = config.get("sliding_window", LIBRARYS_WINDOW)
    return _whole({"sliding_window": given}, "sliding_window") if is_used and given is not None else None


def _refuse_unless(config: Config, key: str, plain: object, absent: object = None) -> None:
    """Raises ValueError unless `key` is `plain`; where it is missing, it is `absent`, or plain."""
    value = config.get(key)
    value = (plain if absent is None else absent) if value is None else value
    if value != plain:
        raise ValueError(f"{key} is {value!r}, and this runtime computes {plain!r} alone")


def _whole(config: Config, key: str, default: int | None = None) -> int:
    value = config.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
        raise ValueError(f"{key} is {value!r}, not a whole number from 1 to {MOST}")
    return value


def _number(config: Config, key: str, default: float | None = None) -> float:
    value = config.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
        raise ValueError(f"{key} is {value!r}, not a number above 0")
    return float(value)


def published_config(shape: ModelShape, value_type: Precision) -> dict[str, object]:
    """config.json of a model of `shape`, whose weights are of `value_type`.

    Raises ValueError where no published architecture is that model.
    """
    common = {
        "vocab_size": shape.vocab_size,
        "tie_word_embeddings": shape.tied_embeddings,
        "torch_dtype": DTYPE_NAMES[value_type],
    }
    if shape.family == "gpt":
        return {**_gpt_config(shape), **common}
    if shape.qkv_bias and shape.qk_norm:
        raise ValueError("no published architecture has both qkv_bias and qk_norm")
    kind = "qwen2" if shape.qkv_bias else "qwen3" if shape.qk_norm else "llama"
    scaling = shape.rope_scaling
    reach = 1 if scaling is None or scaling.kind != "llama3" else round(scaling.factor * scaling.original_seq_length)
    return {
        "architectures": [ARCHITECTURES[kind]],
        "model_type": kind,
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_size,
        "intermediate_size": shape.ffn_hidden_size,
        "max_position_embeddings": max(shape.seq_length, reach),
        "rope_theta": shape.rope_theta,
        "rope_scaling": None if scaling is None else _scaling_config(scaling),
        "rms_norm_eps": shape.norm_eps,
        "hidden_act": "silu",
        "attention_bias": False,
        **common,
    }


def _scaling_config(scaling: RopeScaling) -> dict[str, object]:
    found: dict[str, object] = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind == "llama3":
        found["low_freq_factor"], found["high_freq_factor"] = scaling.low_freq_factor, scaling.high_freq_factor
        found["original_max_position_embeddings"] = scaling.original_seq_length
    return found


def _gpt_config(shape: ModelShape) -> dict[str, object]:
    if shape.head_dim is not None:
        raise ValueError(f"no published gpt has heads of another size than hidden_size / num_heads ({shape.head_dim})")
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_embd": shape.hidden_size,
        "n_layer": shape.num_layers,
        "n_head": shape.num_heads,
        "n_inner": shape.ffn_hidden_size,
        "n_positions": shape.seq_length,
        "layer_norm_epsilon": shape.norm_eps,
        "activation_function": "gelu",
    }
