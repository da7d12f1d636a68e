"""Flat memory in which parameters travel together: weights, gradients, and this rank's part of the states."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from holmes_runtime.model.tensor_part import TensorPart

BUCKET_BYTES = 4 * 2**20  # bytes of gradients; large enough to fill a link, small enough to start early
MAX_BUCKETS = 64  # of a large model; what is still to be sent when the last backward ends is one of them


@dataclass(frozen=True)
class Shard:
    """The piece of one parameter whose optimizer state is on this rank: all that a checkpoint needs to know.

    `part` says which part of the whole parameter this tensor shard has; flattened, row by row, this rank holds numbers
    [start, stop) of that part. master (the weights), exp_avg, exp_avg_sq (AdamW's moments) and gradient (the mean of
    the last step) are fp32 (stop - start,): views, to be read and loaded in place.
    """

    name: str
    part: TensorPart
    start: int
    stop: int
    master: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    gradient: Tensor


@dataclass
class Bucket:
    """Parameters that travel together. gradients: fp32 (elements,), weights: (elements,); parameters are views of both.

    Elements are padded to a multiple of dp, and `own` are those of this rank. master, exp_avg, exp_avg_sq and gradient
    are fp32 (elements / dp,); in fp32 master is a view of weights. A bucket `partial_over_tp` has gradients that are to
    be added up over tensor shards too. `awaited` counts the gradients of micro-batches that are still to come;
    `reduced` and `gathering` wait for what is under way.
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
    awaited: int = 0
    reduced: Callable[[], Tensor] | None = None
    gathering: Callable[[], Tensor] | None = field(default=None, repr=False)

    def shards(self, parts: Mapping[str, TensorPart]) -> Iterator[Shard]:
        """Of each parameter what this rank has the states of, if anything; `parts` by the parameters' names."""
        first = 0  # where the parameter starts in the bucket
        for name, parameter in zip(self.names, self.parameters, strict=True):
            stop = first + parameter.numel()
            low, high = max(first, self.own.start), min(stop, self.own.stop)
            if low < high:
                mine = slice(low - self.own.start, high - self.own.start)
                states = (self.master, self.exp_avg, self.exp_avg_sq, self.gradient)
                yield Shard(name, parts[name], low - first, high - first, *(state[mine] for state in states))
            first = stop


def make_buckets(
    named: dict[str, nn.Parameter], partial: Container[str], dp: int, position: int, bucket_bytes: int | None
) -> list[Bucket]:
    """All buckets of a rank, in the order in which they leave: a backward makes the last gradients first.

    The parameters of `partial`, whole on every tensor shard, have seen a stretch of the sequence only; in buckets of
    their own, after the others, they are added up over shards as well. Of the `dp` parts of a bucket this rank's is at
    `position`. Without `bucket_bytes` a good size is chosen.
    """
    bucket_bytes = bucket_bytes or max(BUCKET_BYTES, 4 * sum(map(nn.Parameter.numel, named.values())) // MAX_BUCKETS)
    buckets: list[Bucket] = []
    for is_partial in (False, True):
        chosen = {name: named[name] for name in reversed(named) if (name in partial) is is_partial}
        buckets += [_make_bucket(cut, dp, position, is_partial) for cut in _cut(chosen, bucket_bytes)]
    return buckets


def _make_bucket(named: Mapping[str, nn.Parameter], dp: int, position: int, partial_over_tp: bool) -> Bucket:
    """A bucket that the weights of the parameters have moved into, and whose parts are their `.grad`."""
    parameters = list(named.values())
    sizes = [parameter.numel() for parameter in parameters]
    part = -(-sum(sizes) // dp)
    own = slice(position * part, (position + 1) * part)
    gradients = torch.zeros(part * dp, dtype=torch.float32, device=parameters[0].device)
    weights = torch.zeros(part * dp, dtype=parameters[0].dtype, device=parameters[0].device)
    first = 0
    for parameter, size in zip(parameters, sizes, strict=True):
        flat = slice(first, first + size)
        weights[flat] = parameter.detach().flatten()
        parameter.data = weights[flat].view_as(parameter)
        parameter.grad_dtype = torch.float32
        parameter.grad = gradients[flat].view_as(parameter)
        first += size
    master = weights[own]
    return Bucket(
        list(named),
        parameters,
        gradients,
        weights,
        own,
        master=master if master.dtype == torch.float32 else master.float(),
        exp_avg=torch.zeros_like(gradients[own]),
        exp_avg_sq=torch.zeros_like(gradients[own]),
        gradient=gradients if dp == 1 else torch.zeros_like(gradients[own]),
        partial_over_tp=partial_over_tp,
    )


def _cut(named: Mapping[str, nn.Parameter], bucket_bytes: int) -> list[dict[str, nn.Parameter]]:
    """The parameters in order, cut wherever a bucket's gradients have reached `bucket_bytes`."""
    cut: list[dict[str, nn.Parameter]] = []
    size = bucket_bytes
    for name, parameter in named.items():
        if size >= bucket_bytes:
            cut.append({})
            size = 0
        cut[-1][name] = parameter
        size += 4 * parameter.numel()
    return cut
