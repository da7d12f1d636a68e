"""Where ranks of islands meet: what one sets all see, and who asks for what is not there yet is answered later."""

from __future__ import annotations

from base64 import b64decode, b64encode

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


def test_what_is_added_is_added_once_though_its_answer_was_lost_and_it_is_asked_again() -> None:
    node = Node(Meeting())
    for token in ("first", "first", "second", "", "", "first"):
        node.ask(1, Ask("add", ("n",), amount=1, token=token))
    assert [values for _, values in node.answers] == [("1",), ("1",), ("2",), ("3",), ("4",), ("1",)]


def here(meeting: Meeting) -> str:
    """What stands there of island 3."""
    node = Node(meeting)
    node.ask(1, Ask("get", ("islands/here/3",)))
    return b64decode(node.answers[0][1][0]).decode()


def begun() -> Meeting:
    """A meeting to which island 3 has come."""
    meeting = Meeting()
    begin(meeting, 1)
    return meeting


def begin(meeting: Meeting, start: int) -> None:
    Node(meeting).ask(1, Ask("set", ("islands/starts/3", "islands/here/3"), (text(str(start)),) * 2))


def test_an_island_that_is_lost_is_not_there_and_who_waits_for_a_word_of_it_hears_it() -> None:
    meeting = Meeting()
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
    meeting = Meeting()
    meeting.hear(3, is_heard=False)
    Node(meeting).ask(1, Ask("set", ("islands/here/3",), (text("left"),)))
    meeting.hear(3, is_heard=False)
    assert here(meeting) == "left"


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
