"""Tags with which ranks detect that a message was changed in transit between their hosts.

The key belongs to the attempt; its agents pass it to its ranks. A run without agents has no key: then tags reveal
accidents, but not an attacker, who can recompute the tags.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import MutableMapping, Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch.distributed import ProcessGroup

from holmes_runtime.config.messages import CHANGED
from holmes_runtime.config.node_config import KEY_VARIABLE
from holmes_runtime.node.admission.keyed_frames import FrameAltered, tag_of


class _Attempt(NamedTuple):
    key: bytes = b""
    hosts: Sequence[str] = ()  # by rank


class _AttemptExchanges:
    """The attempt of this process, and the number of exchanges it has begun over each group."""

    attempt = _Attempt()
    begun: WeakKeyDictionary[ProcessGroup, int] = WeakKeyDictionary()


def take_key(environ: MutableMapping[str, str], hosts: Sequence[str]) -> None:
    """Use the attempt's key from now on, and remove it from `environ`, which children inherit and libraries log.

    `hosts` are the hosts by rank, for error messages.
    """
    _AttemptExchanges.attempt = _Attempt(bytes.fromhex(environ.pop(KEY_VARIABLE, "")), hosts)


class KeyedExchange:
    """One exchange over a group. All its ranks begin the same exchanges in the same order."""

    def __init__(self, group: ProcessGroup | None) -> None:
        self._group = group if group is not None else dist.group.WORLD
        assert self._group is not None
        self._number = _AttemptExchanges.begun.get(self._group, 0)
        _AttemptExchanges.begun[self._group] = self._number + 1

    def tag(self, source: int, place: str, *parts: bytes | memoryview) -> bytes:
        """Return the tag of a message from the group's rank `source`. Its messages must have distinct `place`s.

        Both ends know the length of all parts but the last.
        """
        assert self._group is not None
        where = json.dumps([self._group.group_name, self._number, source, place]).encode()
        return tag_of(_AttemptExchanges.attempt.key, where, b"\0", *parts)

    def check(self, source: int, place: str, tag: bytes | memoryview, *parts: bytes | memoryview) -> None:
        """Raise FrameAltered naming both ends unless `source` sent these parts."""
        if not hmac.compare_digest(self.tag(source, place, *parts), tag):
            mine = self._name(dist.get_rank(self._group))
            raise FrameAltered(f"what {self._name(source)} sent to {mine} {CHANGED}: {place}")

    def _name(self, group_rank: int) -> str:
        assert self._group is not None
        rank = dist.get_global_rank(self._group, group_rank)
        hosts = _AttemptExchanges.attempt.hosts
        return f"rank {rank} on {hosts[rank]}" if rank < len(hosts) else f"rank {rank}"
