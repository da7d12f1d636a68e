"""The rendezvous of islands as the ranks of one see it: rosters of outer syncs, verdicts, and turns of its own ranks.

The controller decides who takes part in an outer sync and whether it took place; it outlives each island. Between two
outer syncs the ranks of an island that is receiving the state agree on their turn.
"""

from __future__ import annotations

import hashlib
import secrets
import zlib
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

from torch.distributed import DistStoreError

from holmes_runtime.config.islands.membership_messages import (
    DONE,
    Arrive,
    Begin,
    Conclude,
    Decision,
    IslandStart,
    Leave,
    Look,
    Standing,
    decision_key,
    turn_keys,
    verdict_key,
)
from holmes_runtime.config.islands.roster import Arrival, Patience, Roster
from holmes_runtime.config.run_settings import OuterSync
from holmes_runtime.config.strict_json import MAX_VALUES, parse, to_json
from holmes_runtime.outer.lanes import FlatSlice, ShardLayout
from holmes_runtime.outer.rendezvous_store import RendezvousStore

LOOK_S = 1.0  # between two looks at who has arrived
MIN_LOOK_S = 0.05
WATCH_S = 2.0  # between two looks at the verdict while bytes travel
DECISION_LIMIT_S = 30 * 86400.0  # the controller decides, or ends this island's attempt
FOLLOW, FAILED = "follow", "failed"
KEY_BYTES = 32
MAX_LAYOUT_BYTES = 1 << 26  # of the pieces of one rank, unpacked


