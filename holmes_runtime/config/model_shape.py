"""Floating-point operations of a training step, and what GPUs can do at most. Free of torch.

Counted is what the model needs, without what recomputation does again, so that utilisation cannot be raised by
wasting work. Source: Narayanan et al., Megatron-LM, SC 2021, equation 3; Chowdhery et al., PaLM, 2022, appendix B.
"""

from __future__ import annotations

from holmes_runtime.config.run_config import ModelShape, Precision, RunConfig

# Dense peak FLOP/s of a GPU whose name holds the key, by precision; fp32 on the tensor cores as TF32 would be is not
# what torch does by default, so it is that of the ordinary units. Source: NVIDIA's data sheets. Longer names first.
PEAK_FLOPS_PER_S: dict[str, dict[Precision, float]] = {
    "H100 PCIe": {"bf16": 756e12, "fp16": 756e12, "fp32": 51e12},
    "H100": {"bf16": 989e12, "fp16": 989e12, "fp32": 67e12},
    "H200": {"bf16": 989e12, "fp16": 989e12, "fp32": 67e12},
    "H800": {"bf16": 989e12, "fp16": 989e12, "fp32": 67e12},
    "H20": {"bf16": 148e12, "fp16": 148e12, "fp32": 44e12},
    "GB200": {"bf16": 2500e12, "fp16": 2500e12, "fp32": 80e12},
    "B200": {"bf16": 2250e12, "fp16": 2250e12, "fp32": 75e12},
    "A100": {"bf16": 312e12, "fp16": 312e12, "fp32": 19.5e12},
    "A800": {"bf16": 312e12, "fp16": 312e12, "fp32": 19.5e12},
    "L40S": {"bf16": 362e12, "fp16": 362e12, "fp32": 91.6e12},
    "A10": {"bf16": 125e12, "fp16": 125e12, "fp32": 31.2e12},
    "V100": {"fp16": 125e12, "fp32": 15.7e12},
}


def layer_flops(shape: ModelShape, micro_batch_size: int) -> float:
    """Forward and backward of one layer on one micro-batch.

    6 b s for every weight of a matrix and 12 b s^2 h for attention's core; for a GPT 72 b s h^2 (1 + s / (6 h)).
    """
    h, s, b = shape.hidden_size, shape.seq_length, micro_batch_size
    mlp_matrices = 2 if shape.family == "gpt" else 3
    weights = h * (2 * h + 2 * shape.num_kv_heads * shape.head_size) + mlp_matrices * h * shape.ffn_hidden_size
    return 6.0 * b * s * weights + 12.0 * b * s**2 * h


def head_flops(shape: ModelShape, micro_batch_size: int) -> float:
    """Forward and backward of the output head on one micro-batch: 6 b s h V."""
    return 6.0 * micro_batch_size * shape.seq_length * shape.hidden_size * shape.vocab_size


def step_flops(config: RunConfig) -> float:
    """A whole step of the whole run; 0 if its compute is emulated."""
    if config.emulation is not None:
        return 0.0
    shape, batch = config.model, config.global_batch_size
    return shape.num_layers * layer_flops(shape, batch) + head_flops(shape, batch)


def peak_flops_per_s(gpu_name: str, value_type: Precision) -> float | None:
    """Dense peak of a GPU in this precision; None if it is not in the table."""
    for name, peaks in PEAK_FLOPS_PER_S.items():
        if name in gpu_name:
            return peaks.get(value_type)
    return None
