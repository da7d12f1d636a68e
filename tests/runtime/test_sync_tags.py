"""Between islands, what was changed on the way is told from states that differ, and neither is taken."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from queue import Queue
from threading import Event
from typing import NamedTuple, cast

import pytest
import torch
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from holmes_runtime.config.islands.roster import Arrival, Roster
from holmes_runtime.node.admission.keyed_frames import FrameAltered
from holmes_runtime.outer.lane_exchange import LaneMaker, OpenLane
from holmes_runtime.outer.lanes import Cell, FlatSlice, Lane, ShardLayout
from holmes_runtime.outer.outer_step import digest_of
from holmes_runtime.outer.rendezvous import Rendezvous
from holmes_runtime.outer.rendezvous_store import RendezvousStore
from holmes_runtime.outer.state_transfer import GIVER, NEWCOMER, StateReceiver, StateSender
from holmes_runtime.outer.sync_tags import SyncTags

from .launched_runs import ONE_ISLAND

LANE = Lane((3, 5), ())


def coming(island: int) -> Arrival:
    return Arrival(island, 1, 8, 4, "same", False, 100, 0.0, 10.0, -1)


DECISION = Roster(7, 4, (coming(0), coming(1)), ())


def tags_of(store: HashStore, island: int, decision: Roster = DECISION, frozen_weights: str | None = None) -> SyncTags:
    """Those that a rank of an island makes in an exchange."""
    sync = replace(ONE_ISLAND, island=island, num_islands=2)
    meeting = Rendezvous(cast(RendezvousStore, store), sync, LANE.owners[island], 60.0)
    maker = LaneMaker(meeting, store, LANE.owners[island], timedelta(seconds=60), "lo", 1)
    return SyncTags(maker, decision, frozen_weights)


@pytest.fixture
def store() -> HashStore:
    return HashStore()


def numbers(seed: int) -> Tensor:
    return torch.randint(256, (333,), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def test_equal_states_on_other_frozen_weights_differ(store: HashStore) -> None:
    digest = digest_of([numbers(2)])
    mine, same, other = (tags_of(store, island, frozen_weights=name) for island, name in ((0, "a"), (1, "a"), (1, "b")))

    tags = mine.tags(LANE, 0, [numbers(1)], digest)

    assert same.agree(LANE, 0, digest, tags)
    assert not other.agree(LANE, 0, digest, tags)
    other.check(LANE, 0, [numbers(1)], tags)  # nothing was altered on the way


def test_every_flipped_bit_of_what_a_member_sends_is_noticed(store: HashStore) -> None:
    sender, taker, digest = tags_of(store, 0), tags_of(store, 1), digest_of([numbers(2)])
    for seed in range(300):
        dice, packed = random.Random(seed), numbers(1)
        tags = sender.tags(LANE, 0, [packed], digest)
        taker.check(LANE, 0, [packed], tags)
        assert taker.agree(LANE, 0, digest, tags)
        changed = dice.choice([packed, tags])
        bit = dice.randrange(8 * len(changed))
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FrameAltered, match="what rank 3 of island 0 sent to rank 5 of another was changed"):
            taker.check(LANE, 0, [packed], tags)


def test_a_member_is_not_shown_its_own_tags_as_those_of_another(store: HashStore) -> None:
    mine, packed, digest = tags_of(store, 1), numbers(1), digest_of([numbers(2)])
    with pytest.raises(FrameAltered):
        mine.check(LANE, 0, [packed], mine.tags(LANE, 1, [packed], digest))


def test_tags_of_an_exchange_before_are_not_those_of_this_one(store: HashStore) -> None:
    before, packed, digest = tags_of(store, 0, replace(DECISION, round_id=6)), numbers(1), digest_of([numbers(2)])
    with pytest.raises(FrameAltered):
        tags_of(store, 1).check(LANE, 0, [packed], before.tags(LANE, 0, [packed], digest))


def test_who_is_not_at_the_meeting_cannot_make_tags(store: HashStore) -> None:
    packed, digest = numbers(1), digest_of([numbers(2)])
    with pytest.raises(FrameAltered):
        tags_of(store, 1).check(LANE, 0, [packed], tags_of(HashStore(), 0).tags(LANE, 0, [packed], digest))


def test_another_state_is_no_change_on_the_way(store: HashStore) -> None:
    packed, tags = numbers(1), tags_of(store, 0).tags(LANE, 0, [numbers(1)], digest_of([numbers(2)]))
    taker = tags_of(store, 1)
    taker.check(LANE, 0, [packed], tags)
    assert not taker.agree(LANE, 0, digest_of([numbers(3)]), tags)


def two_meetings(store: HashStore) -> tuple[Rendezvous, ...]:
    return tuple(
        Rendezvous(cast(RendezvousStore, store), replace(ONE_ISLAND, island=island, num_islands=2), 0, 60.0)
        for island in range(2)
    )


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"a": (4,)}, r"parameter b has shape none on island 1 and \(2, 2\) on another"),
        ({"a": (4,), "b": (4,)}, r"parameter b has shape \(4,\) on island 1 and \(2, 2\) on another"),
        ({"a": (4,), "b": (2, 2), "c": ()}, r"parameter c has shape \(\) on island 1 and none on another"),
    ],
)
def test_islands_of_other_models_end_before_a_step(
    store: HashStore, other: dict[str, tuple[int, ...]], said: str
) -> None:
    first, second = two_meetings(store)
    mine = layout_of({"a": (4,), "b": (2, 2)})
    first.compare_model(mine)
    second.compare_model(mine)
    with pytest.raises(RuntimeError, match=said):
        second.compare_model(layout_of(other))


def test_islands_that_begin_anew_with_other_weights_end_before_a_step(store: HashStore) -> None:
    first, second = two_meetings(store)
    first.compare_weights(0, 17)
    second.compare_weights(0, 17)
    second.compare_weights(1, 18)
    with pytest.raises(RuntimeError, match="island 1 begins with other weights than the first island"):
        second.compare_weights(0, 18)


def layout_of(shapes: dict[str, tuple[int, ...]]) -> ShardLayout:
    """One rank holds all."""
    pieces = (FlatSlice(name, of, (0,) * len(of), of, 0, math.prod(of)) for name, of in shapes.items())
    return ShardLayout((tuple(pieces),))


def test_islands_whose_tokenizers_differ_do_not_train_together(store: HashStore, tmp_path: Path) -> None:
    first, second = two_meetings(store)
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    first.compare_tokenizer(str(path))
    second.compare_tokenizer(str(path))
    path.write_text("{ }")
    with pytest.raises(RuntimeError, match=r"tokenizer.json has SHA-256 257c1be96ae6 on island 1 and 44136fa355b3 on"):
        second.compare_tokenizer(str(path))


class Wire:
    """Both directions of a lane between a giver and a newcomer, and the bit that is flipped of what one gets."""

    def __init__(self, flips_at: int | None, bit: int) -> None:
        self.queues = Queue[Tensor](), Queue[Tensor]()
        self.flips_at, self.bit = flips_at, bit


class Work(NamedTuple):
    """What is under way until somebody waits for it."""

    wait: Callable[[], None]


class WireEnd:
    """The group of the owner at `position` of the lane."""

    def __init__(self, wire: Wire, position: int) -> None:
        self._wire, self._position, self._heard = wire, position, 0

    def send(self, parts: list[Tensor], to: int, _: int) -> Work:
        self._wire.queues[to].put(parts[0].clone())
        return Work(lambda: None)

    def recv(self, parts: list[Tensor], _: int, __: int) -> Work:
        return Work(partial(self._take, parts[0]))

    def _take(self, target: Tensor) -> None:
        came = self._wire.queues[self._position].get(timeout=600)
        if self._position == NEWCOMER and self._heard == self._wire.flips_at:
            data = came.view(torch.uint8)
            data[self._wire.bit // 8 % len(data)] ^= 1 << self._wire.bit % 8
        self._heard += 1
        target.copy_(came)


class OneLane:
    """A LaneMaker of one lane, on a wire of this process."""

    streams = 1

    def __init__(self, store: HashStore, wire: Wire, position: int) -> None:
        meeting = Rendezvous(
            cast(RendezvousStore, store), replace(ONE_ISLAND, num_islands=2), LANE.owners[position], 60.0
        )
        self._real = LaneMaker(meeting, store, LANE.owners[position], timedelta(seconds=60), "lo", 1)
        self._opened = [OpenLane(LANE._replace(cells=(Cell("w", (0,), (100,)),)), WireEnd(wire, position))]
        self.tag = self._real.tag

    def lanes(self, *_: object) -> list[Lane]:
        return [self._opened[0].lane]

    def open(self, *_: object) -> list[OpenLane]:
        return self._opened


class State:
    """An OuterState of one tensor."""

    def gather(self, values: Tensor, _: object) -> Tensor:
        return values


def test_a_newcomer_takes_no_state_that_was_changed_on_the_way(store: HashStore) -> None:
    decision = Roster(7, 4, (coming(0),), (coming(1),))
    anchor, momentum, is_free = torch.rand(100), torch.rand(100), Event()
    is_free.set()
    for seed in range(200):
        dice = random.Random(seed)
        wire = Wire(dice.choice([0, 1, None]), dice.randrange(8 * 800))
        StateSender(OneLane(store, wire, GIVER), decision, coming(1), State(), (anchor, momentum), is_free)  # type: ignore[arg-type]
        given = StateReceiver(OneLane(store, wire, NEWCOMER), decision, coming(1))  # type: ignore[arg-type]
        if wire.flips_at is None:
            given.wait(Event())
            assert torch.equal(given.states[0], torch.cat([anchor, momentum]))
        else:
            with pytest.raises(FrameAltered, match="rank 3 of the other island was changed on the way"):
                given.wait(Event())
