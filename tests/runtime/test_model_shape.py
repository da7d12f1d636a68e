"""Parameters and FLOPs by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import TypeAdapter

from holmes_core.records.model import PRESETS, Model
from holmes_runtime.config.model_shape import (
    ModelShape,
    attention_flops,
    embedding_parameters,
    head_flops,
    head_parameters,
    layer_flops,
    layer_parameters,
    stage_parameters,
    step_flops,
)

TINY = ModelShape(num_layers=2, hidden_size=4, num_heads=2, seq_length=6, vocab_size=10)
LLAMA = ModelShape(
    family="llama",
    num_layers=2,
    hidden_size=4,
    num_heads=2,
    num_kv_heads=1,
    ffn_hidden_size=5,
    seq_length=6,
    vocab_size=10,
)


def test_parameters_by_hand() -> None:
    assert layer_parameters(TINY) == 12 * 16 + 13 * 4
    assert embedding_parameters(TINY) == 10 * 4 + 6 * 4
    assert head_parameters(TINY) == 4 * 10 + 2 * 4
    assert stage_parameters(TINY, 2, True, True) == 2 * 244 + 64 + 48
    assert stage_parameters(TINY, 2, False, False) == 488


def test_llama_parameters_by_hand() -> None:
    # Queries and projection 2 x 16, keys and values 2 x 4 x 2, SwiGLU 3 x 4 x 5, norms 2 x 4.
    assert layer_parameters(LLAMA) == 32 + 16 + 60 + 8
    assert embedding_parameters(LLAMA) == 40
    assert head_parameters(LLAMA) == 40 + 4


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ({"preset": "llama-3.2-1b"}, 1_235_814_400),
        ({"preset": "llama-3-8b"}, 8_030_261_248),
        (
            {
                **{"num_layers": 28, "hidden_size": 3584, "num_heads": 28, "num_kv_heads": 4, "qkv_bias": True},
                **{"ffn_hidden_size": 18944, "vocab_size": 152064, "norm_eps": 1e-6},
            },
            7_615_616_512,
        ),
        (
            {
                **{"num_layers": 36, "hidden_size": 4096, "num_heads": 32, "num_kv_heads": 8, "qk_norm": True},
                **{"ffn_hidden_size": 12288, "vocab_size": 151936, "head_dim": 128},
            },
            8_190_735_360,
        ),
        (
            {
                **{"num_layers": 40, "hidden_size": 5120, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128},
                **{"ffn_hidden_size": 14336, "vocab_size": 131072},
            },
            12_247_782_400,
        ),
    ],
    ids=["Llama 3.2 1B", "Llama 3 8B", "Qwen 2.5 7B", "Qwen 3 8B", "Mistral Nemo 12B"],
)
def test_a_published_model_has_as_many_parameters_as_published(model: dict[str, Any], parameters: int) -> None:
    counted = TypeAdapter(Model).validate_python({"family": "llama", "seq_length": 2048, **model})

    assert stage_parameters(counted, counted.num_layers, True, True) == parameters


def test_a_tied_table_is_held_once_on_one_stage_and_twice_on_two() -> None:
    tied = replace(TINY, tied_embeddings=True)

    assert stage_parameters(tied, 2, True, True) == stage_parameters(TINY, 2, True, True) - 10 * 4
    for ends in ((True, False), (False, True)):
        assert stage_parameters(tied, 1, *ends) == stage_parameters(TINY, 1, *ends)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"family": "gpt", "qkv_bias": True}, "qkv_bias: must not be set in a gpt"),
        ({"family": "gpt", "rope_scaling": {"kind": "linear", "factor": 2}}, "rope_scaling: must not be set in a gpt"),
        ({"head_dim": 5}, "must make the size of a head, 5, even, for rotation"),
        ({"rope_scaling": {"kind": "yarn", "factor": 2}}, "llama3"),
        ({"rope_scaling": {"kind": "llama3", "factor": 2, "high_freq_factor": 1}}, "must be above low_freq_factor 1.0"),
        ({"tied_embeddings": True, "factory": "own.py:build"}, "the two copies would drift apart"),
    ],
)
def test_a_shape_that_no_model_has_is_refused_by_its_key(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        TypeAdapter(ModelShape).validate_python({**vars(LLAMA), **wrong, "num_kv_heads": 2})


def test_shards_hold_their_part_of_matrices_and_all_of_norms() -> None:
    # 192 weights and 7 x 4 biases of columns halved; norms and biases of sums, 6 x 4, whole.
    assert layer_parameters(TINY, 2) == (192 + 28) // 2 + 24
    assert embedding_parameters(TINY, 2) == 20 + 24
    assert head_parameters(TINY, 2) == 20 + 8


def test_flops_of_a_forward_by_hand() -> None:
    # 24 x 2 x 6 x 16 = 4608; times 1 + 6 / 24 = 1.25
    assert layer_flops(TINY, 2) == 5760
    assert attention_flops(TINY, 2) == 4 * 2 * 36 * 4
    assert head_flops(TINY, 2) == 2 * 2 * 6 * 4 * 10


def test_a_step_is_three_forwards_of_all_layers_and_the_head() -> None:
    assert step_flops(TINY, 8) == 3 * (2 * layer_flops(TINY, 8) + head_flops(TINY, 8))


def test_flops_of_a_step_agree_with_the_published_formula() -> None:
    # Megatron-LM, SC 2021: 72 B s L h^2 (1 + s/6h + V/12Lh) without recomputation, V1's 7.5B shape.
    model = ModelShape(num_layers=36, hidden_size=4096, num_heads=32, seq_length=2048, vocab_size=51200)
    h, s = 4096, 2048

    published = 72 * 4 * s * 36 * h**2 * (1 + s / (6 * h) + 51200 / (12 * 36 * h))

    assert step_flops(model, 4) == pytest.approx(published)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_shape_in_full_is_counted_like_the_one_of_job_yaml(preset: str) -> None:
    shape = ModelShape(**PRESETS[preset])

    assert shape.in_full.in_full == shape.in_full
    assert stage_parameters(shape, 3, True, True, 2) == stage_parameters(shape.in_full, 3, True, True, 2)
    assert layer_flops(shape, 3) == layer_flops(shape.in_full, 3)
