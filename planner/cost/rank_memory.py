"""The memory that one rank needs: kept for a step, plus the most that is held temporarily."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import ceil

from holmes_runtime.config.model_shape import ModelShape, expert_parameters
from planner.cost.counts import (
    Execution,
    expert_gradient_bytes,
    gathered_bytes,
    layer_activation_bytes,
    logit_bytes,
    mask_bytes,
    passing_key_bytes,
    recomputed_bytes,
    state_bytes,
    whole_layers_bytes,
)
from planner.cost.trained import ParameterCount, backward_share, layers_of, stage_of


def memory_bytes(
    model: ModelShape,
    execution: Execution,
    layers: Sequence[int],
    in_flight: Sequence[int],
    is_first: bool,
    is_last: bool,
    dense: Sequence[int] = (),
) -> int:
    """Return the bytes one rank needs, with margin and reserve. `layers` and `in_flight` (micro-batches) are by chunk.

    `is_first`, `is_last`: the rank holds the embedding, the head. `dense`: the layers without experts, by chunk.
    """
    count, without = sum(layers), sum(dense)
    ends, shards = (is_first, is_last), (execution.tp, execution.ep)
    parameters = stage_of(model, execution.trainable, count, ends, *shards, without)
    layers_in_flight = sum(count * held for count, held in zip(layers, in_flight, strict=True))
    kept_bytes = layers_in_flight * _kept_bytes(model, execution)
    if without:
        more = _kept_bytes(model.dense, execution.dense) - _kept_bytes(model, execution)
        kept_bytes += more * sum(count * held for count, held in zip(dense, in_flight, strict=True))
    return (
        _states_bytes(parameters, execution, (count - without) * expert_parameters(model, execution.ep))
        + kept_bytes
        + sum(in_flight) * _with_margin(mask_bytes(model, execution), execution)
        + _with_margin(_passing_bytes(model, execution, is_first, is_last, without > 0), execution)
        + execution.reserve_bytes
    )


def more_layer_bytes(model: ModelShape, execution: Execution) -> int:
    """Return the bytes that a second layer, of the smaller kind, adds to a rank with one layer and one micro-batch."""
    if model.first_dense_layers:
        shapes = (model.dense, execution.dense), (replace(model, first_dense_layers=0), execution)
        return min(more_layer_bytes(*shape) for shape in shapes)
    experts, shards = expert_parameters(model, execution.ep), (execution.tp, execution.ep)
    one, two = (
        _states_bytes(layers_of(model, execution.trainable, count, *shards), execution, count * experts)
        for count in (1, 2)
    )
    return two - one + _kept_bytes(model, execution)


def _states_bytes(parameters: ParameterCount, execution: Execution, experts: int) -> int:
    """Return the bytes of a rank's parameters. Unless frozen, `experts` are updated by the ranks that hold the same."""
    experts = experts if execution.trainable is None else 0
    size = state_bytes(parameters.trained - experts, execution, parameters.frozen)
    if experts:
        size += state_bytes(experts, execution._replace(dp=execution.expert_dp))
    return _with_margin(size, execution)


@lru_cache(maxsize=4096)
def _kept_bytes(model: ModelShape, execution: Execution) -> int:
    """Return the bytes kept for one layer and micro-batch: the mean over layers with and without a backward."""
    share = execution.activation_factor * backward_share(model, execution.trainable)
    return _with_margin(int(layer_activation_bytes(model, execution) * share), execution)


@lru_cache(maxsize=4096)
def _passing_bytes(model: ModelShape, execution: Execution, is_first: bool, is_last: bool, has_dense: bool) -> int:
    """Return the bytes of the buffers that a rank holds temporarily."""
    kinds = [(model, execution), (model.dense, execution.dense)][: 1 + has_dense]
    in_backward = max(recomputed_bytes(*kind) + backward_bytes(*kind) for kind in kinds)
    return (
        whole_layers_bytes(model, execution, is_first, is_last)
        + max(in_backward, logit_bytes(model, execution) * is_last)
        + gathered_bytes(model, execution)
        + passing_key_bytes(model, execution)
        + expert_gradient_bytes(model, execution)
    )


def backward_bytes(model: ModelShape, execution: Execution) -> int:
    """Return the bytes that a layer's backward holds at a time, in addition to the values that its forward kept.

    They are gradients of the inside of an MLP (a GPT's activation, a SwiGLU's two inputs) and three times the hidden
    states. An adapter on the MLP doubles the former: products and the adapter's additions are separate tensors. Source:
    the largest tensors at the peak of a step of the bundled trainer, by torch's profiler on a CPU:
    `tests/planner/test_rank_memory.py`.
    """
    inside = 2 if model.family == "llama" else 1
    if execution.lora is not None and execution.lora.has("gate", "up", "down"):
        inside *= 2
    width = inside * model.token_ffn_size + 3 * model.hidden_size
    return execution.value_bytes * execution.tokens(model) * width // execution.tp


def _with_margin(size_bytes: int, execution: Execution) -> int:
    return ceil(size_bytes * (1 + execution.memory_margin))
