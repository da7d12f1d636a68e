"""Data parallelism with sharded weights: ZeRO stage 3 inside a cluster, stage 1 across clusters.

Each rank keeps its part of every layer's weights. A layer is gathered while the one before it computes, in the forward
and again in the backward, and released afterwards. A layer's gradients are reduced as soon as a micro-batch has made
them, while the next layer computes. So two layers are whole at a time. Across clusters each part is sent once per step,
as under stage 1.
Sources: Rajbhandari et al., ZeRO, 2020; Zhao et al., PyTorch FSDP, 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from holmes_runtime.model.decoder import DecoderStage
from holmes_runtime.parallel.gradient_buckets import Bucket, make_bucket
from holmes_runtime.parallel.host_states import HostMemory
from holmes_runtime.parallel.layer_weights import Layer, ShardedBucket, UseOrder
from holmes_runtime.parallel.zero1 import Zero1, units


class Zero3(Zero1):
    """`Zero1` over groups with a `dp`: the replicas of a cluster, which together hold one layer.

    All of them must call the same modules in the same order: with as many micro-batches, by one schedule. Gradients
    must arrive by autograd's hooks, so a backward cannot be split.
    """

    def _make_buckets(
        self,
        modules: Sequence[nn.Module],
        named: dict[str, nn.Parameter],
        partial: Container[str],
        bucket_bytes: int | None,
        memory: HostMemory | None,
    ) -> list[Bucket]:
        """Return the buckets of each layer, last layers first. Parameters whole on tensor shards have their own."""
        del bucket_bytes
        assert self._groups.dp is not None
        assert memory is None
        names = {parameter: name for name, parameter in named.items()}
        self._layer_of: dict[nn.Module, Layer] = {}
        for module in modules:
            for unit, parameters in units(module):
                found = {names[parameter]: parameter for parameter in reversed(parameters)}
                if isinstance(module, DecoderStage):
                    module.fill(found)  # this late, so that at most one layer is whole at a time
                buckets = [self._shard(half, is_partial) for is_partial, half in _halves(found, partial)]
                layer = Layer(len(self._layer_of), buckets, not isinstance(unit, nn.Embedding))
                self._layer_of[unit] = layer
        self._layers = list(self._layer_of.values())
        self._place = {id(each.bucket): (layer, each) for layer in self._layers for each in layer.buckets}
        self._order = UseOrder(len(self._layers))
        self._leaving: tuple[ShardedBucket, bool] | None = None
        return [each.bucket for layer in self._layers[::-1] for each in layer.buckets]

    def _shard(self, named: dict[str, nn.Parameter], is_partial: bool) -> ShardedBucket:
        assert self._groups.dp is not None
        bucket = make_bucket(named, self._replicas.size, self._replicas.position, is_partial)
        return ShardedBucket(bucket, self._groups)

    def _hook(self, modules: Sequence[nn.Module]) -> None:
        """Make every module gather its weights and release them."""
        del modules
        for unit, layer in self._layer_of.items():
            unit.register_forward_pre_hook(lambda *_, layer=layer: self._before_forward(layer))
            unit.register_forward_hook(lambda *call, layer=layer: self._after_forward(layer, call[-1]))

    def start(self) -> None:
        """Clear the gradients. Call this before the first backward of a step."""
        self._order.begin_step()
        for _, each in self._place.values():
            each.summed.zero_()
            each.bucket.awaited = len(each.bucket.parameters) * self._num_microbatches

    def _before_forward(self, layer: Layer) -> None:
        if not layer.in_backward:  # else the forward is repeated inside the backward, which has the weights
            self._use(layer)

    def _after_forward(self, layer: Layer, output: Any) -> None:
        if layer.in_backward:
            return
        for tensor in _tensors(output):
            if tensor.requires_grad:
                tensor.register_hook(self._before_backward_of(layer))  # type: ignore[no-untyped-call]
        self._let_go(layer)

    def _before_backward_of(self, layer: Layer) -> Callable[[Tensor], None]:
        def begin(_: Tensor) -> None:
            if not layer.in_backward:
                if layer.needs_weights_again:
                    self._use(layer)
                if self._leaving is not None and self._leaving[0] in layer.buckets:
                    self._land()  # gradients of the previous micro-batch, whose memory is reused
                layer.begin_backward()

        return begin

    def gradient_added(self, parameter: Tensor) -> None:
        """Count one micro-batch's gradient of `parameter`. The last gradient of a layer releases the layer."""
        layer, each = self._place[id(self._bucket_of[parameter])]
        bucket = each.bucket
        bucket.awaited -= 1
        if bucket.awaited % len(bucket.parameters):
            return
        self._land()
        each.start_reduce()
        self._leaving = each, bucket.awaited == 0
        layer.unfinished -= 1
        if layer.needs_weights_again and not layer.in_backward:
            self._let_go(layer)

    def _use(self, layer: Layer) -> None:
        """Wait for the weights of `layer`, and start to gather the next layer's."""
        self._order.used(layer.index)
        with self._stopwatch.lap("dp"):
            layer.fetch()
            layer.wait()
            following = self._order.after(layer.index)
            if following is not None:
                self._layers[following].fetch()

    def _let_go(self, layer: Layer) -> None:
        """Release the weights of `layer`, unless they are used next."""
        if self._order.after(layer.index) != layer.index:
            layer.release()

    def _land(self) -> None:
        """Wait for the gradients under way, one bucket at a time."""
        if self._leaving is not None:
            each, is_last = self._leaving
            with self._stopwatch.lap("dp"):
                each.land(is_last, self._groups.tp)
            self._leaving = None

    def finish(self, divisor: float) -> Tensor:
        """Finish as `Zero1.finish` does."""
        self._land()
        self._order.end_step()
        return super().finish(divisor)

    def _publish(self, buckets: Sequence[Bucket]) -> None:
        """Publish all weights, and start to gather the first layer."""
        del buckets  # all of them
        for layer in self._layers:
            layer.publish()
        self._layers[self._order.first].fetch()

    def wait(self) -> None:
        """Wait until no weights are under way."""
        with self._stopwatch.lap("dp"):
            for layer in self._layers:
                layer.wait()
                for each in layer.buckets:
                    each.refresh()


def _halves(named: dict[str, nn.Parameter], partial: Container[str]) -> Iterator[tuple[bool, dict[str, nn.Parameter]]]:
    """Yield the parameters split under tensor parallelism, and then those in `partial`, if there are any."""
    for is_partial in (False, True):
        half = {name: parameter for name, parameter in named.items() if (name in partial) is is_partial}
        if half:
            yield is_partial, half


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, tuple | list):
        for each in output:
            yield from _tensors(each)
