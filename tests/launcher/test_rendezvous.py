"""Where ranks of islands meet: what one sets all see, and who asks for what is not there yet is answered later."""

from __future__ import annotations

import json
import random
from base64 import b64decode, b64encode

import pytest

from holmes_runtime.config.rendezvous_messages import Answer, Ask, FromMeeting, ToMeeting
from holmes_runtime.config.strict_json import parse, to_json
from launcher.islands import rendezvous_server
from launcher.islands.rendezvous_server import (
    MAX_KEY_CHARACTERS,
    MAX_KEYS,
    MAX_WAITING,
    RendezvousServer,
)


class Node:
    """A node's link, and what it was sent."""

    def __init__(self, meeting: RendezvousServer) -> None:
        self.answers: list[tuple[int, tuple[str, ...]]] = []
        self.ended: list[int] = []
        self.refusals: list[str] = []
        self._meeting = meeting

    def send(self, line: FromMeeting) -> None:
        if line.line:
            self.answers.append((line.connection, parse(Answer, line.line).values))
        else:
            self.ended.append(line.connection)

    def ask(self, connection: int, ask: Ask) -> None:
        self.say(connection, to_json(ask))

    def say(self, connection: int, line: str) -> None:
        refusal = self._meeting.take(self.send, ToMeeting(connection, line))
        self.refusals += [] if refusal is None else [refusal]


def text(value: str) -> str:
    return b64encode(value.encode()).decode()


def test_get_is_answered_once_every_key_is_there_by_whichever_island() -> None:
    meeting = RendezvousServer()
    here, there = Node(meeting), Node(meeting)
    here.ask(1, Ask("get", ("a", "b")))
    there.ask(1, Ask("set", ("a",), (text("one"),)))
    assert here.answers == []
    there.ask(1, Ask("set", ("b",), (text("two"),)))
    assert here.answers == [(1, (text("one"), text("two")))]
    assert there.answers == [(1, ()), (1, ())]


def test_who_has_gone_is_not_answered() -> None:
    meeting = RendezvousServer()
    here, there = Node(meeting), Node(meeting)
    here.ask(1, Ask("get", ("a",)))
    here.ask(2, Ask("get", ("a",)))
    here.say(1, "")
    there.ask(1, Ask("set", ("a",), (text("x"),)))
    assert here.answers == [(2, (text("x"),))]


def test_other_operations() -> None:
    node = Node(RendezvousServer())
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
    node = Node(RendezvousServer())
    for token in ("first", "first", "second", "", "", "first"):
        node.ask(1, Ask("add", ("n",), amount=1, token=token))
    assert [values for _, values in node.answers] == [("1",), ("1",), ("2",), ("3",), ("4",), ("1",)]


def here(meeting: RendezvousServer) -> str:
    """What stands there of island 3."""
    node = Node(meeting)
    node.ask(1, Ask("get", ("islands/here/3",)))
    return b64decode(node.answers[0][1][0]).decode()


def begun() -> RendezvousServer:
    """A meeting to which island 3 has come."""
    meeting = RendezvousServer()
    begin(meeting, 1)
    return meeting


def begin(meeting: RendezvousServer, start: int) -> None:
    Node(meeting).ask(1, Ask("set", ("islands/starts/3", "islands/here/3"), (text(str(start)),) * 2))


def test_an_island_that_is_lost_is_not_there_and_who_waits_for_a_word_of_it_hears_it() -> None:
    meeting = RendezvousServer()
    waiting = Node(meeting)
    waiting.ask(1, Ask("get", ("islands/here/3",)))
    meeting.lose(3)
    assert waiting.answers == [(1, (text("lost"),))]


def test_an_island_that_is_not_heard_is_silent_until_it_is_heard_again() -> None:
    meeting = begun()
    meeting.hear(3, is_heard=True)
    assert here(meeting) == "1"
    for _ in range(2):
        meeting.hear(3, is_heard=False)
        assert here(meeting) == "silent"
    for _ in range(2):
        meeting.hear(3, is_heard=True)
        assert here(meeting) == "1"


