"""Where ranks of islands meet: what one sets all see, and who asks for what is not there yet is answered later."""

from __future__ import annotations

from base64 import b64encode

from holmes_runtime.config.meeting_words import Answer, Ask, FromMeeting, ToMeeting
from holmes_runtime.config.strict_json import parse, to_json
from launcher.islands.held_meeting import Meeting


class Node:
    """A node's link, and what it was sent."""

    def __init__(self, meeting: Meeting) -> None:
        self.answers: list[tuple[int, tuple[str, ...]]] = []
        self.ended: list[int] = []
        self._meeting = meeting

    def send(self, line: FromMeeting) -> None:
        if line.line:
            self.answers.append((line.connection, parse(Answer, line.line).values))
        else:
            self.ended.append(line.connection)

    def ask(self, connection: int, ask: Ask) -> None:
        self.say(connection, to_json(ask))

    def say(self, connection: int, line: str) -> None:
        self._meeting.take(self.send, ToMeeting(connection, line))


def text(value: str) -> str:
    return b64encode(value.encode()).decode()


def test_get_is_answered_once_every_key_is_there_by_whichever_island() -> None:
    meeting = Meeting()
    here, there = Node(meeting), Node(meeting)
    here.ask(1, Ask("get", ("a", "b")))
    there.ask(1, Ask("set", ("a",), (text("one"),)))
    assert here.answers == []
    there.ask(1, Ask("set", ("b",), (text("two"),)))
    assert here.answers == [(1, (text("one"), text("two")))]
    assert there.answers == [(1, ()), (1, ())]


def test_who_has_gone_is_not_answered() -> None:
    meeting = Meeting()
    here, there = Node(meeting), Node(meeting)
    here.ask(1, Ask("get", ("a",)))
    here.ask(2, Ask("get", ("a",)))
    here.say(1, "")
    there.ask(1, Ask("set", ("a",), (text("x"),)))
    assert here.answers == [(2, (text("x"),))]


def test_other_operations() -> None:
    node = Node(Meeting())
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


def test_an_island_that_is_lost_has_left_and_nobody_has_its_start() -> None:
    meeting = Meeting()
    here, there = Node(meeting), Node(meeting)
    here.ask(1, Ask("add", ("islands/starts/3",), amount=1))
    there.ask(1, Ask("get", ("islands/left/3",)))
    meeting.lose(3)
    there.ask(2, Ask("get", ("islands/starts/3",)))
    assert there.answers == [(1, (text("lost"),)), (2, (text("2"),))]


def test_who_asks_amiss_is_ended_and_others_are_served() -> None:
    meeting = Meeting()
    here, there = Node(meeting), Node(meeting)
    amiss = [
        '{"operation": "burn", "keys": []}',
        "no JSON",
        to_json(Ask("delete", ())),
        to_json(Ask("set", ("a",), ())),
    ]
    for line in amiss:
        here.say(7, line)
    assert here.ended == [7] * len(amiss)
    there.ask(1, Ask("check", ("a",)))
    assert there.answers == [(1, ("0",))]
