"""Flat memory in which parameters are sent together: weights, gradients, and this rank's part of the states."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from holmes_runtime.config.model_shape import bucket_bytes
from holmes_runtime.model.tensor_part import TensorPart
from holmes_runtime.parallel.host_states import HostMemory, HostPart

# Parts of buckets start at multiples of this: the bytes that NCCL and fused kernels load at once, and a cache line.
PART_BYTES = 128


@dataclass(frozen=True)
class Shard:
    """The piece of one parameter whose optimizer state is on this rank, with all that a checkpoint needs to know.

    `part` is this tensor shard's part of the whole parameter. Of that part, flattened row by row, this rank holds
    numbers [start, stop). master (the weights), exp_avg, exp_avg_sq (AdamW's moments) and gradient (the sum of the last
    step) are fp32 (stop - start,): views, to be read and loaded in place. The first three may be in host memory;
    `state_gradient` is the gradient in the same memory, or else `gradient` itself. If it `is_copy`, the first stage
    has the same piece, and it counts there.
    """

    name: str
    part: TensorPart
    start: int
    stop: int
    master: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    gradient: Tensor
    state_gradient: Tensor
    is_copy: bool = field(default=False, kw_only=True)


@dataclass
class Bucket:
    """Parameters that are sent together. gradients: fp32 (elements,), weights: (elements,); parameters are views of
    both.

    Elements are padded to dp parts of whole PART_BYTES; `own` is this rank's part. master, exp_avg, exp_avg_sq and
    gradient are fp32 (elements / dp,); in fp32, master is a view of weights. With a `host` part the first three are in
    host memory. If it is `partial_over_tp`, its gradients must also be summed over tensor shards. `awaited` counts the
    gradients of micro-batches that are still to come. If it `has_experts`, dp counts only ranks with the same experts.
    `reduced` and `gathering` wait for operations under way.
    """

    names: list[str]
    parameters: list[nn.Parameter]
    gradients: Tensor
    weights: Tensor
    own: slice
    master: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    gradient: Tensor
    partial_over_tp: bool
    has_experts: bool = False
    host: HostPart | None = None
    awaited: int = 0
    reduced: Callable[[], Tensor] | None = None
    gathering: Callable[[], Tensor] | None = field(default=None, repr=False)

    def shards(self, parts: Mapping[str, TensorPart], copied: str | None = None) -> Iterator[Shard]:
        """Yield the shard of each parameter whose states this rank has. `parts` are by parameter name.

        The parameter `copied` is a copy of the first stage's.
        """
        first = 0  # where the parameter starts in the bucket
        for name, parameter in zip(self.names, self.parameters, strict=True):
            stop = first + parameter.numel()
            low, high = max(first, self.own.start), min(stop, self.own.stop)
            if low < high:
                mine = slice(low - self.own.start, high - self.own.start)
                beside = self.gradient if self.host is None else self.host.gradient
                states = (self.master, self.exp_avg, self.exp_avg_sq, self.gradient, beside)
                pieces = (state[mine] for state in states)
                yield Shard(name, parts[name], low - first, high - first, *pieces, is_copy=name == copied)
            first = stop


class ExpertBuckets(NamedTuple):
    """The expert parameters `names`. `dp` ranks have the same ones, and this rank updates the part at `position`."""

    names: Container[str]
    dp: int
    position: int


NO_EXPERTS = ExpertBuckets((), 1, 0)


def make_buckets(
    stages: Sequence[Sequence[dict[str, nn.Parameter]]],
    partial: Container[str],
    dp: int,
    position: int,
    full_bytes: int | None,
    alone: str | None = None,
    memory: HostMemory | None = None,
    experts: ExpertBuckets = NO_EXPERTS,
) -> list[Bucket]:
    """Return all buckets of a rank, in the order in which they are sent: a backward makes the last gradients first.

    `stages` have the parameters by name, layer by layer. Two stages never share a bucket, as one's backward is over
    long before the other's. The parameters of `partial`, which are whole on every tensor shard, have seen only part of
    the sequence. They have their own buckets after the others and are also summed over shards. The parameter `alone`
    has a bucket to itself. Of the `dp` parts of a bucket, this rank's is at `position`. A bucket is full at
    `full_bytes` of gradients, by default at a size that suits the model. With `memory`, the states are there. The
    parameters of `experts` have their own buckets between the others, each placed by its last gradient.
    """
    numbers = sum(parameter.numel() for layers in stages for named in layers for parameter in named.values())
    full_bytes = full_bytes or bucket_bytes(numbers)
    buckets: list[Bucket] = []
    for is_partial in (False, True):
        for layers in stages[::-1]:
            chosen = [
                {name: named[name] for name in reversed(named) if (name in partial) is is_partial}
                for named in layers[::-1]
            ]
            turn = {name: number for number, name in enumerate(name for named in chosen for name in named)}
            found = []
            for among, has_experts in ((dp, position), False), (experts[1:], True):
                halves = [{n: p for n, p in named.items() if (n in experts.names) is has_experts} for named in chosen]
                cuts = _cut(halves, full_bytes, alone)
                found += [make_bucket(cut, *among, is_partial, memory, has_experts) for cut in cuts]
            buckets += sorted(found, key=lambda bucket: turn[bucket.names[-1]])
    return buckets


def make_bucket(
    named: Mapping[str, nn.Parameter],
    dp: int,
    position: int,
    partial_over_tp: bool,
    memory: HostMemory | None = None,
    has_experts: bool = False,
) -> Bucket:
    """Return a bucket that holds the weights of the parameters, with its gradients as their `.grad`."""
    parameters = list(named.values())
    sizes = [parameter.numel() for parameter in parameters]
    whole = PART_BYTES // parameters[0].element_size()
    part = -(-sum(sizes) // (dp * whole)) * whole
    own = slice(position * part, (position + 1) * part)
    gradients = torch.zeros(part * dp, dtype=torch.float32, device=parameters[0].device)
    weights = torch.zeros(part * dp, dtype=parameters[0].dtype, device=parameters[0].device)
    first = 0
    for parameter, size in zip(parameters, sizes, strict=True):
        flat = slice(first, first + size)
        weights[flat] = parameter.detach().flatten()
        parameter.data = weights[flat].view_as(parameter)
        parameter.grad_dtype = None  # any: autograd then adds a 16-bit gradient directly, in one pass without a copy
        parameter.grad = gradients[flat].view_as(parameter)
        first += size
    host = HostPart(weights[own], memory) if memory is not None else None
    master = weights[own].float() if host is None else host.master  # not a copy in fp32
    return Bucket(
        list(named),
        parameters,
        gradients,
        weights,
        own,
        master=master,
        exp_avg=torch.zeros_like(master),
        exp_avg_sq=torch.zeros_like(master),
        gradient=gradients if dp == 1 else torch.zeros_like(gradients[own]),
        partial_over_tp=partial_over_tp,
        has_experts=has_experts,
        host=host,
    )


def _cut(
    layers: Sequence[Mapping[str, nn.Parameter]], full_bytes: int, alone: str | None
) -> list[dict[str, nn.Parameter]]:
    """Return the parameters in order, cut at `full_bytes`, at a layer's end at half of that, and around `alone`."""
    cut: list[dict[str, nn.Parameter]] = []
    size = full_bytes
    for named in layers:
        for name, parameter in named.items():
            if size >= full_bytes or name == alone:
                cut.append({})
                size = 0
            cut[-1][name] = parameter
            size = full_bytes if name == alone else size + 4 * parameter.numel()
        if 2 * size >= full_bytes:
            size = full_bytes
    return cut
