"""Bytes that operators run one by one (eager) move beyond fused kernels, counted on the runtime's own layer.

A test counts them again on the operators that torch dispatches. Norms, GELU and residual sums are a kernel each and
cost the same either way. Letters as in counts.py; f is the width inside the feed-forward network.
"""

from __future__ import annotations

from typing import NamedTuple

from holmes_runtime.config.model_shape import ModelShape
from planner.cost.counts import Execution

FP32_BYTES = 4
# Values moved beyond a fused kernel. SwiGLU: SiLU of the gate is written and read again; in the backward, that and the
# gradients of both factors. Queries, keys and values: each of the three gradients is padded to the full length, and
# they are added up: 10 passes for 2. Grouped queries are copied before their rotation, queries and keys before their
# own norms, and values next to rotated keys.
SWIGLU_FORWARD, SWIGLU_BACKWARD = 2, 4
SPLIT_BACKWARD = 8
GROUPED_QUERIES = COPIED_KEYS = COPIED_VALUES = 2
# Values of 4 bytes, whatever v is: four products with cosines and sines of half the values each, a difference and a sum
# of halves, and joining them; in the backward also two sums and a change of sign.
ROTATION_FORWARD, ROTATION_BACKWARD = 9, 10


class PassBytes(NamedTuple):
    """Bytes of a forward and of a backward."""

    forward: float
    backward: float


def eager_bytes(model: ModelShape, execution: Execution) -> PassBytes:
    """Return the extra bytes a shard moves for one layer and micro-batch; 0 if operators are fused."""
    if execution.fused_operators:
        return PassBytes(0.0, 0.0)
    v, q, k, f = execution.value_bytes, model.query_size, model.kv_size, model.token_ffn_size
    forward, backward = 0, SPLIT_BACKWARD * v * (q + 2 * k)
    if model.family == "llama":
        # Casts to fp32 and back, less the read and write of a single kernel.
        casts = 2 * (v + FP32_BYTES) * (v < FP32_BYTES) - 2 * v
        forward += SWIGLU_FORWARD * v * f + (ROTATION_FORWARD * FP32_BYTES + casts) * (q + k)
        forward += GROUPED_QUERIES * v * q * (model.kv_heads < model.num_heads or model.qk_norm)
        forward += COPIED_KEYS * v * k * model.qk_norm + COPIED_VALUES * v * k
        backward += SWIGLU_BACKWARD * v * f + (ROTATION_BACKWARD * FP32_BYTES + casts) * (q + k)
    shard_tokens = execution.tokens(model) / execution.tp
    return PassBytes(forward * shard_tokens, backward * shard_tokens)
