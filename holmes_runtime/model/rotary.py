"""Rotary positions: each pair of numbers of a head is rotated by its position. Source: Su et al., RoFormer, 2021."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from holmes_runtime.config.model_shape import ModelShape, RopeScaling


def make_rotation(shape: ModelShape, device: torch.device | None) -> Tensor:
    """Return the cosines and sines of rotary positions, fp32 (2, seq_length, 1, head_size / 2)."""
    exponents = torch.arange(0, shape.head_size, 2, dtype=torch.float64, device=device) / shape.head_size
    frequencies = shape.rope_theta**-exponents  # radians per position
    if shape.rope_scaling is not None:
        frequencies = _scaled(frequencies, shape.rope_scaling)
    positions = torch.arange(shape.seq_length, dtype=torch.float64, device=device)
    angles = torch.outer(positions, frequencies)
    return torch.stack([angles.cos(), angles.sin()]).float().unsqueeze(2)


def rotate(heads: Tensor, rotation: Tensor) -> Tensor:
    """Rotate the halves of each head by its position: `heads` (micro_batch_size, seq_length, heads, head_size)."""
    cosine, sine = rotation
    first, second = heads.float().chunk(2, -1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1).to(heads.dtype)


def _scaled(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Return `frequencies` (head_size / 2,), in radians per position, after `scaling`."""
    slowed = frequencies / scaling.factor
    if scaling.kind == "linear":
        return slowed
    turns = scaling.original_seq_length * frequencies / (2 * math.pi)  # over the length of the original training
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return torch.lerp(slowed, frequencies, kept)
