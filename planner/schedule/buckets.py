"""Gradient buckets: parameters of a stage that are sent together, in the order in which the runtime sends them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from holmes_runtime.config.codec import Device
from holmes_runtime.config.model_shape import ModelShape, Part
from holmes_runtime.config.trainable import Trainable
from planner.cost.collectives import exchange_hops
from planner.cost.counts import GRADIENT_BYTES
from planner.cost.trained import ParameterCount, embedding_of, head_of, layers_of

WHOLE = 2**62  # bytes: a bucket that a stage never fills
StagePart = Part | Literal["dense"]
"""A part of a stage. `dense`: a layer without experts in a model whose other layers have some."""


class BucketSeconds(NamedTuple):
    """Seconds of a bucket: the backward that computes its gradients, and the times for which their reduce-scatter and
    the weights' all-gather occupy the network. The last byte arrives `late_s` after that.

    In two levels, these occupy the network inside clusters, and the `across` times the one between them.
    """

    backward_s: float
    reduce_s: float
    gather_s: float = 0.0
    late_s: float = 0.0
    across_reduce_s: float = 0.0
    across_gather_s: float = 0.0


class BucketExchange(NamedTuple):
    """Seconds of a bucket's exchange, as in `BucketSeconds`."""

    reduce_s: float
    gather_s: float
    late_s: float = 0.0
    across_reduce_s: float = 0.0
    across_gather_s: float = 0.0

    def all_reduced(self) -> BucketExchange:
        """Return the exchange with weights gathered as soon as gradients are reduced."""
        reduce_s, across_s = self.reduce_s + self.gather_s, self.across_reduce_s + self.across_gather_s
        return BucketExchange(reduce_s, 0.0, self.late_s, across_s, 0.0)


def exchange_among(
    num_ranks: int, device: Device, reduced_s: float, gathered_s: float, latency_s: float
) -> BucketExchange:
    """Return an exchange among `num_ranks` ranks whose bytes take the given seconds and whose hops take `latency_s`."""
    hops = exchange_hops(num_ranks, device)
    return BucketExchange(
        reduced_s + hops.reduce * latency_s, gathered_s + hops.gather * latency_s, hops.late * latency_s
    )


def with_dense(parts: Sequence[Part], number: int) -> tuple[StagePart, ...]:
    """Return the parts with the last `number` layers, whose gradients come last, as layers without experts."""
    end, without = len(parts) - parts.count("embedding"), list[StagePart]()
    without += ["dense"] * number
    return (*parts[: end - number], *without, *parts[end:])


@lru_cache(maxsize=1024)
def part_parameters(
    model: ModelShape, tp: int, is_first: bool, trainable: Trainable | None
) -> Mapping[StagePart, ParameterCount]:
    """Return the parameters of each part of a stage on one of `tp` shards. The first stage's tied head has no table."""
    return {
        "head": head_of(model, trainable, tp, is_first),
        "layer": layers_of(model, trainable, 1, tp),
        "dense": layers_of(model.dense, trainable, 1, tp),
        "embedding": embedding_of(model, trainable, tp),
    }


def make_buckets(
    model: ModelShape,
    tp: int,
    parts: Iterable[StagePart],
    backward_s: Mapping[StagePart, float],
    exchange: Callable[[int], BucketExchange],
    full_bytes: int = 0,
    layer: int | None = None,
    trainable: Trainable | None = None,
) -> list[BucketSeconds]:
    """Return the buckets of a stage's `parts`, which are in the order of their gradients.

    A bucket takes parts until its fp32 gradients reach half of `full_bytes`, as in the runtime, which divides larger
    parts. `backward_s` is by part; the embedding's gradients come with the layer before. `exchange` returns
    the time for a number of parameters on one of `tp` shards. `layer`: the parameters that count for a layer, if some
    of them count only in part. A frozen part has no bucket of its own.
    """
    parts = tuple(parts)
    by_part = part_parameters(model, tp, "embedding" in parts, trainable)
    parameters = {part: each.trained for part, each in by_part.items()}
    if layer is not None:
        parameters["layer"] = layer
    held: list[list[StagePart]] = []
    size = full_bytes
    for part in (each for each in parts if parameters[each] or each != "embedding"):
        if not held or 2 * size >= max(1, full_bytes):
            held.append([])
            size = 0
        held[-1].append(part)
        size += GRADIENT_BYTES * parameters[part]
    exchanges = {size: exchange(size) for size in {sum(parameters[part] for part in each) for each in held}}
    return [
        BucketSeconds(
            sum(backward_s.get(part, 0.0) for part in each), *exchanges[sum(parameters[part] for part in each)]
        )
        for each in held
    ]
