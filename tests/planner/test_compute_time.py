"""Seconds of compute against numbers worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holmes_core.records.job import Model
from planner.cost.collectives import PassTimes
from planner.cost.compute_time import head_s, layer_s, optimizer_s
from planner.cost.counts import Execution
from planner.cost.gpu_speeds import A100, Speed, constant_speed, gpu_speed

TINY = Model(num_layers=2, hidden_size=4, num_heads=2, seq_length=6, vocab_size=10)
HOW = Execution(tp=1, dp=1, micro_batch_size=2, value_bytes=4, recompute="none")
# One layer's forward: 12 tokens through 192 weights, 2 x 12 x 192 = 4,608 FLOPs, and attention, 4 x 2 x 36 x 4 = 1,152.


def test_a_constant_speed_divides_flops() -> None:
    layer, head = layer_s(TINY, HOW, constant_speed(100)), head_s(TINY, HOW, constant_speed(100))
    assert (layer.forward_s, layer.backward_s) == pytest.approx((57.6, 115.2))
    # The head: 2 x 12 x 40 FLOPs.
    assert (head.forward_s, head.backward_s) == pytest.approx((9.6, 19.2))


def test_recomputation_adds_a_forward_or_the_attention_core() -> None:
    full = layer_s(TINY, replace(HOW, recompute="full"), constant_speed(100))
    selective = layer_s(TINY, replace(HOW, recompute="selective"), constant_speed(100))
    assert full.backward_s == pytest.approx(115.2 + 57.6)
    assert selective.backward_s == pytest.approx(115.2 + 11.52)


def test_small_products_are_slow() -> None:
    # At 12 tokens x 4 = 48 half the rate: the matrices' 4,608 FLOPs take twice as long, attention's 1,152 do not.
    assert layer_s(TINY, HOW, Speed(100, half_size=48)).forward_s == pytest.approx(2 * 46.08 + 11.52)


def test_memory_is_an_addition() -> None:
    # 12 tokens x (10 x 4 + 2 x 16) values of 4 bytes at 1,000 bytes/s; the backward adds 8 bytes for 244 parameters.
    seconds = layer_s(TINY, HOW, Speed(100, memory_bytes_per_s=1000))
    assert seconds.forward_s == pytest.approx(57.6 + 3.456)
    assert seconds.backward_s == pytest.approx(2 * seconds.forward_s + 8 * 244 / 1000)


def test_scores_outside_a_fused_kernel_move_through_memory() -> None:
    fused, unfused = (
        layer_s(TINY, replace(HOW, fused_attention=one), Speed(100, memory_bytes_per_s=1000)) for one in (True, False)
    )
    # 2 samples x 2 heads x 36 scores, six passes of 4 bytes.
    assert unfused.forward_s - fused.forward_s == pytest.approx(144 * 6 * 4 / 1000)


def test_no_forward_is_shorter_than_its_launch_collectives_included() -> None:
    assert layer_s(TINY, HOW, Speed(1e9, launch_s=0.5)).forward_s == 0.5
    assert layer_s(TINY, HOW, Speed(1e9, launch_s=0.5), PassTimes(0.2, 0.2)).forward_s == pytest.approx(0.3)


def test_tensor_shards_share_the_work() -> None:
    assert layer_s(TINY, replace(HOW, tp=2), constant_speed(100)).forward_s == pytest.approx(28.8)


def test_optimizer_moves_its_part_of_the_states() -> None:
    # 1,000 parameters over four replicas, 32 bytes each in fp32.
    assert optimizer_s(1000, replace(HOW, dp=4), Speed(1, memory_bytes_per_s=1000)) == 8
    assert optimizer_s(1000, HOW, constant_speed(1, 2000)) == 16
    assert optimizer_s(1000, HOW, constant_speed(1)) == 0


def test_speeds_are_found_by_the_gpu_s_name_and_precision() -> None:
    assert gpu_speed("NVIDIA A100-SXM4-80GB", 2) == A100
    assert gpu_speed("NVIDIA A100-SXM4-80GB", 4) is None
    assert gpu_speed("Tesla T4", 2) is None
