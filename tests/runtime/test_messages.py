"""What agent and controller tell each other arrives as it was said, and nothing else is taken for it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holmes_runtime.config.messages import Command, Message, decode_command, decode_message, encode
from holmes_runtime.config.rank_grid import Axis
from holmes_runtime.config.rank_metrics import RankMetrics, WaitSeconds
from holmes_runtime.config.strict_json import MAX_INT, parse, to_json
from tests.seeds import few_of

MIB = 1 << 20
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-MAX_INT, MAX_INT),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    str: TEXT,
    type(None): st.none(),
}
KINDS = [*get_args(Message), *get_args(Command)]


@cache
def values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of an annotated type."""
    if hint in SCALARS:
        return SCALARS[hint]
    if hasattr(hint, "_fields"):
        return st.builds(hint, **{name: values(of) for name, of in get_type_hints(hint).items()})
    if get_origin(hint) is Literal:
        return st.sampled_from(get_args(hint))
    if get_origin(hint) is tuple:
        return st.lists(values(get_args(hint)[0]), max_size=3).map(tuple)
    if get_origin(hint) is dict:
        return st.dictionaries(TEXT, values(get_args(hint)[1]), max_size=3)
    return st.one_of([values(one) for one in get_args(hint)])


def decoded(line: str) -> Message | Command:
    try:
        return decode_message(line)
    except ValueError:
        return decode_command(line)


@given(st.one_of([values(kind) for kind in KINDS]))
def test_every_record_arrives_as_it_was_sent(record: Message | Command) -> None:
    line = encode(record)
    assert line.count(b"\n") == 1
    assert repr(decoded(line.decode())) == repr(record)


@given(st.one_of([values(kind) for kind in KINDS]))
def test_key_that_is_not_asked_for_is_refused(record: Message | Command) -> None:
    data = {**json.loads(encode(record)), "surprise": 1}
    with pytest.raises(ValueError, match=rf"{type(record).__name__}\.surprise: unknown key, got 1"):
        read_as(record, data)


@given(st.one_of([values(kind) for kind in KINDS if kind._fields]))
def test_key_that_is_missing_is_named(record: Message | Command) -> None:
    data = json.loads(encode(record))
    name = list(data)[-1]
    del data[name]
    with pytest.raises(ValueError, match=rf"{type(record).__name__}\.{name}: missing"):
        read_as(record, data)


def read_as(record: Message | Command, data: object) -> None:
    """Read `data` on the side that `record` is meant for."""
    read = decode_command if isinstance(record, get_args(Command)) else decode_message
    read(json.dumps(data))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"event": "ready", "facts": {}}', r"kind: expected one of .*'Ready'.*, got None"),
        ('{"kind": ["Exited"]}', r"kind: expected one of .*, got \['Exited'\]"),
        ('{"kind": "Go", "master_port": 1}', "kind: expected one of .*, got 'Go'"),
        ('{"kind": "Exited", "exit_code": true}', r"Exited\.exit_code: expected int, got True"),
        ('{"kind": "Exited", "exit_code": -1' + "0" * 400 + "}", r"exit_code: expected a number of at most 100 bits"),
        ('{"kind": "Exited", "exit_code": NaN}', "numbers must be finite, got NaN"),
        ('{"kind": "Stuck", "processes": "1"}', r"Stuck\.processes: expected a list, got '1'"),
        ('{"kind": "RankPrinted", "local_rank": 0, "line": "\\ud800"}', r"RankPrinted\.line: expected text"),
        ('{"kind": "RankStates", "states": [{"local_rank": 0, "state": "T", "x": 1}]}', r"states\[0\]\.x: unknown key"),
        ('"ready"', "expected an object, got 'ready'"),
        ("[" * 100_000, "nested too deeply"),
        ("{", "Expecting property name"),
    ],
)
def test_what_is_no_message_is_refused_by_its_key_and_value(line: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        decode_message(line)


@given(st.text())
def test_no_text_does_more_than_be_refused(line: str) -> None:
    with contextlib.suppress(ValueError):
        decode_message(line)


@given(values(RankMetrics))
def test_a_line_of_metrics_has_no_kind_and_is_read_by_name(metrics: RankMetrics) -> None:
    line = to_json(metrics)
    assert list(json.loads(line)) == list(RankMetrics._fields)
    assert repr(parse(RankMetrics, line)) == repr(metrics)


LONG: dict[str, Callable[[], dict[str, Any]]] = {
    "kind": lambda: {"kind": "x" * MIB},
    "key": lambda: {"kind": "RanksUp", "y" * MIB: 1},
    "value": lambda: {"kind": "RankPrinted", "local_rank": "z" * MIB, "line": ""},
    "keys": lambda: {"kind": "Reached", "faults": {str(number): number for number in range(MIB // 8)}},
    "deep": lambda: {"kind": "NotKept", "messages": [[[["deep"] * 9] * 9] * 9] * 999},
    "missing": lambda: {**{str(number): number for number in range(MIB // 8)}, "kind": "NotKept"},
}


@pytest.mark.parametrize("name", few_of(3, LONG))
def test_a_message_that_cannot_be_read_is_shown_cut(name: str) -> None:
    with pytest.raises(ValueError, match=r"got|expected|unknown|missing") as caught:
        decode_message(json.dumps(LONG[name]()))
    assert len(str(caught.value)) < 1000


def test_a_message_of_more_values_than_any_has_is_refused_before_they_are_made() -> None:
    with pytest.raises(ValueError, match="more than 3000000 values"):
        decode_message("[" + "[]," * 4 * MIB + "[]]")


def test_waits_are_counted_by_axis() -> None:
    with_another = {"dp_across", "expert_dp", "expert_dp_across", "tied", "cp", "ep"}  # waited for as "dp", or as "tp"
    assert WaitSeconds._fields == (*(axis for axis in get_args(Axis) if axis not in with_another), "sync")
