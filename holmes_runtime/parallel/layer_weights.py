"""The weights of a layer, sharded over the replicas of a cluster: kept in parts, whole only while the layer runs.

Parameters are views of flat memory whose storage is allocated and released under them. The views that autograd saved
are too, so weights gathered for a backward are where the forward had them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.comm.replica_exchange import Pending
from holmes_runtime.comm.shard_exchange import start_all_gather, start_reduce_scatter
from holmes_runtime.parallel.gradient_buckets import Bucket


class ShardedBucket:
    """A bucket with one part of the weights and one part of the gradient sums on this rank.

    kept: (elements / n,) in the precision of the weights; summed: fp32 (elements / n,). n is the size of `groups.dp`,
    whose ranks together hold all parts. The ranks of `groups.dp_across`, if any, hold the same part and in turn share
    its optimizer states. The bucket's own whole memory has no storage until it is requested.
    """

    def __init__(self, bucket: Bucket, groups: RankGroups) -> None:
        inside, across = groups.dp, groups.dp_across
        assert inside is not None
        self.bucket, self._groups, self._inside, self._across = bucket, groups, inside, across
        self._whole_bytes = bucket.weights.nbytes, bucket.gradients.nbytes
        part = bucket.weights.numel() // inside.size()
        self._own = slice(inside.rank() * part, (inside.rank() + 1) * part)
        self.kept = bucket.weights[self._own].clone()
        size = bucket.gradient.numel()
        first = (across.rank() if across is not None else 0) * size
        self._updated = self.kept[first : first + size]  # the part that this rank's masters update
        if self.kept.dtype == torch.float32:
            bucket.master = self._updated
        self.summed = bucket.gradient if across is None else torch.zeros_like(bucket.gradients[self._own])
        self._refreshing: Pending | None = None
        self._reducing: Pending | None = None
        _drop(bucket.weights)
        _drop(bucket.gradients)

    def publish(self) -> None:
        """Copy the masters to the kept weights, and start to gather them across clusters."""
        if self._updated.data_ptr() != self.bucket.master.data_ptr():
            self._updated.copy_(self.bucket.master)
        if self._across is not None:
            self._refreshing = self._groups.counted(start_all_gather(self.kept, self._across), "dp_across")

    def refresh(self) -> None:
        """Wait until all kept weights have arrived."""
        if self._refreshing is not None:
            self._refreshing()
            self._refreshing = None

    def start_gather(self) -> Pending:
        """Start to gather the whole weights. The result waits for them."""
        self.refresh()
        weights = self.bucket.weights
        weights.untyped_storage().resize_(self._whole_bytes[0])
        weights[self._own].copy_(self.kept)
        return self._groups.counted(start_all_gather(weights, self._inside), "dp")

    def drop_weights(self) -> None:
        """Release the whole weights."""
        _drop(self.bucket.weights)

    def make_gradients(self) -> None:
        """Allocate zeroed memory for the gradients of one micro-batch."""
        self.bucket.gradients.untyped_storage().resize_(self._whole_bytes[1])
        self.bucket.gradients.zero_()

    def start_reduce(self) -> None:
        """Start to sum the gradients of one micro-batch over the cluster."""
        self._reducing = start_reduce_scatter(self.bucket.gradients, self._inside, self._groups.messages_of("dp"))

    def land(self, is_last: bool, tp: ProcessGroup | None = None) -> None:
        """Wait for that sum, if it was started, and release the gradients.

        After the last micro-batch, sum a partial bucket over `tp`, and start to sum this rank's part across clusters.
        """
        if self._reducing is None:
            return
        self.summed.add_(self._reducing())
        self._reducing = None
        _drop(self.bucket.gradients)
        if is_last and self.bucket.partial_over_tp:
            dist.all_reduce(self.summed, group=tp)
        if is_last and self._across is not None:
            digests = self._groups.messages_of("dp_across")
            self.bucket.reduced = start_reduce_scatter(self.summed, self._across, digests)


class Layer:
    """The buckets of one layer, which are gathered together. `unfinished` ones still wait for gradients in a backward.

    `needs_weights_again`: its backward needs the weights too.
    """

    def __init__(self, index: int, buckets: Sequence[ShardedBucket], needs_weights_again: bool) -> None:
        self.index, self.buckets, self.needs_weights_again = index, buckets, needs_weights_again
        self.unfinished = 0
        self._is_here = False
        self._arriving: list[Pending] = []

    @property
    def in_backward(self) -> bool:
        """True if some gradients of a micro-batch are still to come."""
        return self.unfinished > 0

    def fetch(self) -> None:
        """Start to gather the weights, unless they are here or under way."""
        if not self._is_here:
            self._is_here = True
            self._arriving = [bucket.start_gather() for bucket in self.buckets]

    def wait(self) -> None:
        """Wait for weights that are under way."""
        for pending in self._arriving:
            pending()
        self._arriving = []

    def release(self) -> None:
        """Release the weights."""
        self.wait()
        self._is_here = False
        for bucket in self.buckets:
            bucket.drop_weights()

    def publish(self) -> None:
        """Publish the masters as weights, and release the outdated weights here."""
        self.release()
        for bucket in self.buckets:
            bucket.publish()

    def begin_backward(self) -> None:
        """Make room for gradients."""
        self.unfinished = len(self.buckets)
        for bucket in self.buckets:
            bucket.make_gradients()


class UseOrder:
    """The order in which layers are used, so that the next one can be gathered before it is needed.

    A step uses them in the order of the step before. Elsewhere, as in an evaluation, layers follow one another.
    """

    def __init__(self, num_layers: int) -> None:
        self._num_layers = num_layers
        self._known: list[int] = []
        self._seen: list[int] | None = None

    @property
    def first(self) -> int:
        """The layer that a step uses first."""
        return self._known[0] if self._known else 0

    def begin_step(self) -> None:
        """Begin to record a step."""
        self._seen = []

    def end_step(self) -> None:
        """Keep the recorded order for the next step."""
        self._known, self._seen = self._seen or [], None

    def used(self, layer: int) -> None:
        """Record that `layer` is used now."""
        if self._seen is not None:
            self._seen.append(layer)

    def after(self, layer: int) -> int | None:
        """Return the layer that is used after `layer`, the current one; None if unknown."""
        if self._seen is None:
            return layer + 1 if layer + 1 < self._num_layers else None
        at = len(self._seen)
        return self._known[at] if 0 < at < len(self._known) and self._known[at - 1] == layer else None


def _drop(whole: Tensor) -> None:
    whole.untyped_storage().resize_(0)
