"""Trained and frozen parameters, by part of the model, on one tensor shard.

Trained parameters have gradients, optimizer states and an exchange; frozen ones have only weights. If the first layers
are frozen, a layer stands for the mean of all: such a model has no pipeline, so every rank holds all layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from holmes_runtime.config.model_shape import (
    ModelShape,
    embedding_parameters,
    head_parameters,
    layer_parameters,
)
from holmes_runtime.config.trainable import Trainable, adapter_parameters


class ParameterCount(NamedTuple):
    """Numbers of parameters in a part of the model."""

    trained: int
    frozen: int = 0

    @property
    def whole(self) -> int:
        """The number of all parameters."""
        return self.trained + self.frozen


def trained_layer(model: ModelShape, trainable: Trainable | None, tp: int = 1, ep: int = 1) -> int:
    """Return the trained parameters of a layer that is not entirely frozen."""
    if trainable is None or trainable.lora is None:
        return layer_parameters(model, tp, ep)
    return adapter_parameters(model, trainable.lora, tp)


def backward_share(model: ModelShape, trainable: Trainable | None) -> float:
    """Return the share of layers that have a backward: all but the frozen first ones."""
    return 1.0 if trainable is None else 1 - trainable.frozen_layers / model.num_layers


def layers_of(
    model: ModelShape, trainable: Trainable | None, num_layers: int = 1, tp: int = 1, ep: int = 1
) -> ParameterCount:
    """Return the parameters of `num_layers` layers."""
    held = num_layers * layer_parameters(model, tp, ep)
    if trainable is None:
        return ParameterCount(held)
    after = model.num_layers - trainable.frozen_layers
    trained = num_layers * trained_layer(model, trainable, tp, ep) * after // model.num_layers
    return ParameterCount(trained, held if trainable.lora is not None else held - trained)


def embedding_of(model: ModelShape, trainable: Trainable | None, tp: int = 1) -> ParameterCount:
    """Return the parameters of the embedding, which is frozen if any other part is."""
    size = embedding_parameters(model, tp)
    return ParameterCount(size) if trainable is None else ParameterCount(0, size)


def head_of(model: ModelShape, trainable: Trainable | None, tp: int = 1, is_first: bool = False) -> ParameterCount:
    """Return the parameters of the head and the final norm; `is_first` as in `head_parameters`."""
    size = head_parameters(model, tp, is_first)
    return ParameterCount(size) if trainable is None or trainable.lora is None else ParameterCount(0, size)


def dense_layers(model: ModelShape, layers: Sequence[int]) -> tuple[int, ...]:
    """Return the number of each stage's layers that are among the model's first ones without experts."""
    first = model.first_dense_layers
    if not first:
        return (0,) * len(layers)
    ends = accumulate(layers)
    return tuple(min(held, max(0, first - (end - held))) for held, end in zip(layers, ends, strict=True))


@lru_cache(maxsize=4096)
def stage_of(
    model: ModelShape,
    trainable: Trainable | None,
    num_layers: int,
    ends: tuple[bool, bool],
    tp: int = 1,
    ep: int = 1,
    dense: int = 0,
) -> ParameterCount:
    """Return the parameters of a stage with `dense` layers; `ends` states if it is the first and if it is the last."""
    is_first, is_last = ends
    parts = [layers_of(model, trainable, num_layers - dense, tp, ep)]
    parts += [layers_of(model.dense, trainable, dense, tp)] * (dense > 0)
    parts += [embedding_of(model, trainable, tp)] * is_first
    parts += [head_of(model, trainable, tp, is_first)] * is_last
    return ParameterCount(sum(part.trained for part in parts), sum(part.frozen for part in parts))
