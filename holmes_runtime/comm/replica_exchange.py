"""Reduce-scatter and all-gather over all replicas of a stage, in one exchange or in two: inside clusters, then across.

With two exchanges, the replicas of a cluster first sum inside it, so that each has one part of its cluster's sum. Then
each exchanges only that part with the replica at its position in every other cluster. With n replicas in each of m
clusters, a rank thus sends 1/n of its data over the slow network, in m parts, and keeps one of them. Gathering takes
the same path back. Source: Cho et al., BlueConnect, 2019.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import cached_property, partial
from queue import SimpleQueue
from threading import Thread
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from holmes_runtime.comm.shard_exchange import start_all_gather, start_reduce_scatter
from holmes_runtime.comm.travel_digests import CopyDigests, GroupDigests

Pending = Callable[[], Tensor]
"""Waits for an operation under way, and returns its result."""
Following = Callable[[Tensor], Pending]
"""Starts the operation that needs that result."""


class Chain(Protocol):
    """Starts one operation after another without blocking the caller."""

    def then(self, first: Pending, following: Following) -> Pending:
        """Start `following` once `first` is done. The result waits for both."""
        ...


class ThreadChain:
    """A chain for operations whose wait blocks the host: a thread waits for them in the order of the calls.

    All ranks use the same order, so collectives on each group run in the same order too.
    """

    def __init__(self) -> None:
        self._asked: SimpleQueue[tuple[Pending, Following, Future[Pending]]] = SimpleQueue()
        # A daemon thread: if the run fails elsewhere, the process need not wait for ranks that are gone.
        Thread(target=_follow, args=(self._asked,), name="replica exchange", daemon=True).start()

    def then(self, first: Pending, following: Following) -> Pending:
        """Chain as `Chain` does. An error in either operation is raised where the result is awaited."""
        started: Future[Pending] = Future()
        self._asked.put((first, following, started))
        return lambda: started.result()()


def _follow(asked: SimpleQueue[tuple[Pending, Following, Future[Pending]]]) -> None:
    while True:
        first, following, started = asked.get()
        try:
            started.set_result(following(first()))
        except Exception as error:  # every error is raised again in the training thread
            started.set_exception(error)


class StreamChain:
    """A chain for operations on a GPU, whose wait blocks only the current stream: a separate stream waits.

    Memory is safe: torch keeps the memory of an operation until it has been awaited. A result made on this stream is
    next written after a `first` that itself came after the caller had read the result.
    """

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def then(self, first: Pending, following: Following) -> Pending:
        with torch.cuda.stream(self._stream):
            return following(first())


class LevelDigests(NamedTuple):
    """The digests of one group of replicas; None for traffic that is not counted."""

    messages: GroupDigests | None
    weights: CopyDigests | None


class ReplicaExchange:
    """All `size` replicas of this rank's part of the model. Its own part of flat memory is at `position`.

    `levels` are the groups that join them, inside the cluster first, as in `RankGroups.replicas`; without any, no
    operation can be started. `digests` count, group by group, the values that are summed or gathered.
    """

    def __init__(self, levels: Sequence[ProcessGroup], digests: Sequence[LevelDigests] = ()) -> None:
        self._levels, self._digests = levels, digests or (LevelDigests(None, None),) * len(levels)
        self.size = math.prod(level.size() for level in levels)
        self.position = 0
        for level in levels:
            self.position = self.position * level.size() + level.rank()

    @cached_property
    def _chain(self) -> Chain:
        return StreamChain() if dist.get_backend(self._levels[0]) == "nccl" else ThreadChain()

    def start_reduce_scatter(self, flat: Tensor) -> Pending:
        """Start to sum `flat` (elements,). The result waits and returns this rank's part (elements / size,)."""
        counted = zip(self._levels, self._digests, strict=True)
        return self._in_turn(
            [partial(start_reduce_scatter, group=level, digests=each.messages) for level, each in counted], flat
        )

    def start_all_gather(self, flat: Tensor) -> Pending:
        """Start to fill `flat` (elements,), in which this rank's part is in place. The result waits for all parts."""
        starts: list[Following] = []
        part = flat
        for level, digests in zip(self._levels, self._digests, strict=True):
            starts.insert(0, partial(_gather, part, level, digests.weights))
            part = part.view(level.size(), -1)[level.rank()]
        return self._in_turn(starts, part)

    def _in_turn(self, starts: Sequence[Following], flat: Tensor) -> Pending:
        pending = starts[0](flat)
        for start in starts[1:]:
            pending = self._chain.then(pending, start)
        return pending


def _gather(flat: Tensor, level: ProcessGroup, digests: CopyDigests | None, _: Tensor) -> Pending:
    """Gather `flat` once the previous operation has filled this rank's part."""
    gathering = start_all_gather(flat, level)
    return gathering if digests is None else digests.watch(gathering)
