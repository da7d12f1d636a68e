"""Cost terms against numbers worked by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holmes_core.records.job import Model, Recompute
from holmes_runtime.config.schedule import ScheduleName, make_schedule, most_in_flight
from planner.cost import counts as cost

TINY = Model(num_layers=2, hidden_size=4, num_heads=2, seq_length=6, vocab_size=10)
LLAMA = Model(
    family="llama", num_layers=2, hidden_size=4, num_heads=2, num_kv_heads=1, ffn_hidden_size=5, seq_length=6,
    vocab_size=10,
)  # fmt: skip


def execution_of(**changes: Any) -> cost.Execution:
    """One tasklet in bf16, one sample a micro-batch, with `changes`."""
    alone = cost.Execution(tp=1, dp=1, micro_batch_size=1, value_bytes=2, recompute="none")
    return replace(alone, **changes)


def test_layer_flops_by_hand() -> None:
    # 72 x 2 x 6 x 16 = 13,824; times 1 + 6 / 24 = 1.25
    assert cost.layer_flops(TINY, 2) == 17_280


def test_head_flops_by_hand() -> None:
    assert cost.head_flops(TINY, 2) == 6 * 2 * 6 * 4 * 10


def test_whole_model_flops_agree_with_the_published_formula() -> None:
    # Megatron-LM, SC 2021: 72 B s L h^2 (1 + s/6h + V/12Lh) without recomputation, V1's 7.5B shape.
    model = Model(num_layers=36, hidden_size=4096, num_heads=32, seq_length=2048, vocab_size=51200)
    parts = 36 * cost.layer_flops(model, 4) + cost.head_flops(model, 4)
    h, s = 4096, 2048
    assert parts == pytest.approx(72 * 4 * s * 36 * h**2 * (1 + s / (6 * h) + 51200 / (12 * 36 * h)))


def test_parameters_by_hand() -> None:
    assert cost.layer_parameters(TINY) == 12 * 16 + 13 * 4
    assert cost.embedding_parameters(TINY) == 10 * 4 + 6 * 4
    assert cost.head_parameters(TINY) == 4 * 10 + 2 * 4
    assert cost.stage_parameters(TINY, 2, True, True) == 2 * 244 + 64 + 48
    assert cost.stage_parameters(TINY, 2, False, False) == 488


def test_llama_parameters_by_hand() -> None:
    # Queries and projection 2 x 16, keys and values 2 x 4 x 2, SwiGLU 3 x 4 x 5, norms 2 x 4.
    assert cost.layer_parameters(LLAMA) == 32 + 16 + 60 + 8
    assert cost.embedding_parameters(LLAMA) == 40
    assert cost.head_parameters(LLAMA) == 40 + 4


def test_shards_hold_their_part_of_matrices_and_all_of_norms() -> None:
    # 192 weights and 7 x 4 biases of columns halved; norms and biases of sums, 6 x 4, whole.
    assert cost.layer_parameters(TINY, 2) == (192 + 28) // 2 + 24
    assert cost.embedding_parameters(TINY, 2) == 20 + 24
    assert cost.head_parameters(TINY, 2) == 20 + 8


@pytest.mark.parametrize(("recompute", "factor"), [("none", 3), ("full", 4)])
def test_recomputation_runs_a_forward_more(recompute: Recompute, factor: int) -> None:
    assert cost.layer_flops(TINY, 2, recompute) == factor * cost.layer_forward_flops(TINY, 2)


def test_selective_recomputation_runs_attention_again() -> None:
    assert cost.layer_flops(TINY, 2, "selective") - cost.layer_flops(TINY, 2) == 4 * 2 * 36 * 4


def test_an_edge_carries_a_shard_of_the_hidden_states() -> None:
    # 3 samples x 6 x 4 values of 2 bytes, halved.
    assert cost.edge_bytes(TINY, execution_of(tp=2, micro_batch_size=3)) == 72


def test_activations_by_hand() -> None:
    # 6 tokens, 2 bytes: 2 h whole; 3 h, q, k, v 3 h and the MLP 2 x 16 sharded.
    assert cost.layer_activation_bytes(TINY, execution_of()) == 6 * 2 * (8 + 24 + 32)
    assert cost.layer_activation_bytes(TINY, execution_of(tp=2)) == 6 * 2 * (8 + 28)
    assert cost.layer_activation_bytes(TINY, execution_of(recompute="full")) == 6 * 2 * 4
    # Without sequence parallelism the inputs of norms are whole too.
    assert cost.layer_activation_bytes(TINY, execution_of(tp=2, sequence_parallel=False)) == 6 * 2 * (16 + 24)


def test_states_by_hand() -> None:
    # bf16: weight 2, sum 4; a fourth of master 4, moments 8 and reduced gradients 8.
    assert cost.state_bytes(100, execution_of(dp=4)) == 600 + 500
    # fp32 alone: weight 4, sum 4, moments 8.
    assert cost.state_bytes(100, execution_of(value_bytes=4)) == 1600


def test_memory_by_hand() -> None:
    # Last rank: 244 + 48 parameters of 18 bytes; two micro-batches of 768 bytes; 6 x 10 logits of 10 bytes; reserve.
    execution = execution_of(reserve_bytes=1000)
    assert cost.memory_bytes(TINY, execution, [1], [2], False, True) == 18 * 292 + 2 * 768 + 600 + 1000
    # Full recomputation holds inputs, and one layer while it is built again.
    full = execution_of(recompute="full")
    assert cost.memory_bytes(TINY, full, [2], [3], False, False) == 18 * 488 + 6 * 48 + 768 - 48


def test_memory_of_chunks_adds_up() -> None:
    whole = cost.memory_bytes(TINY, execution_of(), [2], [3], True, False)
    assert cost.memory_bytes(TINY, execution_of(), [1, 1], [4, 2], True, False) == whole


@pytest.mark.parametrize("num_microbatches", [1, 2, 3, 4, 6, 12])
@pytest.mark.parametrize("pp", [1, 2, 3, 4])
def test_in_flight_is_what_the_schedules_hold(pp: int, num_microbatches: int) -> None:
    extra = tuple(range(1, pp))
    cases: list[tuple[ScheduleName, int, tuple[int, ...]]] = [
        ("gpipe", 1, ()), ("1f1b", 1, ()), ("eager", 1, extra), ("zero-bubble", 1, ()),
    ]  # fmt: skip
    if num_microbatches % pp == 0:
        cases += [("interleaved", 2, ()), ("interleaved", 3, ())]
    for name, chunks, more in cases:
        for rank, actions in make_schedule(name, pp, num_microbatches, chunks, more).items():
            held = cost.microbatches_in_flight(name, pp, num_microbatches, rank, chunks, more)
            assert dict(zip(range(rank, pp * chunks, pp), held, strict=True)) == most_in_flight(actions)
