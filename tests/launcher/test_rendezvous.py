"""Where ranks of islands meet: what one sets all see, and who asks for what is not there yet is answered later."""

from __future__ import annotations

import json
import random
from base64 import b64decode, b64encode
from dataclasses import replace

import pytest

from holmes_runtime.config.islands.membership_messages import (
    DONE,
    LEFT,
    Arrive,
    Begin,
    Conclude,
    Decision,
    IslandStart,
    Leave,
    Look,
    Standing,
    decision_key,
    verdict_key,
)
from holmes_runtime.config.islands.rendezvous_messages import Answer, Ask, FromMeeting, ToMeeting
from holmes_runtime.config.islands.roster import Arrival, Patience
from holmes_runtime.config.strict_json import parse, to_json
from launcher.islands import rendezvous_server
from launcher.islands.rendezvous_server import (
    MAX_KEY_CHARACTERS,
    MAX_KEYS,
    MAX_WAITING,
    RendezvousServer,
)
from tests.seeds import few_of


class Node:
    """A node's link, and what it was sent."""

    def __init__(self, meeting: RendezvousServer, island: int = 0) -> None:
        self.answers: list[tuple[int, tuple[str, ...]]] = []
        self.ended: list[int] = []
        self.refusals: list[str] = []
        self._meeting, self._island = meeting, island

    def send(self, line: FromMeeting) -> None:
        if line.line:
            self.answers.append((line.connection, parse(Answer, line.line).values))
        else:
            self.ended.append(line.connection)

    def ask(self, connection: int, ask: Ask) -> None:
        self.say(connection, to_json(ask))

    def say(self, connection: int, line: str) -> None:
        refusal = self._meeting.take(self._island, self.send, ToMeeting(connection, line))
        self.refusals += [] if refusal is None else [refusal]


def text(value: str) -> str:
    return b64encode(value.encode()).decode()


def test_get_is_answered_once_every_key_is_there_by_whichever_island() -> None:
    meeting = RendezvousServer(4, 1)
    here, there = Node(meeting), Node(meeting)
    here.ask(1, Ask("get", ("a", "b")))
    there.ask(1, Ask("set", ("a",), (text("one"),)))
    assert here.answers == []
    there.ask(1, Ask("set", ("b",), (text("two"),)))
    assert here.answers == [(1, (text("one"), text("two")))]
    assert there.answers == [(1, ()), (1, ())]


def test_who_has_gone_is_not_answered() -> None:
    meeting = RendezvousServer(4, 1)
    here, there = Node(meeting), Node(meeting)
    here.ask(1, Ask("get", ("a",)))
    here.ask(2, Ask("get", ("a",)))
    here.say(1, "")
    there.ask(1, Ask("set", ("a",), (text("x"),)))
    assert here.answers == [(2, (text("x"),))]


def test_other_operations() -> None:
    node = Node(RendezvousServer(4, 1))
    asks = [
        Ask("add", ("n",), amount=3),
        Ask("add", ("n",), amount=-1),
        Ask("check", ("n",)),
        Ask("check", ("n", "m")),
        Ask("compare_set", ("k",), ("", text("first"))),
        Ask("compare_set", ("k",), ("", text("second"))),
        Ask("compare_set", ("k",), (text("first"), text("second"))),
        Ask("delete", ("k",)),
        Ask("delete", ("k",)),
    ]
    for ask in asks:
        node.ask(1, ask)
    values = ["3", "2", "1", "0", text("first"), text("first"), text("second"), "1", "0"]
    assert node.answers == [(1, (value,)) for value in values]


def test_what_is_added_is_added_once_though_its_answer_was_lost_and_it_is_asked_again() -> None:
    node = Node(RendezvousServer(4, 1))
    for token in ("first", "first", "second", "", "", "first"):
        node.ask(1, Ask("add", ("n",), amount=1, token=token))
    assert [values for _, values in node.answers] == [("1",), ("1",), ("2",), ("3",), ("4",), ("1",)]


def membership(message: object) -> Ask:
    return Ask("membership", values=(text(to_json(message, with_kind=True)),))


