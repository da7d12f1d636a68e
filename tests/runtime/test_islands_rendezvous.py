"""The rendezvous as the ranks of an island see it: rosters, verdicts, and the turns of their own island."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from holmes_runtime.config.islands.membership_messages import DONE
from holmes_runtime.config.islands.rendezvous_messages import MEETING
from holmes_runtime.config.islands.roster import Arrival, Patience, Roster
from holmes_runtime.outer.lanes import FlatSlice
from holmes_runtime.outer.rendezvous import FOLLOW, Rendezvous
from holmes_runtime.outer.rendezvous_store import open_meeting
from holmes_runtime.outer.sync_steps import is_awaited

from .launched_runs import ONE_ISLAND
from .meeting_place import MeetingPlace

PATIENCE = Patience(grace_s=600.0, ahead_s=600.0)
SOON = Patience(grace_s=0.1, ahead_s=0.2)


def coming(island: int, exchange: int = 3, lineage: str = "x", is_behind: bool = False) -> Arrival:
    return Arrival(island, 1, 1, exchange, lineage, is_behind, 100, 0.0, 1.0, -1)


@pytest.fixture
def place() -> MeetingPlace:
    return MeetingPlace()


def rank_of(place: MeetingPlace, island: int, rank: int = 0, limit_s: float = 600.0) -> Rendezvous:
    store = open_meeting({MEETING: place.addresses[island]})
    return Rendezvous(store, replace(ONE_ISLAND, num_islands=2, island=island), rank, limit_s)


@pytest.fixture
def islands(place: MeetingPlace) -> list[Rendezvous]:
    """Rank 0 of two islands that have begun."""
    ranks = [rank_of(place, island) for island in range(2)]
    for each in ranks:
        each.begin(3, "x")
    return ranks


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def both(islands: list[Rendezvous], pool: ThreadPoolExecutor) -> Roster:
    """The roster of both."""
    first, second = pool.map(lambda each: islands[each].meet(coming(each), PATIENCE), range(2))
    assert first == second
    return first


def test_all_ranks_hear_of_one_roster_and_of_one_verdict(
    place: MeetingPlace, islands: list[Rendezvous], pool: ThreadPoolExecutor
) -> None:
    first, second = islands
    third = rank_of(place, 1, rank=1)
    assert third.begin(3, "x").start == 0  # rank 0 has begun for all
    arrivals = [coming(0), replace(coming(1), num_ranks=2)]
    meetings = [(first, arrivals[0]), (second, arrivals[1]), (third, arrivals[1])]
    rosters = list(pool.map(lambda each: each[0].meet(each[1], PATIENCE), meetings))

    assert {each.members for each in rosters} == {tuple(arrivals)}
    assert first.trouble(rosters[0]) is None
    assert list(pool.map(lambda each: each[0].conclude(rosters[0], None), meetings)) == [None] * 3
    assert first.await_verdict(rosters[0]) is None
    again = rank_of(place, 1)
    assert again.begin(4, rosters[0].lineage) == (2, False)
    assert again.begin(3, "x") == (3, True)


def test_the_trouble_of_one_rank_is_the_verdict_for_all(islands: list[Rendezvous], pool: ThreadPoolExecutor) -> None:
    roster = both(islands, pool)

    said = pool.submit(islands[0].conclude, roster, None)
    assert islands[1].conclude(roster, "its peer is gone") == "island 1, rank 0: its peer is gone"
    assert (
        said.result()
        == islands[0].trouble(roster)
        == islands[0].await_verdict(roster)
        == "island 1, rank 0: its peer is gone"
    )


def test_a_rank_that_is_never_done_is_not_waited_for_for_ever(place: MeetingPlace, pool: ThreadPoolExecutor) -> None:
    islands = [rank_of(place, island, limit_s=0.2) for island in range(2)]
    for each in islands:
        each.begin(3, "x")
    roster = both(islands, pool)

    assert islands[1].await_verdict(roster) == "the others were not done within 0 s"
    assert islands[0].conclude(roster, None) == "island 0, rank 0: the others were not done within 0 s"
    assert islands[1].conclude(roster, None) == "island 0, rank 0: the others were not done within 0 s"


def test_an_island_that_is_lost_ends_the_wait_for_the_verdict(
    place: MeetingPlace, islands: list[Rendezvous], pool: ThreadPoolExecutor
) -> None:
    roster = both(islands, pool)
    said = pool.submit(islands[0].conclude, roster, None)
    place.meeting.lose(1)
    assert said.result() == "island 1 is lost"
    assert islands[0].standing().loss(roster.members[1]) == "island 1 is lost"


def test_an_island_that_meets_too_few_says_so() -> None:
    lonely = MeetingPlace(2, quorum=2)
    first = rank_of(lonely, 0)
    first.begin(3, "x")
    with pytest.raises(
        RuntimeError, match=r"islands: 1 of at least 2 have arrived at outer sync 3 within 0 s: island 0"
    ):
        first.meet(coming(0), SOON)


def test_an_island_that_waits_is_seen_by_those_that_have_not_come(
    islands: list[Rendezvous], pool: ThreadPoolExecutor
) -> None:
    late = pool.submit(islands[1].meet, coming(1, is_behind=True), PATIENCE)
    while not islands[0].waiting():
        pass
    assert islands[0].waiting() == [coming(1, is_behind=True)]
    assert islands[1].waiting() == []
    assert islands[0].meet(coming(0), PATIENCE) == late.result()


def test_those_that_wait_for_the_state_follow_the_next_exchange_until_all_of_them_have_it(
    place: MeetingPlace, islands: list[Rendezvous], pool: ThreadPoolExecutor
) -> None:
    ranks = [islands[1], rank_of(place, 1, rank=1)]

    ranks[0].follow_next_sync(0)
    assert ranks[1].turn(0, 0.0) is None
    ranks[1].report_state(0, 2, None)
    assert ranks[0].turn(0, 0.0) is None
    ahead = pool.submit(islands[0].meet, coming(0), PATIENCE)
    while not ranks[0].waiting():
        pass
    ranks[1].follow_next_sync(0)
    assert ranks[1].turn(0, 0.0) is None  # one rank looks for all
    ranks[0].follow_next_sync(0)
    assert [rank.turn(0, 600.0) for rank in ranks] == [FOLLOW, FOLLOW]
    assert ranks[0].meet(coming(1, is_behind=True), PATIENCE) == ahead.result()
    for rank in ranks:
        rank.report_state(1, 2, None)
    assert [rank.turn(1, 600.0) for rank in ranks] == [DONE, DONE]


def test_those_that_wait_for_the_state_follow_an_exchange_that_has_begun_without_them(
    islands: list[Rendezvous],
) -> None:
    for _ in range(2):
        roster = islands[0].meet(coming(0), SOON)
        islands[0].conclude(roster, None)
    islands[1].follow_next_sync(1)
    assert islands[1].turn(1, 0.0) is None
    islands[1].follow_next_sync(0)
    assert islands[1].turn(0, 600.0) == FOLLOW


def test_one_rank_that_does_not_get_the_state_has_all_of_its_island_begin_anew(
    place: MeetingPlace, islands: list[Rendezvous]
) -> None:
    ranks = [islands[1], rank_of(place, 1, rank=1)]

    ranks[0].report_state(7, 2, None)
    ranks[1].report_state(7, 2, "island 0 is lost")

    assert [rank.turn(7, 600.0) for rank in ranks] == ["failed: rank 1: island 0 is lost"] * 2


@pytest.mark.parametrize(
    ("waiting", "left_s", "is_last", "awaited"),
    [
        ([], 99.0, False, False),
        ([coming(1)], 2.0, False, False),
        ([coming(1)], 3.0, False, True),
        ([coming(1)], 3.0, True, True),
        ([coming(1, is_behind=True)], 0.0, False, True),
        ([coming(1, is_behind=True)], 99.0, True, False),
        ([replace(coming(1, is_behind=True), follows="x")], 99.0, False, False),
        ([coming(1, is_behind=True), coming(2)], 99.0, True, True),
    ],
)
def test_who_waits_for_the_state_or_for_long_is_met_at_once(
    waiting: list[Arrival], left_s: float, is_last: bool, awaited: bool
) -> None:
    assert is_awaited(waiting, left_s, 5.0, is_last) is awaited


def test_islands_know_one_another_s_pieces(islands: list[Rendezvous]) -> None:
    piece = FlatSlice("a", (4, 2), (0, 0), (4, 2), 3, 8)
    islands[0].show(1, (piece,))

    assert islands[1].layout(0, 1, 1).ranks == ((piece,),)
