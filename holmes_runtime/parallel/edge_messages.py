"""The messages of one rank on the edges of its pipeline, each packed with the codec of its edge."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.comm.stopwatch import named_range
from holmes_runtime.comm.streams import Transfer, start_receive, start_send
from holmes_runtime.comm.wire import Direction, MessageName, pack, unpack
from holmes_runtime.config.codec import Codec
from holmes_runtime.config.rank_grid import Rank
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.model.decoder import DTYPES


def wait_for(sends: Iterable[Transfer]) -> None:
    """Wait until all `sends` have left."""
    for transfer in sends:
        transfer.wait()


@dataclass(frozen=True)
class Receiving:
    """A receive under way, into the bytes of a packed message."""

    transfer: Transfer
    codec: Codec
    shape: tuple[int, ...]
    dtype: torch.dtype
    count: Callable[[Tensor], None] | None = None  # counts the arrived bytes in the digest of the edge

    def wait(self) -> None:
        """Wait until the message has arrived. Call this once."""
        self.transfer.wait()
        if self.count is not None:
            self.count(self.transfer.tensor)

    def values(self) -> Tensor:
        """Return the arrived hidden states or gradients (micro_batch_size, seq_length / tp, hidden_size)."""
        return unpack(self.transfer.tensor, self.codec, self.shape, self.dtype)


POSTED_AHEAD = 2  # receives beyond the extra micro-batches that a schedule has in flight over 1F1B


class EdgeMessages:
    """Sends and receives of one rank.

    Gloo sends a message once the other end has signalled that it is ready to receive it. The signal takes as long as a
    message. Receives are therefore posted ahead, as many as senders may be ahead, and latency is paid once per message.
    """

    def __init__(self, config: RunConfig, me: Rank, groups: RankGroups, device: torch.device) -> None:
        self._me, self._groups, self._device = me, groups, device
        self._before, self._after = config.grid.edge_before(me), config.grid.edge_after(me)
        self._first_microbatch = sum(config.microbatches[: me.dp_rank])
        self.step = 0  # step of the messages, or the batch of an evaluation
        self._left: dict[Direction, int] = {}
        self._posted: dict[Direction, deque[Receiving]] = {direction: deque() for direction in Direction}
        self.follow(config)

    def follow(self, config: RunConfig) -> None:
        """Use the codecs of `config` from now on. All ranks call this between the same two steps."""
        self._config = config
        self._ahead = POSTED_AHEAD + max(config.extra_in_flight, default=0)
        self._forward_in = config.codec_of("pp_forward", self._before)
        self._forward_out = config.codec_of("pp_forward", self._after)
        self._backward_in = config.codec_of("pp_backward", self._after)
        self._backward_out = config.codec_of("pp_backward", self._before)

    def begin(self, step: int, receives: Mapping[Direction, int]) -> None:
        """Post the first of the `receives`, the number of messages by direction. `step` is that of the run, or the
        batch of an evaluation.
        """
        self.step, self._left = step, dict(receives)
        for direction in receives:
            self._post(direction, 0)

    def send(self, direction: Direction, stage: int, microbatch: int, values: Tensor) -> Transfer:
        """Start to send the result of `stage` for this replica's `microbatch`. Gradients go back, all else forward."""
        is_gradient = direction is Direction.BACKWARD
        name = MessageName(
            seed=self._config.seed,
            direction=direction,
            step=self.step,
            microbatch=self._first_microbatch + microbatch,
            edge=stage - 1 if is_gradient else stage,
            shard=self._me.tp_rank,
        )
        if is_gradient:
            edge, codec, group = self._before, self._backward_out, self._groups.backward_out
        else:
            edge, codec, group = self._after, self._forward_out, self._groups.forward_out
        digests = self._groups.messages_of("backward_out" if is_gradient else "forward_out")
        with named_range(f"send {direction.name.lower()} {microbatch}"):
            packed, to = pack(values, codec, name), self._other_end(edge)
            if digests is not None:
                digests.send(packed, to)
            return start_send(packed, to, group)

    def receive(self, direction: Direction) -> Receiving:
        """Return the receive of the next message in this direction, already under way."""
        self._post(direction, 1)
        return self._posted[direction].popleft()

    def _post(self, direction: Direction, least: int) -> None:
        """Start at least `least` receives, and as many as may be posted ahead. NCCL's would block the GPU."""
        posted = self._posted[direction]
        if not self._left[direction]:
            return
        group = self._groups.backward_in if direction is Direction.BACKWARD else self._groups.forward_in
        ahead = 0 if dist.get_backend(group) == "nccl" else self._ahead
        while self._left[direction] and len(posted) < least + ahead:
            posted.append(self._start_receive(direction))
            self._left[direction] -= 1

    def _start_receive(self, direction: Direction) -> Receiving:
        if direction is Direction.BACKWARD:
            edge, codec, group = self._after, self._backward_in, self._groups.backward_in
        else:
            edge, codec, group = self._before, self._forward_in, self._groups.forward_in
        digests = self._groups.messages_of("backward_in" if direction is Direction.BACKWARD else "forward_in")
        packed = torch.empty(self._config.message_bytes(codec), dtype=torch.uint8, device=self._device)
        source = self._other_end(edge)
        transfer = start_receive(packed, source, group)
        count = None if digests is None else digests.receive(source)
        return Receiving(transfer, codec, self._config.message_shape, DTYPES[self._config.value_type], count)

    def _other_end(self, edge: tuple[int, int] | None) -> int:
        """Return the other end of this rank's edge, as a rank of the edge's group. Groups are in rank order."""
        assert edge is not None, f"rank {self._me.rank} has no such edge"
        other = edge[1] if edge[0] == self._me.rank else edge[0]
        return int(other > self._me.rank)