def test_who_is_lost_stays_so_and_who_begins_anew_is_there_unless_it_is_not_heard_either() -> None:
    meeting = begun()
    meeting.hear(3, is_heard=False)
    meeting.lose(3)
    for is_heard in (False, True):
        meeting.hear(3, is_heard)
        assert here(meeting) == "lost"
    begin(meeting, 2)
    meeting.hear(3, is_heard=True)
    assert here(meeting) == "2"
    meeting.hear(3, is_heard=False)
    begin(meeting, 3)
    meeting.hear(3, is_heard=False)
    assert here(meeting) == "silent"
    meeting.hear(3, is_heard=True)
    assert here(meeting) == "3"


def test_an_island_that_has_not_begun_or_has_left_is_not_called_silent() -> None:
    meeting = RendezvousServer()
    meeting.hear(3, is_heard=False)
    Node(meeting).ask(1, Ask("set", ("islands/here/3",), (text("left"),)))
    meeting.hear(3, is_heard=False)
    assert here(meeting) == "left"


def asked_amiss() -> list[str]:
    """Questions that no rank of ours asks."""
    return [
        '{"operation": "burn", "keys": []}',
        "no JSON",
        to_json(Ask("delete", ())),
        to_json(Ask("set", ("a",), ())),
        to_json(Ask("set", ("islands/here/3",), ("!!!x",))),
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
    meeting = RendezvousServer()
    here, there = Node(meeting), Node(meeting)
    for line in asked_amiss():
        here.say(7, line)
    assert here.ended == [7] * len(asked_amiss())
    assert len(here.refusals) == len(asked_amiss())
    assert all(0 < len(each) <= 100 for each in here.refusals)
    there.ask(1, Ask("check", ("a",)))
    assert there.answers == [(1, ("0",))]


def test_an_island_that_says_of_itself_what_only_the_controller_says_ends_nobody() -> None:
    meeting = RendezvousServer()
    Node(meeting).ask(1, Ask("set", ("islands/here/3",), (text("silent"),)))  # and it has never begun
    meeting.hear(3, is_heard=True)
    assert here(meeting) == "silent"
    meeting.hear(3, is_heard=False)
    meeting.lose(3)
    assert here(meeting) == "lost"


def test_the_meeting_holds_no_more_than_its_bound_and_takes_more_once_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rendezvous_server, "MAX_HELD_CHARACTERS", 1 << 20)
    node, value = Node(RendezvousServer()), "A" * (1 << 16)
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
    node = Node(RendezvousServer())
    for connection in range(MAX_WAITING + 1):
        node.ask(connection, Ask("get", ("never",)))
    node.ask(0, Ask("get", ("other",)))
    assert (node.ended, len(node.refusals)) == ([MAX_WAITING], 1)


SEED, NUM_AMISS = 32, 240
WORDS = ("islands/here/0", "islands/starts/0", "islands/reached", "a", "", "\ud800", "k" * 2000, "\0")
VALUES = ("", "!!!x", text("silent"), text("lost"), text("1"), text("-1" * 50), "=", "A", "A" * 100_000, "\u00e9")


def amiss(chance: random.Random) -> str:
    """A question with something wrong in it, mostly."""
    operations = ("set", "get", "check", "add", "compare_set", "delete", "burn", "", None, 3)
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


def test_after_whatever_one_island_asks_the_others_meet() -> None:
    meeting, chance = RendezvousServer(), random.Random(SEED)
    hostile, refused = Node(meeting), 0
    for number in range(NUM_AMISS):
        hostile.say(number + 1, amiss(chance))
        for is_heard in (False, True):
            meeting.hear(0, is_heard)
        first, second = Node(meeting), Node(meeting)
        key = f"islands/roster/{number}"
        second.ask(1, Ask("get", (key,)))
        first.ask(1, Ask("add", ("islands/starts/1",), amount=1))
        first.ask(1, Ask("compare_set", (key,), ("", text("both"))))
        assert first.answers == [(1, (str(number + 1),)), (1, (text("both"),))]
        assert second.answers == [(1, (text("both"),))]
        second.say(1, "")
        refused = len(hostile.refusals)
    assert refused > NUM_AMISS / 2
    assert len(hostile.ended) == refused
