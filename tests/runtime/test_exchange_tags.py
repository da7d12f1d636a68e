"""Between islands, what was changed on the way is told from states that differ, and neither is taken."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta

import pytest
import torch
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from holmes_runtime.admission.keyed_frames import ChangedOnTheWay
from holmes_runtime.outer.decision import Coming, Decision
from holmes_runtime.outer.exchange_tags import ExchangeTags
from holmes_runtime.outer.lane_exchange import LaneMaker
from holmes_runtime.outer.lanes import Lane
from holmes_runtime.outer.meeting import Meeting
from holmes_runtime.outer.outer_step import digest_of

from .launched_runs import ONE_ISLAND

LANE = Lane((3, 5), ())


def coming(island: int) -> Coming:
    return Coming(island, 1, 8, 4, "same", False, 100, 0.0, 10.0, -1)


DECISION = Decision(7, 4, (coming(0), coming(1)), ())


def tags_of(store: HashStore, island: int, decision: Decision = DECISION) -> ExchangeTags:
    """Those that a rank of an island makes in an exchange."""
    sync = replace(ONE_ISLAND, island=island, num_islands=2)
    meeting = Meeting(store, sync, LANE.owners[island], 60.0)
    maker = LaneMaker(meeting, store, LANE.owners[island], timedelta(seconds=60), "lo", 1)
    return ExchangeTags(maker, decision)


@pytest.fixture
def store() -> HashStore:
    return HashStore()


def numbers(seed: int) -> Tensor:
    return torch.randint(256, (333,), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def test_every_flipped_bit_of_what_a_member_sends_is_noticed(store: HashStore) -> None:
    sender, taker, digest = tags_of(store, 0), tags_of(store, 1), digest_of([numbers(2)])
    for seed in range(300):
        dice, packed = random.Random(seed), numbers(1)
        tags = sender.tags(LANE, 0, packed, digest)
        taker.check(LANE, 0, packed, tags)
        assert taker.agree(LANE, 0, digest, tags)
        changed = dice.choice([packed, tags])
        bit = dice.randrange(8 * len(changed))
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ChangedOnTheWay, match="what rank 3 of island 0 sent to rank 5 of another was changed"):
            taker.check(LANE, 0, packed, tags)


def test_a_member_is_not_shown_its_own_tags_as_those_of_another(store: HashStore) -> None:
    mine, packed, digest = tags_of(store, 1), numbers(1), digest_of([numbers(2)])
    with pytest.raises(ChangedOnTheWay):
        mine.check(LANE, 0, packed, mine.tags(LANE, 1, packed, digest))


def test_tags_of_an_exchange_before_are_not_those_of_this_one(store: HashStore) -> None:
    before, packed, digest = tags_of(store, 0, DECISION._replace(slot=6)), numbers(1), digest_of([numbers(2)])
    with pytest.raises(ChangedOnTheWay):
        tags_of(store, 1).check(LANE, 0, packed, before.tags(LANE, 0, packed, digest))


def test_who_is_not_at_the_meeting_cannot_make_tags(store: HashStore) -> None:
    packed, digest = numbers(1), digest_of([numbers(2)])
    with pytest.raises(ChangedOnTheWay):
        tags_of(store, 1).check(LANE, 0, packed, tags_of(HashStore(), 0).tags(LANE, 0, packed, digest))


def test_another_state_is_no_change_on_the_way(store: HashStore) -> None:
    packed, tags = numbers(1), tags_of(store, 0).tags(LANE, 0, numbers(1), digest_of([numbers(2)]))
    taker = tags_of(store, 1)
    taker.check(LANE, 0, packed, tags)
    assert not taker.agree(LANE, 0, digest_of([numbers(3)]), tags)
