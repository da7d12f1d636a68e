"""Keyed digests by which members of an outer sync detect altered messages and differing states."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from holmes_runtime.config.islands.roster import Roster
from holmes_runtime.config.messages import CHANGED
from holmes_runtime.node.admission.keyed_frames import TAG_BYTES, FrameAltered
from holmes_runtime.outer.lane_exchange import LaneMaker
from holmes_runtime.outer.lanes import Lane

TAGS_BYTES = 2 * TAG_BYTES


class SyncTags:
    """Tags of one outer sync. Members are identified by their positions in it.

    `frozen_weights` identifies weights outside the state: states on other frozen weights differ too.
    """

    def __init__(self, maker: LaneMaker, roster: Roster, frozen_weights: str | None) -> None:
        self._maker, self._roster = maker, roster
        self._after = f"state after {roster.round_id}" + (f" on {frozen_weights}" if frozen_weights else "")

    def tags(self, lane: Lane, position: int, packed: Sequence[Tensor], digest: Tensor) -> Tensor:
        """Return the tags of a member's new state and of its message to another, uint8 (TAGS_BYTES,)."""
        of_state = self._of_state(lane, position, digest)
        return torch.cat([of_state, self._of_packed(lane, position, packed, of_state)])

    def check(self, lane: Lane, position: int, packed: Sequence[Tensor], tags: Tensor) -> None:
        """Check that the member sent these bytes and tags.

        Raises:
            FrameAltered: bytes or tags were altered in transit.
        """
        of_state, of_packed = tags[:TAG_BYTES], tags[TAG_BYTES:]
        if not torch.equal(self._of_packed(lane, position, packed, of_state), of_packed):
            island = self._roster.participants[position].island
            rank, mine = lane.owners[position], self._maker.rank
            raise FrameAltered(f"what rank {rank} of island {island} sent to rank {mine} of another {CHANGED}")

    def agree(self, lane: Lane, position: int, digest: Tensor, tags: Tensor) -> bool:
        """Return True if the member has the state with this digest. Call `check` first."""
        return torch.equal(self._of_state(lane, position, digest), tags[:TAG_BYTES])

    def _of_state(self, lane: Lane, position: int, digest: Tensor) -> Tensor:
        return self._maker.tag(lane, self._after, position, digest)

    def _of_packed(self, lane: Lane, position: int, packed: Sequence[Tensor], of_state: Tensor) -> Tensor:
        return self._maker.tag(lane, f"changes for {self._roster.round_id}", position, *packed, of_state)
