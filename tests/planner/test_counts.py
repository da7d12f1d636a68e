"""Cost terms against numbers worked by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from holmes_core.records.job import Model
from planner.cost import counts as cost

TINY = Model(num_layers=2, hidden_size=4, num_heads=2, seq_length=6, vocab_size=10)


def execution_of(**changes: Any) -> cost.Execution:
    """One tasklet in bf16, one sample a micro-batch, with `changes`."""
    alone = cost.Execution(tp=1, dp=1, micro_batch_size=1, value_bytes=2, recompute="none")
    return replace(alone, **changes)


def test_an_edge_carries_a_shard_of_the_hidden_states() -> None:
    # 3 samples x 6 x 4 values of 2 bytes, halved.
    assert cost.edge_bytes(TINY, execution_of(tp=2, micro_batch_size=3)) == 72


def test_a_codec_packs_that_shard_in_blocks() -> None:
    # 36 values in one block of 64: a byte each or half of one, and 2 bytes of scale.
    assert cost.edge_bytes(TINY, execution_of(tp=2, micro_batch_size=3), "int8") == 66
    assert cost.edge_bytes(TINY, execution_of(tp=2, micro_batch_size=3), "int4") == 34
    assert cost.edge_bytes(TINY, execution_of(value_bytes=4), "bf16") == 48


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
