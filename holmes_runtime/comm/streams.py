"""Messages between two ranks, over all the parallel connections of their group.

One TCP connection does not fill a long line: its window limits the bytes in transit, and some networks limit each
connection's rate. Gloo opens one connection per device to each other member and chooses it by the message's tag. A
message is therefore sent in as many parts as there are devices, each with its own tag.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

MIN_PART = 16384  # elements: smaller messages are just as fast in one part


@dataclass(frozen=True)
class Transfer:
    """A message under way, in parts. The tensor of a sent message must not be freed before it has left."""

    works: Sequence[dist.Work | None]
    tensor: Tensor

    def wait(self) -> None:
        """Wait until the message has left, or arrived."""
        for work in self.works:
            if work is not None:
                work.wait()


def start_send(tensor: Tensor, to: int, group: ProcessGroup | None) -> Transfer:
    """Start to send `tensor`, which is contiguous, to rank `to` of `group`."""
    parts = parts_of(tensor, _streams(group))
    return Transfer([dist.isend(part, group=group, tag=tag, group_dst=to) for tag, part in enumerate(parts)], tensor)


def start_receive(tensor: Tensor, source: int, group: ProcessGroup | None) -> Transfer:
    """Start to receive into `tensor`, which is contiguous, from rank `source` of `group`."""
    parts = parts_of(tensor, _streams(group))
    works = [dist.irecv(part, group=group, tag=tag, group_src=source) for tag, part in enumerate(parts)]
    return Transfer(works, tensor)


def parts_of(tensor: Tensor, streams: int) -> Sequence[Tensor]:
    """Return the parts in which a message is sent, at most one per connection. They are the same at both ends."""
    parts = min(streams, tensor.numel() // MIN_PART)
    return tensor.view(-1).chunk(parts) if parts > 1 else (tensor,)


def _streams(group: ProcessGroup | None) -> int:
    """Return the number of connections to each other member. NCCL has its own setting (NCCL_NSOCKS_PERTHREAD)."""
    if group is None or dist.get_backend(group) == "nccl":
        return 1
    options = getattr(group._get_backend(torch.device("cpu")), "options", None)
    return max(1, len(getattr(options, "_devices", ())))
