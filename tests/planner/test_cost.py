"""Cost terms against numbers worked by hand."""

from __future__ import annotations

import pytest

from holmes_core.job import Model
from planner import cost
from planner.gpu_speeds import achieved_flops_per_s

TINY = Model(num_layers=2, hidden_size=4, num_heads=2, seq_length=6, vocab_size=10)


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


def test_a_message_is_four_bytes_a_value() -> None:
    assert cost.message_bytes(TINY, 3) == 4 * 3 * 6 * 4
    assert cost.message_s(288, 144) == 2


def test_ring_all_reduce_by_hand() -> None:
    # Four ranks send 2 x 3/4 of 800 bytes = 1,200 bytes each, at 100 bytes/s.
    assert cost.ring_bytes(800, 4) == 1200
    assert cost.all_reduce_s(800, 4, 100) == 12


def test_one_rank_reduces_for_free() -> None:
    assert cost.all_reduce_s(800, 1, 100) == 0


def test_no_rank_cannot_reduce() -> None:
    with pytest.raises(ValueError, match="got 0"):
        cost.ring_bytes(1, 0)


@pytest.mark.parametrize(("stage", "held"), [(0, 3), (1, 3), (2, 2), (3, 1)])
def test_in_flight_is_stages_to_the_end_or_all_microbatches(stage: int, held: int) -> None:
    assert cost.in_flight(stage, 4, 3) == held


def test_memory_by_hand() -> None:
    # First stage: 16 x (244 + 64); two micro-batches of 17 x 4 x 1 x 6 x 4 bytes.
    assert cost.rank_memory_bytes(TINY, 1, 1, 2, True, False) == 16 * 308 + 2 * 1632
    # Last stage: 16 x (244 + 48); one micro-batch; three times 4 x 1 x 6 x 10 bytes of logits.
    assert cost.rank_memory_bytes(TINY, 1, 1, 1, False, True) == 16 * 292 + 1632 + 720


def test_tensor_degree_divides_memory() -> None:
    assert cost.rank_memory_bytes(TINY, 1, 1, 2, True, False, tp=2) == (16 * 308 + 2 * 1632) // 2


def test_gpu_speed_is_the_published_row_of_the_nearest_size() -> None:
    assert achieved_flops_per_s("NVIDIA A100-SXM4-80GB", 4000) == 142e12
    assert achieved_flops_per_s("NVIDIA H100 80GB HBM3", 64) == 408.8e12
    assert achieved_flops_per_s("Tesla T4", 4096) is None
