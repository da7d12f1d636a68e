"""FLOPs of a step by hand, and as the planner counts them."""

from __future__ import annotations

import pytest

from holmes_core.records.job import Model
from holmes_core.records.presets import PRESETS
from holmes_runtime.config.model_shape import head_flops, layer_flops, peak_flops_per_s, step_flops
from holmes_runtime.config.run_config import ModelShape
from planner.cost import counts as cost

from .launched_runs import TINY, make_config


def test_a_layer_of_a_gpt_by_hand() -> None:
    shape = ModelShape("gpt", 1, 10, 2, 2, 40, 256, 6, 1e4, None)

    assert layer_flops(shape, micro_batch_size=2) == pytest.approx(72 * 2 * 6 * 100 * 1.1)
    assert head_flops(shape, micro_batch_size=2) == 6 * 2 * 6 * 10 * 256


def test_a_step_is_all_layers_and_the_head_of_the_global_batch() -> None:
    assert step_flops(make_config()) == 3 * layer_flops(TINY, 8) + head_flops(TINY, 8)


@pytest.mark.parametrize("preset", PRESETS)
def test_runtime_and_planner_count_alike(preset: str) -> None:
    model = Model.model_validate({"preset": preset, "seq_length": 2048})
    shape = ModelShape(
        model.family,
        model.num_layers,
        model.hidden_size,
        model.num_heads,
        model.kv_heads,
        model.ffn_size,
        model.vocab_size,
        model.seq_length,
        model.rope_theta,
        None,
    )

    assert layer_flops(shape, 3) == pytest.approx(cost.layer_flops(model, 3))
    assert head_flops(shape, 3) == pytest.approx(cost.head_flops(model, 3))


@pytest.mark.parametrize(
    ("gpu", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA H20", 148e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A10G", 125e12),
        ("NVIDIA GeForce RTX 4090", None),
        ("Tesla V100-SXM2-32GB", None),
    ],
)
def test_the_peak_of_a_gpu_is_found_by_its_name(gpu: str, peak: float | None) -> None:
    assert peak_flops_per_s(gpu, "bf16") == peak
