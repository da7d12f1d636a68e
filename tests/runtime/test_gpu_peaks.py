"""Peaks of GPUs by the names that CUDA gives them."""

from __future__ import annotations

import pytest

from holmes_runtime.config.gpu_peaks import peak_flops_per_s
from holmes_runtime.config.run_settings import Precision


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 NVL", 835),
        ("NVIDIA H200", 989),
        ("NVIDIA GH200 480GB", 989),
        ("NVIDIA H20", 148),
        ("NVIDIA B200", 2250),
        ("NVIDIA GB200", 2500),
        ("NVIDIA B300 SXM6 AC", 2250),
        ("NVIDIA GB300", 2500),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA A10", 125),
        ("NVIDIA A10G", 70),
        ("NVIDIA L4", 121),
        ("NVIDIA L40", 181),
        ("NVIDIA L40S", 362),
        ("NVIDIA RTX A6000", 154.8),
        ("NVIDIA RTX 6000 Ada Generation", 364.2),
        ("NVIDIA GeForce RTX 4090", 165.2),
    ],
)
def test_bf16_peak_is_that_of_the_product(name: str, tflops: float) -> None:
    assert peak_flops_per_s(name, "bf16") == tflops * 1e12


@pytest.mark.parametrize(
    ("name", "value_type"),
    [
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", "bf16"),
        ("NVIDIA GeForce RTX 4090 D", "bf16"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "bf16"),
        ("NVIDIA GeForce RTX 3090 Ti", "bf16"),
        ("NVIDIA RTX A600", "bf16"),
        ("NVIDIA A1000", "bf16"),
        ("Tesla V100-SXM2-32GB", "bf16"),
        ("Quadro RTX 6000", "fp16"),
        ("", "fp32"),
    ],
)
def test_what_no_data_sheet_of_the_table_says_is_not_known(name: str, value_type: Precision) -> None:
    assert peak_flops_per_s(name, value_type) is None


def test_a_card_of_another_form_has_its_own_peak() -> None:
    assert peak_flops_per_s("Tesla V100-PCIE-16GB", "fp16") == 112e12
    assert peak_flops_per_s("Tesla V100-SXM2-32GB", "fp16") == 125e12
