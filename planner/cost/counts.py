"""What the parts of one training step need in bytes. Pure counts, each with its source.

The letters are those of holmes_runtime/config/model_shape.py, which counts parameters and FLOPs; t is the tensor
degree, v the bytes of a value. The counts are those of the bundled runtime: attention keeps no scores, and under tensor
parallelism sequences are sharded too. Seconds are in compute_time.py and collectives.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from holmes_core.records.job import Job, Model, Recompute
from holmes_runtime.config.codec import Codec, packed_bytes
from holmes_runtime.config.model_shape import stage_parameters

GRADIENT_BYTES = 4  # gradients are summed in fp32 whatever the precision
MOMENT_BYTES = 8  # AdamW's two moments, fp32
MASTER_BYTES = 4  # fp32 weights beside 16-bit ones
CUDA_RESERVE_BYTES = 2 * 2**30  # assumption: CUDA context, NCCL's and cuBLAS's buffers, holes in the allocator's pool


@dataclass(frozen=True)
class Execution:
    """How every tasklet is run; `reserve_bytes` is what the framework keeps of a GPU for itself.

    The bundled runtime shards sequences together with tensors and never keeps attention scores; older software, which
    the validation predicts, does neither.
    """

    tp: int
    dp: int
    micro_batch_size: int
    value_bytes: int
    recompute: Recompute
    reserve_bytes: int = 0
    sequence_parallel: bool = True
    fused_attention: bool = True


def make_execution(job: Job, tp: int, dp: int, micro_batch_size: int, recompute: Recompute) -> Execution:
    """The execution of `job` with these degrees, in its precision and on its device."""
    reserve_bytes = CUDA_RESERVE_BYTES if job.device == "cuda" else 0
    value_bytes = 4 if job.value_type == "fp32" else 2
    return Execution(tp, dp, micro_batch_size, value_bytes, recompute, reserve_bytes)


def edge_bytes(model: Model, execution: Execution, codec: Codec = "none") -> int:
    """Bytes one shard sends over a pipeline edge per micro-batch, forward or backward: v b s h / t, or packed so."""
    return packed_bytes(codec, edge_values(model, execution), execution.value_bytes)


def edge_values(model: Model, execution: Execution) -> int:
    """How many values those are: b s h / t."""
    return execution.micro_batch_size * model.seq_length * model.hidden_size // execution.tp


def layer_activation_bytes(model: Model, execution: Execution) -> int:
    """Bytes one shard keeps of one layer and micro-batch until its backward.

    Values per token, counted on the runtime's model with saved-tensor hooks. On every shard whole: the inputs of q, k,
    v and of the MLP (2 h). Sharded: inputs of both norms and attention's result (3 h), q, k and v (h + 2 k; a Llama
    also keeps q and k after rotation, h + k), and the MLP's inside (2 f; SwiGLU 4 f). Full recomputation keeps the
    layer's input alone (h). Selective repeats the attention core, which a fused kernel makes from q, k and v anyway.
    """
    h, f, k = model.hidden_size, model.ffn_size, model.kv_size
    inside = 4 * f + 2 * h + 3 * k if model.family == "llama" else 2 * f + h + 2 * k
    whole, sharded = (2 * h, 3 * h + inside) if execution.sequence_parallel else (4 * h, h + inside)
    if execution.recompute == "full":
        whole, sharded = (0, h) if execution.sequence_parallel else (h, 0)
    return (
        execution.value_bytes
        * execution.micro_batch_size
        * model.seq_length
        * (whole * execution.tp + sharded)
        // execution.tp
    )


def recomputed_bytes(model: Model, execution: Execution) -> int:
    """Bytes of the one layer that full recomputation rebuilds at a time, beyond its input; 0 for other modes."""
    if execution.recompute != "full":
        return 0
    return layer_activation_bytes(model, replace(execution, recompute="none")) - layer_activation_bytes(
        model, execution
    )


def state_bytes(parameters: int, execution: Execution) -> int:
    """Bytes of weights (v) and gradient sums (4), and of this rank's 1/dp of masters (4 beside 16-bit weights), moments
    (8) and, with several replicas, reduced gradients (4 as they arrive, 4 as they are kept).

    Source: Rajbhandari et al., ZeRO, 2020, stage 1; holmes_runtime.parallel.zero1.
    """
    sharded = MOMENT_BYTES + (MASTER_BYTES if execution.value_bytes < 4 else 0)
    if execution.dp > 1:
        sharded += 2 * GRADIENT_BYTES
    return parameters * (execution.value_bytes + GRADIENT_BYTES) + -(-parameters * sharded // execution.dp)


def logit_bytes(model: Model, execution: Execution) -> int:
    """Bytes of the last stage's logits on one shard: as computed (v), their log-softmax and their gradient (fp32)."""
    return (
        (execution.value_bytes + 8) * execution.micro_batch_size * model.seq_length * model.vocab_size // execution.tp
    )


def memory_bytes(
    model: Model, execution: Execution, layers: Sequence[int], in_flight: Sequence[int], is_first: bool, is_last: bool
) -> int:
    """Bytes one rank needs. `layers` and `in_flight` (micro-batches held) are by chunk.

    `is_first`, `is_last`: whether the rank holds the embedding, the head.
    """
    parameters = stage_parameters(model, sum(layers), is_first, is_last, execution.tp)
    layers_in_flight = sum(count * held for count, held in zip(layers, in_flight, strict=True))
    activations = layers_in_flight * layer_activation_bytes(model, execution) + recomputed_bytes(model, execution)
    return (
        state_bytes(parameters, execution)
        + activations
        + logit_bytes(model, execution) * is_last
        + execution.reserve_bytes
    )
