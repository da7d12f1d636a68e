"""config.json of a published model, read into a shape and written from one. Free of torch.

Models that the bundled decoder computes exactly are accepted. Any other is refused with the key that differs. The keys
are those used by the transformers library's configurations, versions 4 and 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holmes_runtime.config.bounded_file import read_json_object
from holmes_runtime.config.checks import shown
from holmes_runtime.config.model_shape import ModelShape, RopeScaling
from holmes_runtime.config.run_settings import Precision

CONFIG_FILE = "config.json"
MAX_CONFIG_BYTES = 2**20  # published ones have a few thousand
MAX_SIZE = 2**31 - 1  # limit of any size: far more than a model has, and small enough to multiply
# The library's defaults for missing keys.
LIBRARYS_WINDOW, QWEN3_HEAD_DIM = 4096, 128
ROPE_THETA, NORM_EPS = {"mixtral": 1e6}, {"mixtral": 1e-5}  # for others 1e4 and 1e-6
ARCHITECTURES = {
    **{"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM"},
    **{"qwen3": "Qwen3ForCausalLM", "gpt2": "GPT2LMHeadModel"},
    **{"mixtral": "MixtralForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM"},
}
TANH_GELUS = ("gelu_new", "gelu_pytorch_tanh")  # one formula under two names
LIBRARYS_FULL_LAYERS = 28  # the library's default of max_window_layers for a Qwen with a window
DTYPE_NAMES: dict[Precision, str] = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
Config = Mapping[str, Any]


def read_config(folder: Path) -> dict[str, Any]:
    """Return config.json of `folder`. Raises ValueError naming the file if it is not valid."""
    try:
        return read_json_object(folder / CONFIG_FILE, MAX_CONFIG_BYTES)
    except FileNotFoundError as error:
        raise ValueError(f"{folder / CONFIG_FILE} cannot be read: {error.strerror}") from None


def read_shape(folder: Path, seq_length: int | None = None) -> ModelShape:
    """Return the shape of the model in `folder`, for `seq_length` or the longest sequence with full attention.

    Raises ValueError naming the file and the key for a model that this runtime does not compute as published.
    """
    config = read_config(folder)
    try:
        _refuse_other_computation(config)
        return (_gpt if config["model_type"] == "gpt2" else _rotary)(config, seq_length)
    except ValueError as error:
        raise ValueError(f"{folder / CONFIG_FILE}: {error}") from None


def _refuse_other_computation(config: Config) -> None:
    """Raise ValueError for a model of an unknown type, with quantized weights, or with its own code."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise ValueError(f"model_type {shown(kind)} is not one of {', '.join(ARCHITECTURES)}")
    if config.get("quantization_config") is not None:
        raise ValueError("quantization_config is set: its weights are quantized; use the model it was made from")
    own_code = config.get("auto_map")
    if isinstance(own_code, dict) and any("Model" in name for name in own_code):
        raise ValueError(f"auto_map is {shown(own_code)}: the model needs its own code, which is not run")


def _rotary(config: Config, seq_length: int | None) -> ModelShape:
    kind = config["model_type"]
    _refuse_unless(config, "hidden_act", "silu")
    _refuse_unless(config, "mlp_bias", False)
    if kind != "qwen2":  # the queries, keys and values of a qwen2 have biases in any case
        _refuse_unless(config, "attention_bias", False)
    window = _window(config)
    if seq_length is not None and window is not None and window < seq_length:
        raise ValueError(f"sliding_window {window} is below the job's seq_length {seq_length} and not supported")
    longest = _whole(config, "max_position_embeddings", 2048)
    heads, hidden = _whole(config, "num_attention_heads"), _whole(config, "hidden_size")
    head_dim = _whole(config, "head_dim", QWEN3_HEAD_DIM if kind == "qwen3" else hidden // heads)
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise ValueError(f"rope_scaling is {shown(rope)}, not keys and values")
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
        rope_theta=_number(rope if "rope_theta" in rope else config, "rope_theta", ROPE_THETA.get(kind, 10000.0)),
        rope_scaling=_scaling(rope),
        norm_eps=_number(config, "rms_norm_eps", NORM_EPS.get(kind, 1e-6)),
        head_dim=None if head_dim * heads == hidden else head_dim,
        qkv_bias=kind == "qwen2",
        qk_norm=kind in ("qwen3", "qwen3_moe"),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        **_experts(config),
    )


