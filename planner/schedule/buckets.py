"""Gradient buckets: parameters of a stage that travel together, in the order in which the runtime sends them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from holmes_core.records.job import Model
from holmes_runtime.config.model_shape import Part, embedding_parameters, head_parameters, layer_parameters

PARAMETERS = {"head": head_parameters, "layer": layer_parameters, "embedding": embedding_parameters}


@dataclass(frozen=True)
class Bucket:
    """Seconds of the backward that makes its gradients, and for which their reduce-scatter and the weights' all-gather
    keep the network busy; `late_s` after that the last byte is there.

    In two levels they keep that of clusters busy, and then or before that the one across.
    """

    backward_s: float
    reduce_s: float
    gather_s: float = 0.0
    late_s: float = 0.0
    across_reduce_s: float = 0.0
    across_gather_s: float = 0.0


class Exchange(NamedTuple):
    """Seconds of a bucket's exchange, as `Bucket` has them."""

    reduce_s: float
    gather_s: float
    late_s: float = 0.0
    across_reduce_s: float = 0.0
    across_gather_s: float = 0.0


def make_buckets(
    model: Model,
    tp: int,
    parts: Iterable[Part],
    backward_s: Mapping[Part, float],
    exchange: Callable[[int], Exchange],
) -> list[Bucket]:
    """A bucket for each of a stage's `parts`, which stand in the order of their gradients.

    `backward_s` is by part; the embedding's gradients come with those of the layer before. `exchange` is what
    the parameters of one of `tp` shards take.
    """
    parts = tuple(parts)
    bucket_of = {part: Bucket(backward_s.get(part, 0.0), *exchange(PARAMETERS[part](model, tp))) for part in set(parts)}
    return [bucket_of[part] for part in parts]