def test_an_island_has_begun_from_its_start_to_the_end_of_that_attempt() -> None:
    meeting = RendezvousServer(2, 1)
    node, begun = Node(meeting, 1), [meeting.has_begun(1)]
    node.ask(1, membership(Begin(0, "")))
    meeting.hear(1, is_heard=False)
    begun.append(meeting.has_begun(1))
    meeting.lose(1)
    begun.append(meeting.has_begun(1))
    node.ask(1, membership(Begin(0, "")))
    node.ask(1, membership(Leave(True)))
    begun.append(meeting.has_begun(1))
    assert begun == [False, True, False, True]
    assert not meeting.has_begun(0)


def standing(node: Node) -> Standing:
    node.ask(1, membership(Look()))
    return parse(Standing, told(node))


PATIENCE = Patience(600.0, 600.0)


def arrival(island: int) -> Arrive:
    return Arrive(Arrival(island, 1, 1, 0, "x", False, 100, 0.0, 1.0, -1), 1, PATIENCE)


def test_islands_begin_arrive_conclude_and_leave() -> None:
    meeting = RendezvousServer(2, 1)
    nodes = [Node(meeting, island) for island in range(2)]
    for island, node in enumerate(nodes):
        node.ask(1, membership(Begin(0, "x")))
        assert parse(IslandStart, told(node)) == (1, False)
        node.ask(2, Ask("get", (decision_key(island, 1, 1),)))
    nodes[0].ask(1, membership(arrival(0)))
    assert [len(node.answers) for node in nodes] == [2, 1]
    nodes[1].ask(1, membership(arrival(1)))
    decisions = [parse(Decision, told(node)) for node in nodes]
    assert decisions[0] == decisions[1]
    nodes[0].ask(3, Ask("get", (verdict_key(0),)))
    for node in nodes:
        node.ask(1, membership(Conclude(0, 0, "")))
    assert nodes[0].answers[-1] == (3, (text(DONE),))
    nodes[1].ask(1, membership(Leave(True)))
    assert standing(nodes[0]) == Standing(1, (), ("1", LEFT))


def test_those_that_wait_hear_of_a_lost_island_and_of_time_that_has_passed() -> None:
    meeting = RendezvousServer(2, 1)
    node = Node(meeting, 0)
    node.ask(1, membership(Begin(0, "x")))
    node.ask(2, Ask("get", (decision_key(0, 1, 1),)))
    node.ask(1, membership(arrival(0)))
    meeting.hear(1, is_heard=False)
    meeting.look()
    assert len(node.answers) == 2
    meeting.lose(1)
    assert node.answers[-1][0] == 2
    assert standing(node).states == ("1", "lost")


def asked_amiss() -> list[str]:
    """Questions that no rank of ours asks."""
    return [
        '{"operation": "burn", "keys": []}',
        "no JSON",
        to_json(Ask("delete", ())),
        to_json(Ask("set", ("a",), ())),
        to_json(Ask("set", ("a",), ("!!!x",))),
        to_json(Ask("membership", values=("!!!x",))),
        to_json(Ask("membership", values=(text("{}"),))),
        to_json(Ask("membership", ("a",), (text("{}"),))),
        to_json(Ask("set", (decision_key(0, 1, 1),), ("",))),
        to_json(Ask("delete", (verdict_key(0),))),
        to_json(membership(arrival(0))),  # of an island that has not begun
        to_json(Ask("membership", values=(text('{"kind": "Conclude", "round_id": 0, "rank": -1}'),))),
        to_json(Ask("compare_set", ("a",), ("", "\u00e9"))),
        to_json(Ask("compare_set", ("a", "b"), ("", ""))),
        to_json(Ask("set", ("k" * (MAX_KEY_CHARACTERS + 1),), ("",))),
        to_json(Ask("check", ("k",) * (MAX_KEYS + 1))),
        to_json(Ask("add", ("n",), amount=1 << 64)),
        to_json(Ask("add", ("n",), amount=1, token="t" * 1000)),
        '{"operation": "get", "keys": ["a"], "values": [], "amount": NaN, "token": ""}',
        "[" * 100_000,
    ]


def test_who_asks_for_what_cannot_be_is_refused_by_reason_and_others_are_served() -> None:
    meeting = RendezvousServer(4, 1)
    here, there = Node(meeting), Node(meeting)
    for line in asked_amiss():
        here.say(7, line)
    assert here.ended == [7] * len(asked_amiss())
    assert len(here.refusals) == len(asked_amiss())
    assert all(0 < len(each) <= 100 for each in here.refusals)
    there.ask(1, Ask("check", ("a",)))
    assert there.answers == [(1, ("0",))]


