"""Gradient buckets: parameters of a stage that travel together, in the order in which the runtime sends them."""

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
"""A part of a stage; `dense`: a layer without experts of a model whose other layers have some."""


class BucketSeconds(NamedTuple):
    """Seconds of the backward that makes its gradients, and for which their reduce-scatter and the weights' all-gather
    keep the network busy; `late_s` after that the last byte is there.

    In two levels they keep the network of clusters busy, and after or before it the one across.
    """

    backward_s: float
    reduce_s: float
    gather_s: float = 0.0
    late_s: float = 0.0
    across_reduce_s: float = 0.0
    across_gather_s: float = 0.0


class BucketExchange(NamedTuple):
    """Seconds of a bucket's exchange, as `BucketSeconds` has them."""

    reduce_s: float
    gather_s: float
    late_s: float = 0.0
    across_reduce_s: float = 0.0
    across_gather_s: float = 0.0

    def all_reduced(self) -> BucketExchange:
        """Return the exchange with weights gathered as soon as gradients are reduced, which keeps networks busy."""
        reduce_s, across_s = self.reduce_s + self.gather_s, self.across_reduce_s + self.across_gather_s
        return BucketExchange(reduce_s, 0.0, self.late_s, across_s, 0.0)


def exchange_among(
    num_ranks: int, device: Device, reduced_s: float, gathered_s: float, latency_s: float
) -> BucketExchange:
    """Return an exchange among so many ranks of bytes that take so long; each of its hops takes `latency_s`."""
    hops = exchange_hops(num_ranks, device)
    return BucketExchange(
        reduced_s + hops.reduce * latency_s, gathered_s + hops.gather * latency_s, hops.late * latency_s
    )


def with_dense(parts: Sequence[Part], number: int) -> tuple[StagePart, ...]:
    """Return the parts with the last so many layers, whose gradients come last, as layers without experts."""
    end, without = len(parts) - parts.count("embedding"), list[StagePart]()
    without += ["dense"] * number
    return (*parts[: end - number], *without, *parts[end:])


@lru_cache(maxsize=1024)
def part_parameters(
    model: ModelShape, tp: int, is_first: bool, trainable: Trainable | None
) -> Mapping[StagePart, ParameterCount]:
    """Parameters of each part of a stage on one of `tp` shards; the first stage's head, if tied, has no table."""
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
    """Return the buckets of a stage's `parts`, which stand in the order of their gradients.

    A bucket takes parts until its fp32 gradients have half of `full_bytes`, as the runtime's do; of parts larger than
    that the runtime makes several. `backward_s` is by part; the embedding's gradients come with the gradients of the
    layer before. `exchange` returns the time that the parameters of one of `tp` shards take. `layer`: parameters of a
    layer as they count in it, where that is not one for each. A frozen part has no bucket of its own.
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
