"""How islands agree on who takes part in an exchange, and on whether it took place."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from datetime import timedelta

import pytest
from torch._C._distributed_c10d import HashStore

from holmes_runtime.config.rendezvous_messages import LOST, SILENT, here_key
from holmes_runtime.config.strict_json import to_json
from holmes_runtime.outer.lanes import FlatSlice
from holmes_runtime.outer.rendezvous import DONE, FOLLOW, Rendezvous
from holmes_runtime.outer.roster import ANEW, Arrival, Patience, Roster, SyncPoint, decide
from holmes_runtime.outer.sync_steps import is_awaited

from .launched_runs import ONE_ISLAND

PATIENCE = Patience(grace_s=5.0, ahead_s=60.0)
SOON = Patience(grace_s=0.2, ahead_s=0.5)


def coming(island: int, exchange: int = 3, lineage: str = "x", is_behind: bool = False) -> Arrival:
    return Arrival(island, 1, 1, exchange, lineage, is_behind, 100, 0.0, 1.0, -1)


def decided(
    here: list[Arrival],
    waited_s: float = 0.0,
    expected: set[int] | None = None,
    quorum: int = 1,
    left: int | None = None,
) -> tuple[list[int], list[int]] | None:
    """Members and joiners as the first of those who are `here` of three islands decides."""
    possible = {0, 1, 2} - ({left} if left is not None else set())
    wanted = possible if expected is None else expected
    found = decide(7, here, wanted, possible, here[0], waited_s, PATIENCE, quorum)
    return ([each.island for each in found.members], [each.island for each in found.joiners]) if found else None


def test_an_exchange_closes_when_all_have_come_or_the_grace_is_over() -> None:
    two = [coming(0), coming(1)]

    assert decided([*two, coming(2)]) == ([0, 1, 2], [])
    assert decided(two, 4.9) is None
    assert decided(two, 5.0) == ([0, 1], [])
    assert decided(two, expected={0, 1}) == ([0, 1], [])
    assert decided(two, left=2) == ([0, 1], [])


def test_fewer_than_the_quorum_wait_on() -> None:
    assert decided([coming(0)], 1000.0, quorum=2) is None
    assert decided([coming(0), coming(1)], 5.0, quorum=2) == ([0, 1], [])


def test_who_is_behind_or_of_another_state_joins_those_who_are_furthest() -> None:
    assert decided([coming(0), coming(1), coming(2, 1, "y", True)]) == ([0, 1], [2])
    assert decided([coming(0), coming(1, 2, "w"), coming(2)]) == ([0, 2], [1])
    assert decided([coming(0), coming(1, lineage="other"), coming(2)]) == ([0, 2], [1])


def test_those_who_are_behind_wait_for_somebody_ahead_and_then_go_on_by_themselves() -> None:
    behind = [coming(0, 2, "u", True), coming(1, 1, "v", True)]

    assert decided(behind, 5.0) is None
    assert decided(behind, 60.0) == ([0], [1])
    assert decided(behind, left=2) == ([0], [1])


def test_who_is_being_given_the_state_of_the_members_takes_part_and_who_begins_anew_does_not() -> None:
    behind = [coming(each, 1, "y", is_behind=True) for each in (2, 3, 4)]
    follows, of_others, again = (
        replace(each, follows=state) for each, state in zip(behind, ("x", "w", ANEW), strict=True)
    )
    decision = Roster(7, 3, (coming(0), coming(1)), (follows, of_others, again))

    assert decision.followers == (follows,)
    assert decision.participants == (coming(0), coming(1), follows)
    assert [decision.giver(each).island for each in (of_others, again)] == [0, 1]
    assert [each.calls for each in (*behind, follows, of_others, again)] == [True] * 3 + [False] * 3
    assert decision.lineage == Roster(9, 3, (coming(0), coming(1)), ()).lineage


def test_those_who_wait_for_the_state_follow_the_next_exchange_until_all_of_them_have_it() -> None:
    store = hash_store()
    sync = replace(ONE_ISLAND, num_islands=2, island=1)
    ranks = [Rendezvous(store, sync, rank, 5.0) for rank in range(2)]
    for rank in ranks:
        rank.round_id = 8

    ranks[0].follow_if_held(7)
    assert ranks[1].turn(7, 0.0) is None
    ranks[1].tell_of_state(7, 2, None)
    assert ranks[0].turn(7, 0.0) is None
    store.set("arrival/8/0", to_json(coming(0, 4)))
    ranks[1].follow_if_held(7)
    assert ranks[1].turn(7, 0.0) is None  # one rank looks for all
    ranks[0].follow_if_held(7)
    assert [rank.turn(7, 5.0) for rank in ranks] == [FOLLOW, FOLLOW]
    for rank in ranks:
        rank.tell_of_state(8, 2, None)
    assert [rank.turn(8, 5.0) for rank in ranks] == [DONE, DONE]


def test_one_rank_that_does_not_get_the_state_has_all_of_its_island_begin_anew() -> None:
    store = hash_store()
    sync = replace(ONE_ISLAND, num_islands=2, island=1)
    ranks = [Rendezvous(store, sync, rank, 5.0) for rank in range(2)]

    ranks[0].tell_of_state(7, 2, None)
    ranks[1].tell_of_state(7, 2, "island 0 is lost")

    assert [rank.turn(7, 5.0) for rank in ranks] == ["failed: rank 1: island 0 is lost"] * 2


@pytest.mark.parametrize(
    ("exchange", "lineage", "is_past"), [(4, "x", False), (4, "y", True), (3, "x", True), (6, "y", False)]
)
def test_an_island_knows_that_it_has_missed_an_exchange(exchange: int, lineage: str, is_past: bool) -> None:
    assert SyncPoint(9, 3, "x").is_past(exchange, lineage) is is_past


def meetings(store: HashStore, num_islands: int = 2, limit_s: float = 5.0, quorum: int = 1) -> list[Rendezvous]:
    """Of islands that have begun."""
    sync = replace(ONE_ISLAND, num_islands=num_islands, quorum=quorum)
    found = [Rendezvous(store, replace(sync, island=island), 0, limit_s) for island in range(num_islands)]
    for each in found:
        each.begin()
    return found


def hash_store() -> HashStore:
    store = HashStore()
    store.set_timeout(timedelta(seconds=5))
    return store


def both(first: Rendezvous, second: Rendezvous, starts: Sequence[int] = (1, 1)) -> list[Roster]:
    def meet(island: int, meeting: Rendezvous) -> Roster:
        return meeting.meet(replace(coming(island), start=starts[island]), PATIENCE)

    with ThreadPoolExecutor() as pool:
        return list(pool.map(meet, range(2), (first, second)))


def test_all_hear_of_one_decision_and_of_one_verdict() -> None:
    store = hash_store()
    first, second = meetings(store)

    decisions = both(first, second)

    assert decisions[0] == decisions[1]
    with ThreadPoolExecutor() as pool:
        assert list(pool.map(lambda each: each.conclude(decisions[0], None), (first, second))) == [None, None]
    assert first.reached() == SyncPoint(0, 3, decisions[0].lineage)
    assert decisions[0].lineage != "x"


def test_one_rank_s_trouble_is_the_verdict_for_all() -> None:
    store = hash_store()
    first, second = meetings(store)
    decision = both(first, second)[0]

    with ThreadPoolExecutor() as pool:
        said = pool.submit(first.conclude, decision, None)
        assert second.conclude(decision, "its peer is gone") == "island 1, rank 0: its peer is gone"
        assert said.result() == "island 1, rank 0: its peer is gone"
    assert first.reached() is None


@pytest.mark.parametrize("limit_s", [0.2, 0.0005])  # a store takes less than a millisecond for no limit
def test_a_rank_that_is_never_done_is_not_waited_for_for_ever(limit_s: float) -> None:
    store = hash_store()
    first, second = meetings(store, limit_s=limit_s)
    decision = both(first, second)[0]

    assert first.conclude(decision, None) == "island 0, rank 0: the others were not done within 0 s"
    assert second.conclude(decision, None) == "island 0, rank 0: the others were not done within 0 s"


def test_an_island_that_is_lost_within_an_exchange_is_not_waited_for() -> None:
    store = hash_store()
    first, second = meetings(store, limit_s=3600.0)
    decision = both(first, second)[0]
    assert first.loss(decision.all) is None

    store.set(here_key(1), LOST)  # as the controller does

    assert first.loss(decision.all) == "island 1 is lost"
    assert first.conclude(decision, None) == "island 0, rank 0: island 1 is lost"


def test_an_island_that_is_not_heard_within_an_exchange_is_not_waited_for_until_it_is_heard_again() -> None:
    store = hash_store()
    first, second = meetings(store, limit_s=3600.0)
    decision = both(first, second)[0]

    store.set(here_key(1), SILENT)  # as the controller does

    assert first.conclude(decision, None) == "island 0, rank 0: island 1 has a host that is not heard"
    assert first.meet(coming(0, 4, "y"), PATIENCE).all == (coming(0, 4, "y"),)  # at once
    store.set(here_key(1), "1")
    assert first.loss(decision.all) is None


def test_of_an_island_that_is_not_heard_others_decide_though_some_of_its_ranks_have_come() -> None:
    store = hash_store()
    first, second = meetings(store)
    store.set(here_key(1), SILENT)

    with ThreadPoolExecutor() as pool:
        silent = pool.submit(second.meet, coming(1), SOON)
        while not store.check(["arrival/0/1"]):
            pass
        assert first.meet(coming(0), PATIENCE).all == (coming(0),)
        with pytest.raises(RuntimeError, match="0 of at least 1"):
            silent.result()


def test_who_came_before_its_island_was_lost_is_not_met() -> None:
    store = hash_store()
    first, _ = meetings(store)
    store.set("arrival/0/1", to_json(coming(1)))
    store.set(here_key(1), LOST)

    assert first.meet(coming(0), PATIENCE).all == (coming(0),)


def test_an_island_that_came_too_late_comes_to_the_next_slot_as_one_that_is_behind() -> None:
    store = hash_store()
    first, second = meetings(store)
    assert first.meet(coming(0), SOON).members == (coming(0),)

    with ThreadPoolExecutor() as pool:
        late = pool.submit(second.meet, coming(1), PATIENCE)
        while not store.check(["arrival/1/1"]):
            pass
        decision = first.meet(coming(0, 4, "z"), SOON)
        assert late.result() == decision
    assert decision.members == (coming(0, 4, "z"),)
    assert decision.joiners == (coming(1, is_behind=True),)


def test_what_was_agreed_on_with_ranks_that_are_no_more_is_not_for_those_who_come_after_them() -> None:
    store = hash_store()
    first, second = meetings(store)
    assert len(both(first, second)[0].members) == 2
    again = Rendezvous(store, replace(ONE_ISLAND, num_islands=2, island=1), 0, 5.0)
    again.begin()

    with ThreadPoolExecutor() as pool:
        late = pool.submit(again.meet, replace(coming(1), start=2, num_ranks=3), PATIENCE)
        while not store.check(["arrival/1/1"]):
            pass
        decision = first.meet(coming(0), PATIENCE)
        assert late.result() == decision
    assert decision.joiners == (replace(coming(1, is_behind=True), start=2, num_ranks=3),)


def test_who_waits_at_the_next_slot_is_seen_by_those_who_have_not_come() -> None:
    store = hash_store()
    first, second = meetings(store)
    assert first.meet(coming(0), SOON).members == (coming(0),)
    assert first.waiting() == []

    with ThreadPoolExecutor() as pool:
        late = pool.submit(second.meet, coming(1), PATIENCE)
        while not (waiting := first.waiting()):
            pass
        decision = first.meet(coming(0, 4, "z"), SOON)
        assert late.result() == decision
    assert waiting == [coming(1, is_behind=True)]
    assert first.waiting() == []


def test_all_who_have_not_left_are_waited_for_at_the_first_exchange_beyond_the_grace() -> None:
    store = hash_store()
    first, second = meetings(store)
    patience = Patience(grace_s=0.01, ahead_s=60.0)

    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(first.meet, coming(0), patience)
        assert not wait([waiting], timeout=0.5).done
        decision = second.meet(coming(1), patience)
        assert [each.island for each in decision.members] == [0, 1]
        assert waiting.result() == decision
    second.leave(has_ended=True)
    assert [each.island for each in first.meet(coming(0, 4), patience).members] == [0]


def test_where_too_few_ever_come_it_is_said_who_did() -> None:
    first, _ = meetings(hash_store(), quorum=2)

    with pytest.raises(RuntimeError, match=r"1 of at least 2 have come to exchange 3 within 1 s; .* there: 0"):
        first.meet(coming(0), SOON)


def test_who_is_behind_waits_as_long_as_the_others_are_from_one_exchange_to_the_next() -> None:
    store = hash_store()
    first, second = meetings(store)
    decision = first.meet(replace(coming(0), interval_s=50.0), SOON)

    assert SOON.with_interval_of(decision).ahead_s == pytest.approx(100.2)
    assert SOON.with_interval_of(None) == SOON
    second.round_id = 1
    with ThreadPoolExecutor() as pool:
        late = pool.submit(second.meet, coming(1, is_behind=True), SOON)
        assert not wait([late], timeout=1.5).done
        decision = first.meet(coming(0, 4), PATIENCE)
        assert late.result() == decision
    assert decision.joiners == (coming(1, is_behind=True),)


def test_an_island_that_was_stopped_may_come_back_and_counts_for_the_quorum() -> None:
    first, second = meetings(hash_store(), quorum=2)
    second.leave(has_ended=False)
    with pytest.raises(RuntimeError, match="1 of at least 2"):
        first.meet(coming(0), SOON)
    second.leave(has_ended=True)
    second.begin()
    with pytest.raises(RuntimeError, match="1 of at least 2"):
        first.meet(coming(0), SOON)


def test_those_who_have_ended_are_not_of_the_quorum() -> None:
    first, second = meetings(hash_store(), quorum=2)
    second.leave(has_ended=True)

    assert first.meet(coming(0), SOON).members == (coming(0),)


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


def test_islands_know_one_another_s_pieces() -> None:
    store = hash_store()
    first, second = meetings(store)
    piece = FlatSlice("a", (4, 2), (0, 0), (4, 2), 3, 8)
    first.show(1, (piece,))

    assert second.layout(0, 1, 1).ranks == ((piece,),)


def test_what_was_said_long_ago_is_taken_away_but_for_decisions() -> None:
    store = hash_store()
    (meeting,) = meetings(store, 1)
    for exchange in range(10):
        decision = meeting.meet(coming(0, exchange), PATIENCE)
        assert meeting.conclude(decision, None) is None
        meeting.tidy_up()

    assert not any(store.check([key]) for key in ("arrival/1/0", "done/1", "verdict/1"))
    assert store.check(["roster/1"])
    assert store.check(["verdict/2"])