def test_the_meeting_holds_no_more_than_its_bound_and_takes_more_once_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rendezvous_server, "MAX_HELD_CHARACTERS", 1 << 20)
    node, value = Node(RendezvousServer(4, 1)), "A" * (1 << 16)
    for number in range(16):
        node.ask(1, Ask("set", (str(number),), (value,)))
    assert node.refusals[0].startswith("set where ")
    node.ask(1, Ask("get", ("0",) * 300))
    assert node.ended[-1] == 1  # of an answer that is too large
    kept = len(node.refusals)
    node.ask(2, Ask("delete", ("0",)))
    node.ask(2, Ask("set", ("last",), (value,)))
    assert len(node.refusals) == kept


def test_a_node_has_no_more_questions_waiting_than_its_ranks_ask() -> None:
    node = Node(RendezvousServer(4, 1))
    for connection in range(MAX_WAITING + 1):
        node.ask(connection, Ask("get", ("never",)))
    node.ask(0, Ask("get", ("other",)))
    assert (node.ended, len(node.refusals)) == ([MAX_WAITING], 1)


SEED = 32
WORDS = ("decision/1/1/1", "verdict/0", "turn/0/1", "a", "", "\ud800", "k" * 2000, "\0")
MESSAGES = (Begin(0, "x"), arrival(0), arrival(1), Conclude(0, 0, "x"), Conclude(1 << 70, -1, ""), Leave(False), Look())
VALUES = ("", "!!!x", text("1"), text("-1" * 50), "=", "A", "A" * 100_000, "\u00e9")


def amiss(chance: random.Random) -> str:
    """A question with something wrong in it, mostly."""
    operations = ("set", "get", "check", "add", "compare_set", "delete", *["membership"] * 4, "burn", "", None, 3)
    if chance.random() < 0.2:
        return to_json(membership(chance.choice(MESSAGES)))
    data: dict[str, object] = {
        "operation": chance.choice(operations),
        "keys": [chance.choice(WORDS) for _ in range(chance.choice((0, 1, 1, 2, 20_000)))],
        "values": [chance.choice(VALUES) for _ in range(chance.choice((0, 1, 1, 2)))],
        "amount": chance.choice((0, 1, -1, 1 << 63, 10**4000, 0.5, True, None)),
        "token": chance.choice(("", "t", "t" * 100, 1)),
    }
    for _ in range(chance.randint(0, 2)):
        key = chance.choice(list(data))
        if chance.random() < 0.3:
            del data[key]
        else:
            data[key] = chance.choice((None, [], {}, "x", [[]], [None], -1, {"a": 1}))
        if not data:
            break
    line = json.dumps(data)
    return line[: chance.randint(1, len(line))] if chance.random() < 0.2 else line


@pytest.mark.parametrize("num_amiss", few_of(1, [40, 240]))
def test_after_whatever_one_island_asks_the_others_meet(num_amiss: int) -> None:
    meeting, chance = RendezvousServer(3, 1), random.Random(SEED)
    hostile, others = Node(meeting, 0), [Node(meeting, island) for island in (1, 2)]
    for node in others:
        node.ask(1, membership(Begin(0, "x")))
        assert parse(IslandStart, told(node)) == (1, False)
    for number in range(num_amiss):
        hostile.say(number + 1, amiss(chance))
        for is_heard in (False, True):
            meeting.hear(0, is_heard)
        meeting.lose(0)
        rosters = []
        for island, node in enumerate(others, 1):
            message = replace(arrival(island).arrival, exchange=2 * number)
            node.ask(1, membership(Arrive(message, number, PATIENCE)))
        for island, node in enumerate(others, 1):
            node.ask(1, Ask("get", (decision_key(island, 1, number),)))
            rosters.append(parse(Decision, told(node)).roster)
        assert rosters[0] is not None
        assert rosters[0] == rosters[1]
        assert [each.island for each in rosters[0].all] == [1, 2]
        for node in others:
            node.ask(1, membership(Conclude(rosters[0].round_id, 0, "")))
        for node in others:
            node.ask(1, Ask("get", (verdict_key(rosters[0].round_id),)))
            assert told(node) == DONE
    assert len(hostile.ended) == len(hostile.refusals) > num_amiss / 2


def told(node: Node) -> str:
    """The last answer, of one text."""
    ((value,),) = [values for _, values in node.answers[-1:]]
    return b64decode(value).decode()
