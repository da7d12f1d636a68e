"""When a run is examined: a fold over what its steps took."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from holmes_runtime.health.examination_times import ExaminationTimes, UsualStep


def asked_after(seconds: Iterable[float]) -> list[int]:
    """The steps after which a rank has a reason to examine."""
    usual = UsualStep()
    return [step for step, step_s in enumerate(seconds) if usual.add(step_s)]


def test_two_steps_in_a_row_that_take_longer_are_a_reason() -> None:
    assert asked_after([1.0] * 10 + [1.35, 1.35]) == [11]


def test_one_slow_step_is_not_a_reason_nor_are_several_apart() -> None:
    assert asked_after([1.0] * 10 + [9.0, 1.0, 9.0, 1.0, 1.0, 9.0]) == []


def test_a_little_longer_is_not_a_reason() -> None:
    assert asked_after([1.0] * 10 + [1.25] * 10) == []


def test_steps_that_become_short_are_a_reason_too() -> None:
    assert asked_after([2.0] * 10 + [1.4, 1.4]) == [11]


def test_the_first_steps_say_nothing() -> None:
    assert asked_after([9.0, 9.0, 9.0] + [1.0] * 20) == []
    assert asked_after([1.0] * 6 + [9.0, 9.0]) == []  # too few to know what is usual


def test_what_creeps_up_becomes_usual() -> None:
    assert asked_after(1.01**step for step in range(200)) == []


def test_after_an_examination_something_else_is_usual() -> None:
    usual = UsualStep()
    for _ in range(10):
        usual.add(1.0)
    usual.forget()
    assert not any(usual.add(2.0) for _ in range(20))
    assert [usual.add(3.0) for _ in range(3)] == [False, True, True]


def held_after(changes: dict[int, bool], asked: int | None = None, steps: int = 450) -> list[int]:
    """Steps after which examinations are held; `changes`: those that change something, and back to the plan or not."""
    occasions, held, planned = ExaminationTimes(), [], True
    for step in range(steps):
        if occasions.is_due(step, step == asked):
            held.append(step + 1)
            planned = changes.get(step + 1, planned)
            occasions.held(step, step == asked or step + 1 in changes, planned)
    return held


def test_a_run_as_planned_is_examined_early_and_now_and_then() -> None:
    assert held_after({}) == [10, 200, 400]


def test_what_falls_on_steps_that_are_left_out_is_held_after_the_next() -> None:
    occasions = ExaminationTimes()
    taken = [*range(8), *range(14, 197), *range(203, 230)]
    assert [step + 1 for step in taken if occasions.is_due(step, False)] == [15, 204]


def test_a_run_with_a_reason_is_examined_at_once_and_again_when_it_is_known_what_is_usual() -> None:
    assert held_after({}, asked=56) == [10, 57, 77, 200, 400]


def test_after_a_change_it_is_looked_again_and_less_and_less_often() -> None:
    assert held_after({57: False}, asked=56) == [10, 57, 77, 117, 197, 200, 400]


def test_once_it_is_as_planned_again_it_is_looked_as_ever() -> None:
    assert held_after({57: False, 77: True}, asked=56) == [10, 57, 77, 97, 200, 400]


@pytest.mark.parametrize("step", [10, 200])
def test_a_regular_examination_may_change_something_too(step: int) -> None:
    assert step + 20 in held_after({step: False})
