"""The rendezvous as one rank of an island uses it: rosters and verdicts of outer syncs, and the turns of own ranks.

The controller outlives each island, and decides who takes part in an outer sync and whether it took place. Between two
outer syncs, the ranks of an island that is receiving the state agree on their next turn.
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
DECISION_LIMIT_S = 30 * 86400.0  # no limit: the controller decides, or ends this island's attempt
FOLLOW, FAILED = "follow", "failed"
KEY_BYTES = 32
MAX_LAYOUT_BYTES = 1 << 26  # of the pieces of one rank, unpacked


class Rendezvous:
    """The rendezvous of one rank. Rank 0 arrives for all ranks of its island, and all call `meet` equally often.

    `limit_s` bounds the wait for a verdict.
    """

    def __init__(self, store: RendezvousStore, sync: OuterSync, rank: int, limit_s: float) -> None:
        self._store, self._island, self._rank, self._limit_s = store, sync.island, rank, limit_s
        self._num_meetings = 0  # since the start

    @cached_property
    def key(self) -> bytes:
        """The key that the ranks of all islands share. The rendezvous is reached through SSH only."""
        return bytes.fromhex(self._store.compare_set("key", "", secrets.token_hex(KEY_BYTES)).decode())

    def compare_tokenizer(self, path: str) -> None:
        """Compare the tokenizer with that of the first island.

        Raises:
            RuntimeError: the tokenizers differ.
        """
        mine = hashlib.sha256(Path(path).read_bytes()).hexdigest()
        first = self._store.compare_set("tokenizer", "", mine).decode()
        if first != mine:
            raise RuntimeError(
                f"islands: the tokenizer {path} has SHA-256 {mine[:12]} on island {self._island} and {first[:12]} on "
                "another: copy one of them to all hosts"
            )

    def compare_model(self, layout: ShardLayout) -> None:
        """Compare the shapes of all parameters with the first island.

        Raises:
            RuntimeError: a parameter differs; names it.
        """
        held = {piece.name: piece.global_shape for pieces in layout.ranks for piece in pieces}
        shapes = [FlatSlice(name, shape, (0,) * len(shape), shape, 0, 0) for name, shape in sorted(held.items())]
        first = {each.name: each.shape for each in _pieces_in(self._store.compare_set("model", "", _packed(shapes)))}
        for name in sorted(held.keys() | first.keys()):
            mine, other = (str(of.get(name, "none")) for of in (held, first))
            if mine != other:
                raise RuntimeError(
                    f"islands: parameter {name} has shape {mine} on island {self._island} and {other} on another: "
                    "train the same model on all islands"
                )

    def compare_weights(self, exchange: int, anchor_sum: int) -> None:
        """Compare the initial weights with the first island.

        Raises:
            RuntimeError: the weights differ.
        """
        mine = str(anchor_sum)
        if self._store.compare_set(f"weights/{exchange}", "", mine).decode() != mine:
            raise RuntimeError(
                f"islands: island {self._island} begins with other weights than the first island: use one seed for "
                "all, or load the `state_dict` of Island together with the weights of a checkpoint"
            )

    def begin(self, exchange: int, lineage: str) -> IslandStart:
        """Announce a start of the island in state `lineage`, next due at `exchange`. Other ranks than 0 do nothing."""
        return (
            parse(IslandStart, self._store.tell(Begin(exchange, lineage))) if self._rank == 0 else IslandStart(0, False)
        )

    def leave(self, has_ended: bool) -> None:
        """End the others' wait for this island. If it `has_ended`, it does not come back."""
        self._store.tell(Leave(has_ended))

    def standing(self) -> Standing:
        """Return the state of all islands."""
        return parse(Standing, self._store.tell(Look()))

    def waiting(self) -> list[Arrival]:
        """Return the other islands that have arrived at the next outer sync."""
        return [each for each in self.standing().waiting if each.island != self._island]

    def show(self, start: int, pieces: tuple[FlatSlice, ...]) -> None:
        """Publish the pieces that this rank owns."""
        self._store.set(f"pieces/{self._island}/{start}/{self._rank}", _packed(pieces))

    def layout(self, island: int, start: int, num_ranks: int) -> ShardLayout:
        """Return the pieces of all ranks of an island since its `start`th start."""
        keys = [f"pieces/{island}/{start}/{rank}" for rank in range(num_ranks)]
        return ShardLayout(tuple(_pieces_in(self._store.get(key)) for key in keys))

    def meet(self, mine: Arrival, patience: Patience) -> Roster:
        """Arrive at the next outer sync; return the roster with this island, the same on all its ranks.

        Raises:
            RuntimeError: too few islands arrived within `patience`.
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
        """Report that this rank is done, or its `trouble`, and wait for the others.

        Returns:
            The reason if the outer sync failed.
        """
        self._store.tell(Conclude(roster.round_id, self._rank, trouble or ""))
        try:
            return self._verdict(roster)
        except DistStoreError:
            self._store.tell(Conclude(roster.round_id, self._rank, self._late))
            return self._verdict(roster)

    def await_verdict(self, roster: Roster) -> str | None:
        """Wait for the participants' verdict; return the reason if the outer sync failed."""
        try:
            return self._verdict(roster)
        except DistStoreError:
            return self._late

    def trouble(self, roster: Roster) -> str | None:
        """Return the reason if this outer sync is known to have failed already."""
        return self._verdict(roster) if self._store.check([verdict_key(roster.round_id)]) else None

    @property
    def _late(self) -> str:
        return f"the others were not done within {self._limit_s:.0f} s"

    def _verdict(self, roster: Roster) -> str | None:
        """Return the reason if the outer sync failed.

        Raises:
            DistStoreError: the time limit has passed.
        """
        verdict = self._store.wait_for(verdict_key(roster.round_id), self._limit_s).decode()
        return None if verdict == DONE else verdict

    def report_state(self, round_id: int, num_ranks: int, trouble: str | None) -> None:
        """Report that this rank has received the state after that round, or its `trouble`.

        Trouble, or the last of `num_ranks` reports, sets the turn of all ranks.
        """
        turn, reports = turn_keys(round_id, self._island)
        if trouble is not None:
            self._store.compare_set(turn, "", f"{FAILED}: rank {self._rank}: {trouble}")
        elif self._store.add(reports, 1) == num_ranks:
            self._store.compare_set(turn, "", DONE)

    def turn(self, round_id: int, limit_s: float) -> str | None:
        """Return the turn of this island's ranks after that round; None if none is set within `limit_s`."""
        turn, _ = turn_keys(round_id, self._island)
        try:
            return self._store.wait_for(turn, max(limit_s, MIN_LOOK_S)).decode()
        except DistStoreError:
            return None

    def follow_next_sync(self, round_id: int) -> None:
        """On rank 0, let all ranks follow the next outer sync once it has begun, or a member of it has arrived."""
        if self._rank:
            return
        standing = self.standing()
        if standing.num_rosters > round_id + 1 or not all(each.is_behind for each in standing.waiting):
            self._store.compare_set(turn_keys(round_id, self._island)[0], "", FOLLOW)


def _packed(pieces: Iterable[FlatSlice]) -> bytes:
    return zlib.compress(to_json(ShardLayout((tuple(pieces),))).encode())


def _pieces_in(packed: bytes) -> tuple[FlatSlice, ...]:
    """Return the pieces that `_packed` packed. Raises ValueError if they are malformed or too large."""
    unpacking = zlib.decompressobj()
    try:
        text = unpacking.decompress(packed, MAX_LAYOUT_BYTES)
    except zlib.error as error:
        raise ValueError(f"the pieces of a rank cannot be unpacked: {error}") from None
    if not unpacking.eof:
        raise ValueError(f"the pieces of a rank are incomplete, or more than {MAX_LAYOUT_BYTES} bytes")
    (pieces,) = parse(ShardLayout, text.decode(), MAX_VALUES).ranks
    return pieces
