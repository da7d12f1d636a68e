"""Averaging of gradients over replicas and micro-batches, in flat buckets that travel while the backward goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

BUCKET_BYTES = 4 * 2**20  # bytes; large enough to fill a link, small enough to start early


@dataclass
class _Bucket:
    """Gradients that travel together. flat: (elements,), the parameters' `.grad` are views of it."""

    flat: Tensor
    parameters: list[nn.Parameter]
    awaited: int = 0
    work: dist.Work | None = field(default=None, repr=False)


class GradientSync:
    """All-reduces gradients over `group`, bucket by bucket, as the last micro-batch's backward produces them.

    Owns the gradients: they are views of flat buffers, so nobody may set `.grad` to None. `group` None means one
    replica: nothing is sent. Use: `start()`, all backwards of the step, `finish()`.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        group: ProcessGroup | None,
        num_replicas: int,
        num_microbatches: int,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._group = group
        self._num_microbatches = num_microbatches
        self._divisor = num_replicas * num_microbatches
        # A backward makes the gradients of the last parameters first.
        backward_order = list(parameters)[::-1]
        self._buckets = [_make_bucket(part) for part in _partition(backward_order, bucket_bytes)]
        self._next_to_send = 0
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(self._hook(bucket))  # type: ignore[no-untyped-call]

    def start(self) -> None:
        """Clears the gradients; before the first backward of a step."""
        self._next_to_send = 0
        for bucket in self._buckets:
            bucket.flat.zero_()
            bucket.awaited = len(bucket.parameters) * self._num_microbatches

    def finish(self) -> None:
        """Waits until every `.grad` holds the mean over replicas and micro-batches.

        Raises RuntimeError if a parameter got no gradient, which would have left its bucket unsent.
        """
        for bucket in self._buckets:
            if bucket.awaited:
                raise RuntimeError(f"{bucket.awaited} gradients of a bucket of {len(bucket.parameters)} never came")
            if bucket.work is not None:
                bucket.work.wait()
                bucket.work = None
            bucket.flat.div_(self._divisor)

    def sum_of_squares(self) -> Tensor:
        """Sum of squares of this stage's gradients, a float64 scalar."""
        norms = torch.stack([torch.linalg.vector_norm(bucket.flat) for bucket in self._buckets])
        return norms.double().square().sum()

    def scale(self, factor: float) -> None:
        """Multiplies every gradient by `factor`."""
        for bucket in self._buckets:
            bucket.flat.mul_(factor)

    def _hook(self, bucket: _Bucket) -> Callable[[Tensor], None]:
        return lambda _: self._count(bucket)

    def _count(self, bucket: _Bucket) -> None:
        """One gradient of `bucket` was added. Buckets leave in one fixed order, the same on all replicas."""
        bucket.awaited -= 1
        while self._next_to_send < len(self._buckets) and not self._buckets[self._next_to_send].awaited:
            if self._group is not None:
                ready = self._buckets[self._next_to_send]
                ready.work = dist.all_reduce(ready.flat, group=self._group, async_op=True)
            self._next_to_send += 1


def clip_factor(norm: float, grad_clip: float | None) -> float:
    """What gradients of global norm `norm` are multiplied by so that the norm is at most `grad_clip`."""
    return 1.0 if grad_clip is None or norm <= grad_clip else grad_clip / norm


def _partition(parameters: list[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    """`parameters` in order, cut wherever a part has reached `bucket_bytes`."""
    parts: list[list[nn.Parameter]] = [[]]
    size = 0
    for parameter in parameters:
        if size >= bucket_bytes:
            parts.append([])
            size = 0
        parts[-1].append(parameter)
        size += parameter.numel() * parameter.element_size()
    return parts


def _make_bucket(parameters: list[nn.Parameter]) -> _Bucket:
    """A zeroed bucket whose parts become the `.grad` of `parameters`."""
    flat = torch.zeros(sum(p.numel() for p in parameters), dtype=parameters[0].dtype, device=parameters[0].device)
    for parameter, part in zip(parameters, torch.split(flat, [p.numel() for p in parameters]), strict=True):
        parameter.grad = part.view_as(parameter)
    return _Bucket(flat, parameters)
