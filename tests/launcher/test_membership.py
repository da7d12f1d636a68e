"""Rosters and verdicts of outer syncs between islands, as the controller decides on them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holmes_runtime.config.islands.membership_messages import (
    DONE,
    LEFT,
    LOST,
    SILENT,
    Arrive,
    Begin,
    Conclude,
    Decision,
    IslandStart,
    Leave,
    decision_key,
    turn_keys,
    verdict_key,
)
from holmes_runtime.config.islands.roster import ANEW, Arrival, Patience, Roster, SyncPoint
from holmes_runtime.config.strict_json import parse
from launcher.islands.membership import ROUNDS_KEPT, Membership

PATIENCE = Patience(grace_s=5.0, ahead_s=60.0)
LAST = Patience(grace_s=60.0, ahead_s=60.0, lost_s=5.0)


def coming(island: int, exchange: int = 0, lineage: str = "x", is_behind: bool = False) -> Arrival:
    return Arrival(island, 1, 1, exchange, lineage, is_behind, 100, 0.0, 1.0, -1)


class Islands:
    """So many islands that have begun, their membership, and a clock."""

    def __init__(self, num_islands: int = 2, quorum: int = 1) -> None:
        self.now_s, self.keys = 0.0, dict[str, str]()
        self.membership = Membership(
            num_islands, quorum, self.keys.__setitem__, lambda key: self.keys.pop(key, None), lambda: self.now_s
        )
        self._meetings = [0] * num_islands
        for island in range(num_islands):
            self.membership.begin(island, Begin(0, "x"))

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.membership.look()

    def come(self, arrival: Arrival, patience: Patience = PATIENCE) -> None:
        self._meetings[arrival.island] += 1
        self.membership.arrive(arrival.island, Arrive(arrival, self._meetings[arrival.island], patience))

    def decision(self, island: int, start: int = 1) -> Decision | None:
        """The decision on its last arrival."""
        text = self.keys.get(decision_key(island, start, self._meetings[island]))
        return None if text is None else parse(Decision, text)

    def roster(self, island: int, start: int = 1) -> Roster | None:
        decision = self.decision(island, start)
        return decision.roster if decision is not None else None

    def chosen(self, island: int) -> tuple[list[int], list[int]] | None:
        """Members and joiners of the roster that has this island."""
        roster = self.roster(island)
        return ([each.island for each in roster.members], [each.island for each in roster.joiners]) if roster else None

    def report(self, roster: Roster, *troubles: str) -> None:
        """All ranks of all participants are done, those at the front of `troubles` with these."""
        for number, each in enumerate(roster.participants):
            for rank in range(each.num_ranks):
                trouble = troubles[number] if number < len(troubles) else ""
                self.membership.conclude(each.island, Conclude(roster.round_id, rank, trouble))

    def meet(self, *arrivals: Arrival) -> Roster:
        """The roster of these islands, which come and wait."""
        for arrival in arrivals:
            self.come(arrival)
        self.wait(60.0)
        roster = self.roster(arrivals[0].island)
        assert roster is not None
        return roster

    def hold(self, *arrivals: Arrival) -> Roster:
        """An outer sync of these islands, which takes place."""
        roster = self.meet(*arrivals)
        self.report(roster)
        assert self.keys[verdict_key(roster.round_id)] == DONE
        return roster


def three(quorum: int = 1) -> Islands:
    """Three islands after their first outer sync, due at the second in state "y"."""
    islands = Islands(3, quorum)
    islands.hold(coming(0), coming(1), coming(2))
    return islands


def test_an_exchange_begins_when_all_have_come_or_the_grace_is_over() -> None:
    islands = three()
    for each in range(2):
        islands.come(coming(each, 2, "y"))
    islands.wait(4.9)
    assert islands.chosen(0) is None
    islands.wait(0.2)
    assert islands.chosen(0) == islands.chosen(1) == ([0, 1], [])
    roster = islands.roster(0)
    assert roster is not None
    assert roster.exchange == 2

    again = three()
    for each in range(3):
        again.come(coming(each, 2, "y"))
    assert again.chosen(2) == ([0, 1, 2], [])


def test_who_has_left_or_was_not_there_the_last_time_is_not_waited_for() -> None:
    islands = three()
    islands.membership.leave(2, Leave(has_ended=False))
    for each in range(2):
        islands.come(coming(each, 2, "y"))
    assert islands.chosen(0) == ([0, 1], [])
    roster = islands.roster(0)
    assert roster is not None
    islands.report(roster)
    islands.membership.begin(2, Begin(2, "y"))
    for each in range(2):
        islands.come(coming(each, 4, "z"))
    assert islands.chosen(1) == ([0, 1], [])


def test_fewer_than_the_quorum_wait_on_and_then_it_is_said_who_came() -> None:
    islands = three(quorum=2)
    islands.come(coming(0, 2, "y"))
    islands.wait(119.0)
    assert islands.decision(0) is None
    islands.wait(2.0)
    decision = islands.decision(0)
    assert decision is not None
    assert decision.roster is None
    assert decision.trouble == "1 of at least 2 have arrived at outer sync 2 within 121 s: island 0"


def test_those_that_have_ended_are_not_of_the_quorum_and_one_that_was_stopped_is() -> None:
    islands = Islands(quorum=2)
    islands.membership.leave(1, Leave(has_ended=False))
    islands.come(coming(0))
    islands.wait(60.0)
    assert islands.roster(0) is None
    islands.membership.leave(1, Leave(has_ended=True))
    assert islands.chosen(0) == ([0], [])
    islands.membership.begin(1, Begin(0, "x"))
    roster = islands.roster(0)
    assert roster is not None
    islands.report(roster)
    islands.come(coming(0, 1, "y"))
    islands.wait(60.0)
    assert islands.roster(0) is None


def test_who_is_behind_or_of_another_state_joins_those_that_are_furthest() -> None:
    for other in (coming(1, 2, "u", is_behind=True), coming(1, 2, "w"), coming(1, 3, "other")):
        islands = three()
        for each in (coming(0, 3, "y"), other, coming(2, 3, "y")):
            islands.come(each)
        assert islands.chosen(0) == ([0, 2], [1])


def test_those_that_are_behind_wait_for_one_ahead_and_then_go_on_by_themselves() -> None:
    islands = three()
    for each in (coming(0, 2, "u", True), coming(1, 1, "v", True)):
        islands.come(each)
    islands.wait(59.0)
    assert islands.roster(0) is None
    islands.wait(2.0)
    assert islands.chosen(0) == ([0], [1])

    without = three()
    for each in (coming(0, 2, "u", True), coming(1, 1, "v", True)):
        without.come(each)
    without.membership.lose(2)
    assert without.chosen(0) == ([0], [1])


def test_one_that_is_behind_waits_as_long_as_the_others_are_from_one_exchange_to_the_next() -> None:
    islands = Islands()
    islands.hold(replace(coming(0), interval_s=50.0))
    islands.come(coming(1, is_behind=True))
    islands.wait(104.0)
    assert islands.roster(1) is None
    islands.come(coming(0, 1, "y"))
    assert islands.chosen(1) == ([0], [1])


def test_all_that_have_not_left_are_waited_for_at_the_first_exchange_beyond_the_grace() -> None:
    islands = Islands()
    islands.come(coming(0))
    islands.wait(59.0)
    assert islands.roster(0) is None
    islands.come(coming(1))
    assert islands.chosen(0) == ([0, 1], [])


def test_lost_islands_are_waited_for_at_the_last_exchange_as_they_may_be_on_their_way_back() -> None:
    for comes_back in (False, True):
        islands = three()
        islands.membership.lose(2)
        for each in range(2):
            islands.come(coming(each, 2, "y"), LAST)
        islands.wait(4.0)
        assert islands.roster(0) is None
        if comes_back:
            assert islands.membership.begin(2, Begin(0, "x")) == IslandStart(2, True)
            islands.come(replace(coming(2, is_behind=True), start=2), LAST)
            assert islands.chosen(0) == ([0, 1], [2])
        else:
            islands.wait(2.0)
            assert islands.chosen(0) == ([0, 1], [])


def test_all_hear_of_one_roster_and_of_one_verdict() -> None:
    islands = Islands()
    roster = islands.hold(replace(coming(0), num_ranks=2), coming(1))

    assert islands.roster(0) == islands.roster(1) == roster
    assert roster.lineage != "x"
    assert islands.membership.begin(1, Begin(1, roster.lineage)) == IslandStart(2, False)
    assert islands.membership.begin(1, Begin(1, "x")) == IslandStart(3, True)


def test_an_island_is_behind_if_others_have_gone_on_while_it_waited() -> None:
    islands = Islands()
    islands.come(coming(0))
    islands.wait(60.0)
    islands.come(coming(1))
    roster = islands.roster(0)
    assert roster is not None
    islands.wait(1000.0)
    assert islands.roster(1) is None  # though it has waited longer than it would: the others are still at the first
    islands.report(roster)
    assert islands.membership.standing.waiting == (coming(1, is_behind=True),)
    islands.come(coming(0, 1, roster.lineage))
    second = islands.roster(1)
    assert second is not None
    assert (second.members, second.joiners) == ((coming(0, 1, roster.lineage),), (coming(1, is_behind=True),))


def test_one_that_came_while_others_failed_is_as_good_as_they_are() -> None:
    islands = Islands()
    islands.come(coming(0))
    islands.wait(60.0)
    islands.come(coming(1))
    roster = islands.roster(0)
    assert roster is not None
    islands.report(roster, "its peer is gone")
    assert islands.keys[verdict_key(0)] == "island 0, rank 0: its peer is gone"
    islands.come(coming(0))
    assert islands.chosen(1) == ([0, 1], [])


def test_the_first_trouble_of_a_rank_is_the_verdict_and_what_comes_later_changes_nothing() -> None:
    islands = Islands()
    roster = islands.meet(coming(0), coming(1))
    islands.report(roster, "", "its peer is gone")
    islands.report(roster, "late", "late")
    assert islands.keys[verdict_key(0)] == "island 1, rank 0: its peer is gone"
    assert islands.membership.begin(0, Begin(0, "x")).is_behind is False


@pytest.mark.parametrize("how", [LOST, SILENT, "begun anew"])
def test_an_island_that_is_lost_or_not_heard_within_an_exchange_ends_it(how: str) -> None:
    islands = Islands()
    islands.meet(coming(0), coming(1))
    islands.membership.conclude(0, Conclude(0, 0, ""))
    if how == LOST:
        islands.membership.lose(1)
    elif how == SILENT:
        islands.membership.hear(1, is_heard=False)
    else:
        islands.membership.begin(1, Begin(0, "x"))
    said = "has a silent host" if how == SILENT else "is lost"
    assert islands.keys[verdict_key(0)] == f"island 1 {said}"
    islands.come(coming(0))
    assert islands.chosen(0) == (None if how == "begun anew" else ([0], []))


def test_an_island_that_leaves_within_an_exchange_may_have_done_its_part() -> None:
    islands = Islands()
    for each in range(2):
        islands.come(coming(each))
    islands.membership.conclude(1, Conclude(0, 0, ""))
    islands.membership.leave(1, Leave(has_ended=True))
    assert verdict_key(0) not in islands.keys
    islands.membership.conclude(0, Conclude(0, 0, ""))
    assert islands.keys[verdict_key(0)] == DONE


@pytest.mark.parametrize("is_lost", [False, True])
def test_one_that_is_not_heard_is_left_out_until_it_is_heard_again_and_a_lost_one_must_come_anew(is_lost: bool) -> None:
    islands = Islands()
    islands.come(coming(1))
    if is_lost:
        islands.membership.lose(1)
    else:
        islands.membership.hear(1, is_heard=False)
    islands.come(coming(0))
    assert islands.chosen(0) == ([0], [])
    islands.membership.hear(1, is_heard=True)
    assert islands.membership.standing.waiting == (() if is_lost else (coming(1),))


def test_states_of_islands() -> None:
    islands = Islands(4)
    membership = islands.membership
    fresh = Membership(1, 1, islands.keys.__setitem__, lambda _: None)
    fresh.hear(0, is_heard=False)
    assert fresh.standing.states == ("",)
    membership.hear(0, is_heard=False)
    membership.lose(1)
    membership.leave(2, Leave(has_ended=False))
    for each in range(4):
        membership.hear(each, is_heard=each > 0)
    assert membership.standing.states == (SILENT, LOST, LEFT, "1")
    membership.hear(0, is_heard=True)
    membership.begin(1, Begin(0, "x"))
    assert membership.standing.states == ("1", "2", LEFT, "1")
    assert membership.standing.loss(coming(1)) == "island 1 is lost"
    assert membership.standing.loss(coming(2)) is None
    assert membership.standing.loss(coming(3)) is None


def test_one_that_is_being_given_the_state_of_the_members_takes_part_and_one_that_begins_anew_does_not() -> None:
    behind = [coming(each, 1, "y", is_behind=True) for each in (2, 3, 4)]
    follows, of_others, again = (
        replace(each, follows=state) for each, state in zip(behind, ("x", "w", ANEW), strict=True)
    )
    decision = Roster(7, 3, (coming(0, 3), coming(1, 3)), (follows, of_others, again))

    assert decision.followers == (follows,)
    assert decision.participants == (coming(0, 3), coming(1, 3), follows)
    assert [decision.giver(each).island for each in (of_others, again)] == [0, 1]
    assert [each.calls for each in (*behind, follows, of_others, again)] == [True] * 3 + [False] * 3
    assert decision.lineage == Roster(9, 3, (coming(0, 3), coming(1, 3)), ()).lineage


@pytest.mark.parametrize(
    ("exchange", "lineage", "is_past"), [(4, "x", False), (4, "y", True), (3, "x", True), (6, "y", False)]
)
def test_an_island_has_missed_an_exchange(exchange: int, lineage: str, is_past: bool) -> None:
    assert SyncPoint(9, 3, "x").is_past(exchange, lineage) is is_past


def test_an_arrival_that_is_sent_twice_is_one() -> None:
    islands = Islands()
    for each in range(2):
        islands.come(coming(each))
    islands.membership.arrive(1, Arrive(coming(1), 1, PATIENCE))
    assert islands.membership.standing.waiting == ()


@pytest.mark.parametrize(
    ("island", "message", "rule"),
    [
        (0, Arrive(coming(1), 1, PATIENCE), "island: must be 0, whose rank it is, got 1"),
        (0, Arrive(replace(coming(0), start=2), 1, PATIENCE), "start: must be 1, its last, got 2"),
        (0, Conclude(0, 1, ""), "rank: must be below 1, got 1"),
        (2, Conclude(0, 0, ""), "rank: must be below 0, got 0"),
    ],
)
def test_messages_of_ranks_that_cannot_be_are_refused(island: int, message: Arrive | Conclude, rule: str) -> None:
    islands = Islands(3)
    for each in range(2):
        islands.come(coming(each))
    islands.wait(60.0)
    take = islands.membership.arrive if isinstance(message, Arrive) else islands.membership.conclude
    with pytest.raises(ValueError, match=rule):
        take(island, message)  # type: ignore[arg-type]


def test_what_was_decided_long_ago_is_forgotten() -> None:
    islands = Islands()
    for exchange in range(ROUNDS_KEPT + 2):
        islands.hold(coming(0, exchange), coming(1, 0, "old", is_behind=True))
        for key in turn_keys(exchange, 1):
            islands.keys[key] = "said by ranks"
    assert not [key for key in (verdict_key(1), decision_key(0, 1, 2), *turn_keys(1, 1)) if key in islands.keys]
    assert {verdict_key(2), decision_key(0, 1, 3), *turn_keys(2, 1)} <= islands.keys.keys()
