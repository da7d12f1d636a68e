"""Cost terms: FLOPs, bytes and seconds of the parts of one training step. Pure functions, each with its source.

The bundled runtime computes, sends and keeps fp32 values with plain all-reduce data parallelism and no recomputation.
`model` is the job's shape: h hidden size, s sequence length, V vocabulary, b micro-batch size.
"""

from __future__ import annotations

from holmes_core.job import Model

VALUE_BYTES = 4  # fp32, in memory and on the wire
STATE_BYTES_PER_PARAMETER = 16  # fp32 weight, gradient and Adam's two moments
ACTIVATION_VALUES = 17  # per token and hidden unit of one layer of holmes_runtime.model, see `activation_bytes`
LOGIT_COPIES = 3  # logits, their log-softmax, their gradient


def layer_flops(model: Model, micro_batch_size: int) -> float:
    """FLOPs of one layer's forward and backward on one micro-batch, without recomputation.

    72 b s h^2 (1 + s / (6 h)); the forward is a third. Source: Narayanan et al., Megatron-LM, SC 2021, equation 3.
    """
    h, s = model.hidden_size, model.seq_length
    return 72 * micro_batch_size * s * h**2 * (1 + s / (6 * h))


def head_flops(model: Model, micro_batch_size: int) -> float:
    """FLOPs of the head's forward and backward on one micro-batch: 6 b s h V. Source: as `layer_flops`."""
    return 6.0 * micro_batch_size * model.seq_length * model.hidden_size * model.vocab_size


def layer_parameters(model: Model) -> int:
    """Parameters of one layer: 12 h^2 in four matrices, 13 h in biases and norms. Source: holmes_runtime.model."""
    return 12 * model.hidden_size**2 + 13 * model.hidden_size


def embedding_parameters(model: Model) -> int:
    """Parameters of token and position embedding, on the first stage: V h + s h."""
    return (model.vocab_size + model.seq_length) * model.hidden_size


def head_parameters(model: Model) -> int:
    """Parameters of the final norm and the untied head, on the last stage: 2 h + h V."""
    return (2 + model.vocab_size) * model.hidden_size


def stage_parameters(model: Model, num_layers: int, is_first: bool, is_last: bool) -> int:
    """Parameters of a stage of `num_layers` layers, all tensor shards together."""
    ends = embedding_parameters(model) * is_first + head_parameters(model) * is_last
    return num_layers * layer_parameters(model) + ends


def message_bytes(model: Model, micro_batch_size: int) -> int:
    """Bytes of the activations, and of their gradients, that cross one pipeline edge per micro-batch: 4 b s h."""
    return VALUE_BYTES * micro_batch_size * model.seq_length * model.hidden_size


def message_s(size_bytes: float, bandwidth_bytes_per_s: float) -> float:
    """Seconds of one message. Latency is left out: the inventory has not measured it."""
    return size_bytes / bandwidth_bytes_per_s


def ring_bytes(size_bytes: float, num_ranks: int) -> float:
    """Bytes each member of a ring all-reduce of `size_bytes` sends, and receives: 2 (n-1)/n size.

    Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, 2009. Raises ValueError if num_ranks < 1.
    """
    if num_ranks < 1:
        raise ValueError(f"an all-reduce needs a rank, got {num_ranks}")
    return 2 * (num_ranks - 1) * size_bytes / num_ranks


def all_reduce_s(size_bytes: float, num_ranks: int, bandwidth_bytes_per_s: float) -> float:
    """Seconds of one ring all-reduce over links of `bandwidth_bytes_per_s`; one rank costs nothing. No latency."""
    return ring_bytes(size_bytes, num_ranks) / bandwidth_bytes_per_s


def activation_bytes(model: Model, micro_batch_size: int) -> int:
    """Bytes one layer keeps of one micro-batch until its backward: 17 fp32 values per token and hidden unit.

    Counted on holmes_runtime.model.Block: inputs of two norms (2), of the qkv (1) and up (1) matrices, query, key and
    value (3), attention's result and its merged copy (2), up's result (4) and its GELU (4). Attention keeps no scores.
    """
    return ACTIVATION_VALUES * VALUE_BYTES * micro_batch_size * model.seq_length * model.hidden_size


def in_flight(stage: int, num_stages: int, num_microbatches: int) -> int:
    """Micro-batches whose activations stage `stage` holds at most under 1F1B: min(p - i, m)."""
    return min(num_stages - stage, num_microbatches)


def rank_memory_bytes(
    model: Model,
    micro_batch_size: int,
    num_layers: int,
    microbatches_held: int,
    is_first: bool,
    is_last: bool,
    tp: int = 1,
) -> int:
    """Bytes one rank needs: weights, gradients, Adam moments, activations in flight and, on the last stage, logits.

    Each is divided by the tensor degree. What CUDA, NCCL and the allocator keep for themselves is not counted.
    """
    states = STATE_BYTES_PER_PARAMETER * stage_parameters(model, num_layers, is_first, is_last)
    activations = microbatches_held * num_layers * activation_bytes(model, micro_batch_size)
    logits = LOGIT_COPIES * VALUE_BYTES * micro_batch_size * model.seq_length * model.vocab_size * is_last
    return -(-(states + activations + logits) // tp)
