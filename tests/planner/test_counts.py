"""Cost terms against numbers worked by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from holmes_runtime.config.model_shape import ModelShape, stage_parameters
from planner.cost import counts as cost
from planner.cost.memory_margin import MIB, reserve_bytes
from planner.cost.rank_memory import memory_bytes
from tests.planner.fleets import bed_job, gpt_7b

TINY = ModelShape(num_layers=2, hidden_size=4, num_heads=2, seq_length=6, vocab_size=10)


def execution_of(**changes: Any) -> cost.Execution:
    """One tasklet in bf16, one sample a micro-batch, with `changes`."""
    alone = cost.Execution(tp=1, dp=1, micro_batch_size=1, value_bytes=2, recompute="none")
    return alone._replace(**changes)


def test_an_edge_carries_a_shard_of_the_hidden_states() -> None:
    # 3 samples x 6 x 4 values of 2 bytes, halved.
    assert cost.edge_bytes(TINY, execution_of(tp=2, micro_batch_size=3)) == 72


def test_a_codec_packs_that_shard_in_blocks() -> None:
    # 36 values in one block of 64: a byte each or half of one, and 2 bytes of scale.
    assert cost.edge_bytes(TINY, execution_of(tp=2, micro_batch_size=3), "int8") == 66
    assert cost.edge_bytes(TINY, execution_of(tp=2, micro_batch_size=3), "int4") == 34
    assert cost.edge_bytes(TINY, execution_of(value_bytes=4), "bf16") == 48


def test_activations_by_hand() -> None:
    # 6 tokens, 2 bytes: 5 h, q, k, v 3 h and the MLP 2 x 16, all sharded.
    assert cost.layer_activation_bytes(TINY, execution_of()) == 6 * 2 * (32 + 32)
    assert cost.layer_activation_bytes(TINY, execution_of(tp=2)) == 6 * 2 * 32
    assert cost.layer_activation_bytes(TINY, execution_of(recompute="full")) == 6 * 2 * 4
    # Selective keeps 3 h, q, k, v 3 h and half of the MLP's inside.
    assert cost.layer_activation_bytes(TINY, execution_of(recompute="selective")) == 6 * 2 * (24 + 16)
    two = execution_of(recompute="selective", tp=2)
    assert cost.layer_activation_bytes(TINY, two._replace(fused_operators=False)) == 6 * 2 * 20
    # Compiled, tensor shards keep what the compiler likes.
    assert cost.layer_activation_bytes(TINY, two) == 6 * 2 * 32
    # Without sequence parallelism the inputs of norms are whole too.
    assert cost.layer_activation_bytes(TINY, execution_of(tp=2, sequence_parallel=False)) == 6 * 2 * (16 + 24)


def test_states_by_hand() -> None:
    # bf16: weight 2, sum 4; a fourth of master 4, moments 8 and reduced gradients 8.
    assert cost.state_bytes(100, execution_of(dp=4)) == 600 + 500
    # fp32 alone: weight 4, sum 4, moments 8.
    assert cost.state_bytes(100, execution_of(value_bytes=4)) == 1600


def test_memory_by_hand() -> None:
    # Last rank: 244 + 48 parameters of 18 bytes; two micro-batches of 768 bytes; 60 logits of 2 bytes and twice of 4,
    # more than a backward's 6 x (16 + 3 x 4) values of 2 bytes; reserve.
    execution = execution_of(reserve_bytes=1000)
    assert memory_bytes(TINY, execution, [1], [2], False, True) == 18 * 292 + 2 * 768 + 600 + 1000
    # Full recomputation holds inputs, and one layer while it is built again and has its backward.
    full = execution_of(recompute="full")
    assert memory_bytes(TINY, full, [2], [3], False, False) == 18 * 488 + 6 * 48 + 768 - 48 + 336
    # Selective makes 16 values a token again at a time.
    selective = execution_of(recompute="selective")
    assert memory_bytes(TINY, selective, [2], [3], False, False) == 18 * 488 + 6 * 480 + 6 * 2 * 16 + 336


def test_a_mask_is_kept_once_a_micro_batch_and_repeats_keys_and_values() -> None:
    masked, unmasked = execution_of(masked=True, micro_batch_size=2), execution_of(micro_batch_size=2)
    grouped = replace(TINY, family="llama", num_kv_heads=1)

    # 2 samples x 6 x 6 scores of 2 bytes, for each of three micro-batches; a gpt has as many keys as queries.
    more = [memory_bytes(TINY, each, [2], [3], False, False) for each in (unmasked, masked)]
    assert more[1] - more[0] == 3 * 144
    # 12 tokens x 2 bytes: keys and values of 4 values each, not 2.
    assert cost.layer_activation_bytes(grouped, masked) - cost.layer_activation_bytes(grouped, unmasked) == 12 * 2 * 4


def test_tensor_shards_hold_one_gathered_sequence_and_its_gradient() -> None:
    # 244 / 2 parameters, but for norms and biases, of 18 bytes; no micro-batch; twice 6 x 4 values of 2 bytes, and
    # half of a backward's 6 x 28.
    execution = execution_of(tp=2)
    parameters = stage_parameters(TINY, 1, False, False, 2)
    assert memory_bytes(TINY, execution, [1], [0], False, False) == 18 * parameters + 2 * 6 * 4 * 2 + 168


def test_memory_of_chunks_adds_up() -> None:
    whole = memory_bytes(TINY, execution_of(), [2], [3], True, False)
    assert memory_bytes(TINY, execution_of(), [1, 1], [4, 2], True, False) == whole


def test_margin_comes_on_what_training_takes_and_not_on_the_reserve() -> None:
    plain = memory_bytes(TINY, execution_of(), [1], [2], False, True)
    kept = memory_bytes(TINY, execution_of(memory_margin=0.5, reserve_bytes=1000), [1], [2], False, True)
    assert kept == 1.5 * plain + 1000


def test_what_cuda_and_nccl_keep_grows_with_the_kinds_of_groups() -> None:
    alone, replicas, pipeline = (reserve_bytes(gpt_7b(), *degrees) for degrees in ((1, 1, 1), (1, 1, 2), (1, 2, 1)))
    assert alone == 512 * MIB
    # 16 channels, two neighbours each: 4 MiB + 4,915,200 + 524,288 bytes. 4 edges of 16 x 4 MiB.
    assert replicas - alone == 32 * (4 * MIB + 4_915_200 + 524_288)
    assert pipeline - alone == 256 * MIB
    assert reserve_bytes(gpt_7b(), 8, 2, 2) == alone + 2 * (replicas - alone) + 256 * MIB
    assert reserve_bytes(bed_job(), 8, 2, 2) == 0
