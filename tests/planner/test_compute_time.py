"""Seconds of compute against numbers worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holmes_runtime.config.gpu_peaks import PEAK_FLOPS_PER_S
from holmes_runtime.config.model_shape import ModelShape
from planner.cost.collectives import PassTimes
from planner.cost.compute_time import SPLIT_FACTOR, head_s, layer_s, optimizer_s, split_factor
from planner.cost.counts import Execution
from planner.cost.gpu_speeds import (
    A100,
    ATTENTION_PART,
    H100,
    MATRIX_PART,
    MEMORY_PART,
    MEMORY_TB_PER_S,
    SPREAD,
    Speed,
    constant_speed,
    gpu_speed,
    is_published,
)
from tests.planner.fleets import bed_job

TINY = ModelShape(num_layers=2, hidden_size=4, num_heads=2, seq_length=6, vocab_size=10)
HOW = Execution(tp=1, dp=1, micro_batch_size=2, value_bytes=4, recompute="none")
# One layer's forward: 12 tokens through 192 weights, 2 x 12 x 192 = 4,608 FLOPs, and attention, 4 x 2 x 36 x 4 = 1,152.


def test_a_constant_speed_divides_flops() -> None:
    layer, head = layer_s(TINY, HOW, constant_speed(100)), head_s(TINY, HOW, constant_speed(100))
    assert (layer.forward_s, layer.backward_s) == pytest.approx((57.6, 115.2))
    # The head: 2 x 12 x 40 FLOPs.
    assert (head.forward_s, head.backward_s) == pytest.approx((9.6, 19.2))


def test_halves_of_a_backward_take_as_long_as_was_measured() -> None:
    overheads = {"action_s": 1e-3, "update_bytes_per_s": 1e9}
    measured = {"flops_per_s": 1e10, "overheads": {**overheads, "split_factor": 1.7}}
    emulated = {"emulate": {"forward_s_per_layer": 1.0, "backward_s_per_layer": 2.0}, "overheads": overheads}
    assert split_factor(bed_job(compute=measured)) == 1.7
    assert split_factor(bed_job(compute={"flops_per_s": 1e10, "overheads": overheads})) == SPLIT_FACTOR
    assert split_factor(bed_job(compute=emulated)) == 1.0


def test_full_recomputation_adds_a_forward() -> None:
    full = layer_s(TINY, HOW._replace(recompute="full"), constant_speed(100))
    assert full.backward_s == pytest.approx(115.2 + 57.6)


def test_selective_recomputation_adds_what_norms_and_activation_move() -> None:
    none, selective = (
        layer_s(TINY, HOW._replace(recompute=mode), Speed(100, memory_bytes_per_s=1000))
        for mode in ("none", "selective")
    )
    # 12 tokens x (4 x 4 + 2 x 16) values of 4 bytes at 1,000 bytes/s.
    assert selective.forward_s == none.forward_s
    assert selective.backward_s - none.backward_s == pytest.approx(12 * 48 * 4 / 1000)
    none, selective = (
        layer_s(TINY, HOW._replace(recompute=mode, tp=2, fused_operators=False), Speed(100, memory_bytes_per_s=1000))
        for mode in ("none", "selective")
    )
    assert selective.backward_s - none.backward_s == pytest.approx(12 * 24 * 4 / 1000)


def test_software_without_a_fused_kernel_repeats_its_attention_core() -> None:
    older = HOW._replace(recompute="selective", fused_attention=False)
    assert layer_s(TINY, older, constant_speed(100)).backward_s == pytest.approx(115.2 + 11.52)


def test_small_products_are_slow() -> None:
    # At 12 tokens x 4 = 48 half the rate: the matrices' 4,608 FLOPs take twice as long, attention's 1,152 do not.
    assert layer_s(TINY, HOW, Speed(100, half_size=48)).forward_s == pytest.approx(2 * 46.08 + 11.52)


def test_memory_is_an_addition() -> None:
    # 12 tokens x (10 x 4 + 2 x 16) values of 4 bytes at 1,000 bytes/s; the backward adds 12 bytes for 244 parameters.
    seconds = layer_s(TINY, HOW, Speed(100, memory_bytes_per_s=1000))
    assert seconds.forward_s == pytest.approx(57.6 + 3.456)
    assert seconds.backward_s == pytest.approx(2 * seconds.forward_s + 12 * 244 / 1000)


def test_scores_outside_a_fused_kernel_move_through_memory() -> None:
    fused, unfused = (
        layer_s(TINY, HOW._replace(fused_attention=one), Speed(100, memory_bytes_per_s=1000)) for one in (True, False)
    )
    # 2 samples x 2 heads x 36 scores, six passes of 4 bytes.
    assert unfused.forward_s - fused.forward_s == pytest.approx(144 * 6 * 4 / 1000)


def test_no_forward_is_shorter_than_its_launch_collectives_included() -> None:
    assert layer_s(TINY, HOW, Speed(1e9, launch_s=0.5)).forward_s == 0.5
    assert layer_s(TINY, HOW, Speed(1e9, launch_s=0.5), PassTimes(0.2, 0.2)).forward_s == pytest.approx(0.3)


def test_tensor_shards_share_the_work() -> None:
    assert layer_s(TINY, HOW._replace(tp=2), constant_speed(100)).forward_s == pytest.approx(28.8)


def test_optimizer_moves_its_part_of_the_states() -> None:
    # 1,000 parameters over four replicas, 32 bytes each in fp32.
    assert optimizer_s(1000, HOW._replace(dp=4), Speed(1, memory_bytes_per_s=1000)) == 8
    assert optimizer_s(1000, HOW, constant_speed(1, 2000)) == 16
    assert optimizer_s(1000, HOW, constant_speed(1)) == 0


def test_speeds_are_found_by_the_gpu_s_name_and_precision() -> None:
    assert gpu_speed("NVIDIA A100-SXM4-80GB", "bf16") == gpu_speed("NVIDIA A100-SXM4-80GB", "fp16") == A100
    assert gpu_speed("NVIDIA A100-SXM4-40GB", "bf16") == replace(A100, memory_bytes_per_s=MEMORY_PART * 1.555e12)
    assert gpu_speed("NVIDIA A100-PCIE-40GB", "bf16") == gpu_speed("NVIDIA A100-SXM4-40GB", "bf16")
    assert gpu_speed("Tesla T4", "bf16") is None
    assert gpu_speed("Tesla T4", "fp16") is not None
    assert gpu_speed("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "bf16") is None
    assert gpu_speed("NVIDIA A900", "bf16") is None


@pytest.mark.parametrize("product", PEAK_FLOPS_PER_S)
def test_every_product_with_a_peak_has_a_speed_below_its_data_sheet(product: str) -> None:
    for value_type, peak in PEAK_FLOPS_PER_S[product].items():
        speed = gpu_speed(f"NVIDIA {product}", value_type)
        assert speed is not None
        assert speed.memory_bytes_per_s is not None
        if not is_published(product, value_type):
            assert 0 < speed.matrix_flops_per_s < peak
        assert speed.memory_bytes_per_s < MEMORY_TB_PER_S[product] * 1e12


def test_what_is_read_from_a_data_sheet_lies_between_what_is_published() -> None:
    for part, of in ((MATRIX_PART, "matrix_flops_per_s"), (ATTENTION_PART, "attention_flops_per_s")):
        reached = [getattr(A100, of) / 312e12, getattr(H100, of) / 989e12]
        assert min(reached) < part < max(reached)
        assert all(abs(part / each - 1) < SPREAD for each in reached)