class Rendezvous:
    """The rendezvous of islands as seen by rank `rank` of one; rank 0 arrives for all ranks of its island.

    `limit_s` bounds the wait for the verdict. All ranks call `meet` equally often.
    """

    def __init__(self, store: RendezvousStore, sync: OuterSync, rank: int, limit_s: float) -> None:
        self._store, self._island, self._rank, self._limit_s = store, sync.island, rank, limit_s
        self._num_meetings = 0  # since the start

    @cached_property
    def key(self) -> bytes:
        """The key that the ranks of all islands share: only SSH connections reach the rendezvous."""
        return bytes.fromhex(self._store.compare_set("key", "", secrets.token_hex(KEY_BYTES)).decode())

    def compare_tokenizer(self, path: str) -> None:
        """Compare a tokenizer with that of the island that came first. Raises RuntimeError if it is another."""
        mine = hashlib.sha256(Path(path).read_bytes()).hexdigest()
        first = self._store.compare_set("tokenizer", "", mine).decode()
        if first != mine:
            raise RuntimeError(
                f"islands: the tokenizer {path} has SHA-256 {mine[:12]} on island {self._island}, and {first[:12]} on "
                "another, where tokens are other text: copy one of them to all hosts"
            )

    def compare_model(self, layout: ShardLayout) -> None:
        """Compare parameters with the first island to come. Raises RuntimeError naming one that differs."""
        held = {piece.name: piece.global_shape for pieces in layout.ranks for piece in pieces}
        shapes = [FlatSlice(name, shape, (0,) * len(shape), shape, 0, 0) for name, shape in sorted(held.items())]
        first = {each.name: each.shape for each in _pieces_in(self._store.compare_set("model", "", _packed(shapes)))}
        for name in sorted(held.keys() | first.keys()):
            mine, other = (str(of.get(name, "none")) for of in (held, first))
            if mine != other:
                raise RuntimeError(
                    f"islands: parameter {name} has shape {mine} on island {self._island}, and {other} on another: "
                    "train one model on all islands"
                )

    def compare_weights(self, exchange: int, anchor_sum: int) -> None:
        """Compare the weights where islands begin. Raises RuntimeError if the first one to come has others."""
        mine = str(anchor_sum)
        if self._store.compare_set(f"weights/{exchange}", "", mine).decode() != mine:
            raise RuntimeError(
                f"islands: island {self._island} begins with other weights than the first one to come: give all the "
                "same seed, or load the `state_dict` of the island with a checkpoint's weights"
            )

    def begin(self, exchange: int, lineage: str) -> IslandStart:
        """Announce a start of the island in state `lineage`, next due at `exchange`; only rank 0 does so."""
        return (
            parse(IslandStart, self._store.tell(Begin(exchange, lineage))) if self._rank == 0 else IslandStart(0, False)
        )

    def leave(self, has_ended: bool) -> None:
        """Make the others stop waiting for this island; it does not come back if it `has_ended`."""
        self._store.tell(Leave(has_ended))

    def standing(self) -> Standing:
        """Return the state of all islands."""
        return parse(Standing, self._store.tell(Look()))

    def waiting(self) -> list[Arrival]:
        """Return the other islands that have arrived at the next outer sync."""
        return [each for each in self.standing().waiting if each.island != self._island]

    def show(self, start: int, pieces: tuple[FlatSlice, ...]) -> None:
        """Publish the pieces this rank owns."""
        self._store.set(f"pieces/{self._island}/{start}/{self._rank}", _packed(pieces))

    def layout(self, island: int, start: int, num_ranks: int) -> ShardLayout:
        """Return the pieces of all ranks of an island since its `start`th start."""
        keys = [f"pieces/{island}/{start}/{rank}" for rank in range(num_ranks)]
        return ShardLayout(tuple(_pieces_in(self._store.get(key)) for key in keys))

    def meet(self, mine: Arrival, patience: Patience) -> Roster:
        """Arrive at the next outer sync and return the roster that has this island, the same on all its ranks.

        Raises:
            RuntimeError: too few islands have come within the time that `patience` allows.
        """
        self._num_meetings += 1
        if self._rank == 0:
            self._store.tell(Arrive(mine, self._num_meetings, patience))
        key = decision_key(mine.island, mine.start, self._num_meetings)
        decision = parse(Decision, self._store.wait_for(key, DECISION_LIMIT_S).decode())
        if decision.roster is None:
            raise RuntimeError(f"islands: {decision.trouble}")
        return decision.roster

    def conclude(self, roster: Roster, trouble: str | None) -> str | None:
        """Report that this rank is done, or its `trouble`, and wait for all others; return why the sync failed."""
        self._store.tell(Conclude(roster.round_id, self._rank, trouble or ""))
        try:
            return self._verdict(roster)
        except DistStoreError:
            self._store.tell(Conclude(roster.round_id, self._rank, self._late))
            return self._verdict(roster)

    def hear(self, roster: Roster) -> str | None:
        """Wait, as a newcomer, for the verdict of the participants; return why the outer sync failed."""
        try:
            return self._verdict(roster)
        except DistStoreError:
            return self._late

    def trouble(self, roster: Roster) -> str | None:
        """Return why this outer sync has failed, if that is known before this rank is done."""
        return self._verdict(roster) if self._store.check([verdict_key(roster.round_id)]) else None

    @property
    def _late(self) -> str:
        return f"the others were not done within {self._limit_s:.0f} s"

    def _verdict(self, roster: Roster) -> str | None:
        """Return why the outer sync failed; None if it took place. Raises DistStoreError after the time limit."""
        verdict = self._store.wait_for(verdict_key(roster.round_id), self._limit_s).decode()
        return None if verdict == DONE else verdict

    def tell_of_state(self, round_id: int, num_ranks: int, trouble: str | None) -> None:
        """Report that this rank has all of the state after that round, or its `trouble`, which sets the turn."""
        turn, told = turn_keys(round_id, self._island)
        if trouble is not None:
            self._store.compare_set(turn, "", f"{FAILED}: rank {self._rank}: {trouble}")
        elif self._store.add(told, 1) == num_ranks:
            self._store.compare_set(turn, "", DONE)

    def turn(self, round_id: int, limit_s: float) -> str | None:
        """Return the turn of this island's ranks, which have waited since that round; None if none is set in time."""
        turn, _ = turn_keys(round_id, self._island)
        try:
            return self._store.wait_for(turn, max(limit_s, MIN_LOOK_S)).decode()
        except DistStoreError:
            return None

    def follow_if_held(self, round_id: int) -> None:
        """On rank 0, let all ranks follow once an up-to-date island has arrived at the next outer sync, or it began."""
        if self._rank:
            return
        standing = self.standing()
        if standing.num_rosters > round_id + 1 or not all(each.is_behind for each in standing.waiting):
            self._store.compare_set(turn_keys(round_id, self._island)[0], "", FOLLOW)


def _packed(pieces: Iterable[FlatSlice]) -> bytes:
    return zlib.compress(to_json(ShardLayout((tuple(pieces),))).encode())


def _pieces_in(packed: bytes) -> tuple[FlatSlice, ...]:
    """Return the pieces that were packed so. Raises ValueError if they are malformed or too large."""
    unpacking = zlib.decompressobj()
    try:
        text = unpacking.decompress(packed, MAX_LAYOUT_BYTES)
    except zlib.error as error:
        raise ValueError(f"the pieces of a rank cannot be unpacked: {error}") from None
    if not unpacking.eof:
        raise ValueError(f"the pieces of a rank are cut, or more than {MAX_LAYOUT_BYTES} bytes")
    (pieces,) = parse(ShardLayout, text.decode(), MAX_VALUES).ranks
    return pieces
