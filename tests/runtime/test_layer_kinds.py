"""Mixtures of experts and other attention: parameters and FLOPs, by hand and as published."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter

from holmes_core.records.model import Model
from holmes_runtime.config.layer_kinds import LatentAttention, LinearAttention
from holmes_runtime.config.model_shape import (
    MLP_MATRICES,
    ModelShape,
    attention_flops,
    expert_parameters,
    layer_parameters,
    matrix_flops,
    stage_parameters,
    step_flops,
)

SHAPES = Path(__file__).parents[3] / "shared" / "moe" / "shapes.yaml"
SIZES = (
    *("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "ffn_hidden_size", "vocab_size"),
    *("experts", "experts_per_token", "expert_ffn", "shared_experts", "first_dense_layers"),
)
# Queries and keys of 4, values of 4: h (2 q + 2 k) is 64. An expert has 3 x 4 x 3 = 36, the dense layer 3 x 4 x 5 = 60.
TINY = ModelShape(
    family="llama", num_layers=3, hidden_size=4, num_heads=2, ffn_hidden_size=5, seq_length=6, vocab_size=10,
    experts=8, experts_per_token=2, expert_ffn=3, shared_experts=1, first_dense_layers=1,
)  # fmt: skip


@cache
def published() -> dict[str, dict[str, Any]]:
    """The published shapes by name, with what was counted of them."""
    return {shape["name"]: shape for shape in yaml.safe_load(SHAPES.read_text())} if SHAPES.exists() else {}


def model_of(shape: dict[str, Any]) -> ModelShape:
    """The shape as job.yaml has it."""
    latent = linear = None
    if shape.get("attention") == "mla":
        keys = ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        latent = LatentAttention(*(shape[key] for key in keys))
    if "linear_attention" in shape:
        keys = ("linear_attention_layers", "linear_key_heads", "linear_value_heads", "linear_head_dim", "linear_conv")
        linear = LinearAttention(*(shape[key] for key in keys))
    return ModelShape(
        family="llama", seq_length=4096, latent_attention=latent, linear_attention=linear,
        attention_gate=shape.get("output_gate", False), sliding_window=shape.get("sliding_window"),
        **{key: shape[key] for key in SIZES},
    )  # fmt: skip


def active_parameters(model: ModelShape) -> int:
    """The parameters of the whole model that compute one token: all but the experts not chosen for it."""
    idle = expert_parameters(model) - MLP_MATRICES[model.family] * model.hidden_size * model.routed_size
    whole = stage_parameters(model, model.num_layers, True, True)
    return whole - (model.num_layers - model.first_dense_layers) * idle * (model.experts is not None)


@pytest.mark.parametrize("name", published() or [pytest.param("", marks=pytest.mark.skip(reason="no ../shared"))])
def test_a_published_model_has_as_many_parameters_and_flops_as_counted(name: str) -> None:
    model, counted = model_of(published()[name]), published()[name]["counted"]
    norms, table = (2 * model.num_layers + 1) * model.hidden_size, model.vocab_size * model.hidden_size

    total, active = stage_parameters(model, model.num_layers, True, True), active_parameters(model)

    assert round((total - norms) / 1e9, 2) == counted["total_b"]
    assert round((active - norms) / 1e9, 2) == counted["active_b"]
    assert round((active - norms - table) / 1e9, 2) == counted["active_without_embedding_b"]
    core = 3 * model.num_layers * attention_flops(model, 1)
    assert step_flops(model, 1) - core == pytest.approx(6 * 4096 * (active - norms - table), rel=1e-4)


@pytest.mark.parametrize(
    ("preset", "name"),
    [
        ("mixtral-8x7b", "Mixtral-8x7B"),
        ("qwen3-30b-a3b", "Qwen3-30B-A3B"),
        ("qwen3-235b-a22b", "Qwen3-235B-A22B"),
        ("gpt-oss-120b", "GPT-OSS-120B"),
        ("deepseek-v3-like", "DeepSeek-V3"),
    ],
)
@pytest.mark.skipif(not SHAPES.exists(), reason="no ../shared")
def test_a_preset_is_the_published_shape(preset: str, name: str) -> None:
    model, shape = TypeAdapter(Model).validate_python({"preset": preset}), model_of(published()[name])

    for count in (matrix_flops, attention_flops):
        assert count(model, 1) == count(shape, 1)
    assert active_parameters(model) == pytest.approx(active_parameters(shape), rel=1e-2)


def test_parameters_of_experts_by_hand() -> None:
    # Attention 64, router 4 x 8, eight experts and a shared one of 36, norms 2 x 4; dense: 64 + 60 + 8.
    assert layer_parameters(TINY) == 64 + 32 + 9 * 36 + 8
    assert layer_parameters(TINY.dense) == 64 + 60 + 8
    assert stage_parameters(TINY, 3, True, True) == 2 * 428 + 132 + 40 + 44
    assert stage_parameters(TINY, 2, False, False) == 2 * 428
    assert active_parameters(TINY) == stage_parameters(TINY, 3, True, True) - 2 * 6 * 36


def test_experts_are_in_parts_by_ep_alone_and_all_else_but_the_router_by_tp() -> None:
    assert expert_parameters(TINY, ep=4) == 2 * 36
    assert layer_parameters(TINY, tp=2, ep=4) == (64 + 36) // 2 + 32 + 2 * 36 + 8


def test_a_first_stage_of_few_layers_counts_its_own_dense_ones() -> None:
    deep = replace(TINY, num_layers=6, first_dense_layers=4)

    assert stage_parameters(deep, 2, True, False) == 2 * 132 + 40
    assert stage_parameters(deep, 2, False, False) == 2 * 428


def test_flops_of_experts_by_hand() -> None:
    # A token meets attention, the router, two experts and the shared one.
    assert matrix_flops(TINY, 1) == 2 * 6 * (64 + 32 + 3 * 36)


def test_scores_of_a_window_and_of_linear_layers_are_few() -> None:
    full = attention_flops(TINY, 1)
    assert full == 4 * 36 * 4
    assert attention_flops(replace(TINY, sliding_window=2), 1) == 4 * 6 * 4 * (6 + 2) / 2
    linear = LinearAttention(layers=1, key_heads=1, value_heads=2, head_dim=2)
    assert attention_flops(replace(TINY, linear_attention=linear), 1) == pytest.approx(full * 2 / 3 + 6 * 8 * 8 / 3)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"experts_per_token": None}, "experts_per_token: must be set with experts"),
        ({"experts_per_token": 9}, "experts_per_token: must be at most experts 8"),
        ({"experts": None}, "experts_per_token: must be at most experts None"),
        ({"experts": None, "experts_per_token": None}, "expert_ffn: must not be set without experts"),
        ({"first_dense_layers": 3}, "first_dense_layers: must be less than num_layers 3"),
        ({"family": "gpt"}, "experts: must not be set in a gpt"),
        ({"linear_attention": {"layers": 4, "key_heads": 1, "value_heads": 1, "head_dim": 2}}, "at most num_layers 3"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        TypeAdapter(ModelShape).validate_python({**vars(TINY), **wrong})
