"""Find the rank that others wait for, from the progress of each rank in its groups. Pure.

All members of a group run the same operations in the same order. torch numbers them, and a rank enqueues them long
before its GPU runs them. A rank waits in a group for the members that have not reached the first operation it has not
completed. A rank holds up the others if some wait for it, it waits for none, and it is in no operation that all members
have reached. Otherwise no rank is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from holmes_core.units import format_names
from holmes_runtime.config.messages import GroupProgress, RankPosition

MAX_SHOWN = 8  # ranks with the same activity


class WatchedGroup(NamedTuple):
    """A process group: its key in the positions of ranks, its name for display, and its members."""

    key: str
    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Operation:
    """The first operation of `group` that `rank` has begun and not completed. `missing` have not reached it."""

    rank: int
    group: WatchedGroup
    p2p: bool
    number: int
    missing: tuple[int, ...]
    begun: bool  # some rank's GPU has begun it, the missing ones' have not; else they have not even enqueued it
    all_known: bool  # the progress of all members is known

    @property
    def in_words(self) -> str:
        """The operation in words. torch counts messages and collectives separately."""
        return f"{'message' if self.p2p else 'collective'} {self.number} of group {self.group.name}"


def operations_under_way(groups: Iterable[WatchedGroup], positions: Mapping[int, RankPosition]) -> Iterator[Operation]:
    """Yield the operation under way of each rank and group. Ranks with unknown progress are left out.

    A rank counts its messages with all members together, so in groups of more than two they show nothing.
    """
    progress = {(rank, at.group, at.p2p): at for rank, position in positions.items() for at in position.groups}
    for group in groups:
        for p2p in (False, True) if len(group.ranks) == 2 else (False,):
            members = {
                rank: progress[rank, group.key, p2p] for rank in group.ranks if (rank, group.key, p2p) in progress
            }
            for rank, at in members.items():
                if at.enqueued > at.completed:
                    yield _operation(rank, group, at, members)


def _operation(rank: int, group: WatchedGroup, at: GroupProgress, members: Mapping[int, GroupProgress]) -> Operation:
    number = at.completed + 1
    absent = tuple(other for other, seen in members.items() if seen.enqueued < number)
    late = tuple(other for other, seen in members.items() if seen.started < number <= at.started)
    all_known = len(members) == len(group.ranks)
    return Operation(rank, group, at.p2p, number, absent or late, not absent and bool(late), all_known)


def culprit(operations: Sequence[Operation]) -> tuple[int, str] | None:
    """Return the rank that holds up the others, and the operation that shows it; None if there is no such rank."""
    waiting = {operation.rank for operation in operations if operation.missing}
    reached = {(each.group, each.p2p, each.number) for each in operations if each.missing and each.begun}
    stuck = {
        each.rank for each in operations if not each.missing and (each.group, each.p2p, each.number) not in reached
    }
    for operation in operations:
        for rank in operation.missing:
            if rank not in waiting and rank not in stuck:
                step = "begun on its GPU" if operation.begun else "reached"
                return rank, f"it has not {step} {operation.in_words}, in which rank {operation.rank} waits for it"
    return None


def stuck_in_words(operations: Iterable[Operation]) -> str:
    """Return the operations that all their members have reached and that are not completed."""
    stuck = dict.fromkeys(each.in_words for each in operations if each.all_known and not each.missing)
    return f"; all its ranks have reached {' and '.join(stuck)}, which does not end" if stuck else ""


def doing_in_words(positions: Mapping[int, RankPosition], hosts: Mapping[int, str], silent: Iterable[int]) -> str:
    """Return each rank's activity in words, with equal ones joined. `silent` ranks did not answer."""
    doing: dict[str, list[int]] = {}
    for rank in sorted(positions):
        doing.setdefault(positions[rank].doing, []).append(rank)
    without = sorted(silent)
    if without:
        doing["not answering"] = without
    return "; ".join(f"{_ranks_in_words(ranks, hosts)}: {what}" for what, ranks in doing.items())


def _ranks_in_words(ranks: Sequence[int], hosts: Mapping[int, str]) -> str:
    shown = format_names([f"{rank} ({hosts[rank]})" for rank in ranks], MAX_SHOWN)
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"