def _experts(config: Config) -> dict[str, Any]:
    """Return the keys of experts in a llama's shape; none without experts."""
    kind = config["model_type"]
    if kind not in ("mixtral", "qwen3_moe"):
        return {}
    # Version 5 of the library writes the number of experts of a Qwen under Mixtral's name.
    number = "num_experts" if kind == "qwen3_moe" and "num_experts" in config else "num_local_experts"
    for key, plain in (("router_jitter_noise", 0.0), ("decoder_sparse_step", 1), ("mlp_only_layers", [])):
        _refuse_unless(config, key, plain)
    normalized = config.get("norm_topk_prob", kind == "mixtral")
    if not isinstance(normalized, bool):
        raise ValueError(f"norm_topk_prob is {shown(normalized)}, not true or false")
    return {
        "experts": _whole(config, number),
        "experts_per_token": _whole(config, "num_experts_per_tok"),
        "expert_ffn": _whole(config, "intermediate_size" if kind == "mixtral" else "moe_intermediate_size"),
        "normalized_routing": kind == "mixtral" or normalized,
    }


def _gpt(config: Config, seq_length: int | None) -> ModelShape:
    activation = config.get("activation_function") or TANH_GELUS[0]
    if activation not in ("gelu", *TANH_GELUS):
        raise ValueError(f"activation_function is {shown(activation)}, not one of gelu, {', '.join(TANH_GELUS)}")
    for key, plain in (
        ("scale_attn_weights", True),
        ("scale_attn_by_inverse_layer_idx", False),
        ("add_cross_attention", False),
    ):
        _refuse_unless(config, key, plain)
    hidden, longest = _whole(config, "n_embd"), _whole(config, "n_positions")
    if seq_length is not None and seq_length > longest:
        raise ValueError(f"n_positions is {longest}, fewer than the job's seq_length {seq_length}")
    heads = _whole(config, "n_head")
    return ModelShape(
        num_layers=_whole(config, "n_layer"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=heads,
        ffn_hidden_size=_whole(config, "n_inner", 4 * hidden),
        vocab_size=_whole(config, "vocab_size"),
        seq_length=seq_length or longest,
        norm_eps=_number(config, "layer_norm_epsilon", 1e-5),
        tanh_gelu=activation != "gelu",
        tied_embeddings=bool(config.get("tie_word_embeddings", True)),
    )


def _scaling(rope: Config) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling("linear", _number(rope, "factor"))
    if kind == "llama3":
        low, high = _number(rope, "low_freq_factor"), _number(rope, "high_freq_factor")
        original = _whole(rope, "original_max_position_embeddings")
        return RopeScaling("llama3", _number(rope, "factor"), low, high, original)
    raise ValueError(f"rope scaling {shown(kind)} is not one of default, linear, llama3")


def _window(config: Config) -> int | None:
    """Return how many tokens attention looks back, None for all. A Qwen's counts only if a layer uses the window."""
    kind, layers = config["model_type"], _whole(config, "num_hidden_layers")
    given = config.get("sliding_window", None if kind == "mixtral" else LIBRARYS_WINDOW)
    is_used = kind in ("mistral", "mixtral") or (kind == "qwen3_moe" and bool(config.get("use_sliding_window", False)))
    if kind in ("qwen2", "qwen3") and config.get("use_sliding_window", False):
        first = config.get("max_window_layers", LIBRARYS_FULL_LAYERS)
        kinds = config.get("layer_types") or ["sliding_attention"] * (not isinstance(first, int) or first < layers)
        is_used = any(each != "full_attention" for each in kinds)
    return _whole({"sliding_window": given}, "sliding_window") if is_used and given is not None else None


def _refuse_unless(config: Config, key: str, plain: object) -> None:
    """Raise ValueError unless `key` is `plain` or missing."""
    value = config.get(key)
    if value is not None and value != plain:
        raise ValueError(f"{key} is {shown(value)}, but this runtime computes only {plain!r}")


def _whole(config: Config, key: str, default: int | None = None) -> int:
    value = config.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_SIZE:
        raise ValueError(f"{key} is {shown(value)}, not a whole number from 1 to {MAX_SIZE}")
    return value


def _number(config: Config, key: str, default: float | None = None) -> float:
    value = config.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
        raise ValueError(f"{key} is {shown(value)}, not a number above 0")
    return float(value)


def published_config(
    shape: ModelShape, value_type: Precision, begin: int | None = None, end: int | None = None
) -> dict[str, object]:
    """Return config.json of a model of `shape` with weights of `value_type`.

    `begin` and `end` are the tokens at the borders of documents. None is written as well, because the library's
    defaults are tokens of Llama 2. Raises ValueError if no published architecture is that model.
    """
    common = {
        "bos_token_id": begin,
        "eos_token_id": end,
        "vocab_size": shape.vocab_size,
        "tie_word_embeddings": shape.tied_embeddings,
        "torch_dtype": DTYPE_NAMES[value_type],
    }
    if shape.family == "gpt":
        return {**_gpt_config(shape), **common}
    if shape.qkv_bias and shape.qk_norm:
        raise ValueError("no published architecture has both qkv_bias and qk_norm")
    kind = "qwen2" if shape.qkv_bias else "qwen3" if shape.qk_norm else "llama"
    if shape.experts is not None:
        kind = "qwen3_moe" if shape.qk_norm else "mixtral"
        if shape.qkv_bias or not (shape.qk_norm or shape.normalized_routing):
            raise ValueError("no published model of experts has qkv_bias, or neither qk_norm nor normalized_routing")
    scaling = shape.rope_scaling
    reach = 1 if scaling is None or scaling.kind != "llama3" else round(scaling.factor * scaling.original_seq_length)
    return {
        "architectures": [ARCHITECTURES[kind]],
        "model_type": kind,
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "intermediate_size": shape.expert_size if kind == "mixtral" else shape.ffn_size,
        "max_position_embeddings": max(shape.seq_length, reach),
        "rope_theta": shape.rope_theta,
        "rope_scaling": None if scaling is None else _scaling_config(scaling),
        "rms_norm_eps": shape.norm_eps,
        "hidden_act": "silu",
        "attention_bias": False,
        **(_experts_config(shape) if shape.experts is not None else {}),
        **common,
    }


def _experts_config(shape: ModelShape) -> dict[str, object]:
    if not shape.qk_norm:
        return {"num_local_experts": shape.experts, "num_experts_per_tok": shape.experts_per_token}
    return {
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.experts_per_token,
        "moe_intermediate_size": shape.expert_size,
        "norm_topk_prob": shape.normalized_routing,
    }


def carried_config(config: Config, shape: ModelShape, value_type: Precision, num_positions: int) -> dict[str, object]:
    """Return config.json of a model of `shape` that was trained from the published one of `config`, of equal shape.

    Only keys that training changed are changed: the type of the weights, the architecture with a head, and the number
    of positions, if it grew; for a GPT-2 that is `num_positions`.
    """
    kept = dict(config)
    kept["architectures"] = [ARCHITECTURES[config["model_type"]]]
    kept["dtype" if "dtype" in config else "torch_dtype"] = DTYPE_NAMES[value_type]
    if shape.family == "gpt":
        return kept | {"n_positions": num_positions}
    reach = config.get("max_position_embeddings")
    return kept if reach is None else kept | {"max_position_embeddings": max(reach, shape.seq_length)}


def _scaling_config(scaling: RopeScaling) -> dict[str, object]:
    found: dict[str, object] = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind == "llama3":
        found["low_freq_factor"], found["high_freq_factor"] = scaling.low_freq_factor, scaling.high_freq_factor
        found["original_max_position_embeddings"] = scaling.original_seq_length
    return found


def _gpt_config(shape: ModelShape) -> dict[str, object]:
    if shape.query_size != shape.hidden_size:
        raise ValueError(f"every published gpt has heads of size hidden_size / num_heads (not {shape.head_size})")
    return {
        "architectures": [ARCHITECTURES["gpt2"]],
        "model_type": "gpt2",
        "n_embd": shape.hidden_size,
        "n_layer": shape.num_layers,
        "n_head": shape.num_heads,
        "n_inner": shape.ffn_size,
        "n_positions": shape.seq_length,
        "layer_norm_epsilon": shape.norm_eps,
        "activation_function": TANH_GELUS[0] if shape.tanh_gelu else "gelu",
    }
