"""1F1B action lists."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holmes_runtime.config.schedule import (
    Action,
    ActionKind,
    Schedule,
    ScheduleName,
    gradients_arrived,
    make_schedule,
    microbatches_in_flight,
    most_in_flight,
    one_f_one_b,
    receive_positions,
    sender_of,
)
from tests.seeds import few_of

SIZES = {"num_stages": st.integers(1, 12), "num_microbatches": st.integers(1, 24)}


def microbatches(actions: tuple[Action, ...], kind: ActionKind) -> list[int]:
    return [action.microbatch for action in actions if action.kind is kind]


@given(**SIZES)
def test_every_microbatch_runs_forward_and_backward_once_and_in_order(num_stages: int, num_microbatches: int) -> None:
    for stage, actions in one_f_one_b(num_stages, num_microbatches).items():
        assert {action.stage for action in actions} == {stage}
        for kind in (ActionKind.FORWARD, ActionKind.BACKWARD):
            assert microbatches(actions, kind) == list(range(num_microbatches))


@given(**SIZES)
def test_a_stage_holds_at_most_p_minus_s_microbatches(num_stages: int, num_microbatches: int) -> None:
    for stage, actions in one_f_one_b(num_stages, num_microbatches).items():
        held = highest = 0
        for action in actions:
            held += 1 if action.kind is ActionKind.FORWARD else -1
            assert held >= 0
            highest = max(highest, held)
        assert highest == min(num_stages - stage, num_microbatches)


@given(**SIZES)
def test_the_lists_run_to_the_end_when_each_action_waits_for_its_input(num_stages: int, num_microbatches: int) -> None:
    left = {stage: list(actions) for stage, actions in one_f_one_b(num_stages, num_microbatches).items()}
    done: set[Action] = set()
    while any(left.values()):
        ready = [actions for actions in left.values() if actions and input_of(actions[0], num_stages) <= done]
        assert ready
        done |= {actions.pop(0) for actions in ready}


def input_of(action: Action, num_stages: int) -> set[Action]:
    """The actions on other stages, or this one, that must come before `action`."""
    if action.kind is ActionKind.FORWARD:
        return {Action(action.stage - 1, action.kind, action.microbatch)} if action.stage else set()
    if action.stage == num_stages - 1:
        return {Action(action.stage, ActionKind.FORWARD, action.microbatch)}
    return {Action(action.stage + 1, action.kind, action.microbatch)}


def test_backward_and_forward_alternate_after_the_warmup() -> None:
    kinds = [action.kind for action in one_f_one_b(4, 6)[1]][3:10]

    assert all(first is not second for first, second in pairwise(kinds))


@pytest.mark.parametrize(("num_stages", "num_microbatches"), [(0, 1), (1, 0)])
def test_a_schedule_of_nothing_is_refused(num_stages: int, num_microbatches: int) -> None:
    with pytest.raises(ValueError, match="at least one stage"):
        one_f_one_b(num_stages, num_microbatches)


GRADIENTS = (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT)
NAMES: list[ScheduleName] = ["gpipe", "1f1b", "eager", "interleaved", "zero-bubble"]


def make(name: ScheduleName, pp: int, rounds: int) -> Schedule:
    chunks = 2 if name == "interleaved" else 1
    return make_schedule(name, pp, pp * rounds, chunks, (1,) * (pp - 1) if name == "eager" else ())


@given(name=st.sampled_from(NAMES), pp=st.integers(2, 5), rounds=st.integers(1, 5))
def test_what_has_arrived_was_sent_before_and_used_before_the_input_was_made(
    name: ScheduleName, pp: int, rounds: int
) -> None:
    schedule = make(name, pp, rounds)
    for rank, actions in schedule.items():
        proofs = gradients_arrived(schedule, rank)
        before = schedule[(rank - 1) % pp]
        for forward, backwards in proofs.items():
            for backward in backwards:
                assert actions.index(backward) < actions.index(forward)
                user = next(
                    action
                    for action in before
                    if action.kind in GRADIENTS
                    and (action.stage, action.microbatch) == (backward.stage - 1, backward.microbatch)
                )
                sender = Action(forward.stage - 1, ActionKind.FORWARD, forward.microbatch)
                assert before.index(user) < before.index(sender)
        once = [backward for backwards in proofs.values() for backward in backwards]
        assert len(once) == len(set(once))


@pytest.mark.parametrize("name", ["1f1b", "eager", "zero-bubble"])
def test_gradients_kept_do_not_grow_with_the_microbatches(name: ScheduleName) -> None:
    def most_kept(rounds: int) -> int:
        schedule = make(name, 4, rounds)
        proofs = gradients_arrived(schedule, 2)
        kept = most = 0
        for action in schedule[2]:
            kept += action.kind in GRADIENTS
            most = max(most, kept)
            kept -= len(proofs.get(action, []))
        return most

    assert most_kept(8) == most_kept(16) <= 8


@pytest.mark.parametrize("num_microbatches", [1, 2, 3, 4, 6, 12])
@pytest.mark.parametrize("pp", [1, 2, 3, 4])
def test_in_flight_is_what_the_schedules_hold(pp: int, num_microbatches: int) -> None:
    extra = tuple(range(1, pp))
    cases: list[tuple[ScheduleName, int, tuple[int, ...]]] = [
        ("gpipe", 1, ()), ("1f1b", 1, ()), ("eager", 1, extra), ("zero-bubble", 1, ()),
    ]  # fmt: skip
    if num_microbatches % pp == 0:
        cases += [("interleaved", 2, ()), ("interleaved", 3, ())]
    for name, chunks, more in cases:
        for rank, actions in make_schedule(name, pp, num_microbatches, chunks, more).items():
            held = microbatches_in_flight(name, pp, num_microbatches, rank, chunks, more)
            assert dict(zip(range(rank, pp * chunks, pp), held, strict=True)) == most_in_flight(actions)


SHAPES = [
    *(
        (name, pp, count, 1, ())
        for name in ("gpipe", "1f1b", "zero-bubble")
        for pp in range(1, 6)
        for count in range(1, 9)
    ),
    *(("eager", pp, count, 1, tuple(range(pp - 1))) for pp in range(2, 6) for count in range(1, 9)),
    *(("interleaved", pp, 2 * pp, chunks, ()) for pp in range(2, 5) for chunks in (2, 3)),
]


@pytest.mark.parametrize("shape", few_of(40, map(pytest.param, SHAPES)), ids=str)
def test_a_receive_starts_one_message_ahead_unless_it_depends_on_work_that_is_not_issued(
    shape: tuple[ScheduleName, int, int, int, tuple[int, ...]],
) -> None:
    schedule = make_schedule(*shape)
    places = {action: (rank, index) for rank, actions in schedule.items() for index, action in enumerate(actions)}
    last = max(action.stage for action in places)
    for rank, actions in schedule.items():
        starts = receive_positions(schedule, rank)
        order = [action for position in sorted(starts) for action in starts[position]]
        assert order == [action for action in actions if sender_of(action, last, places) is not None]
        start_of = {action: position for position, started in starts.items() for action in started}
        before = 0
        for action in order:
            sender = sender_of(action, last, places)
            assert sender is not None
            own = [index for place, index in needed_by(sender, schedule, places, last) if place == rank]
            assert start_of[action] == max(before, *(index + 1 for index in own), 0)
            assert start_of[action] <= places[action][1]
            before = places[action][1]


def needed_by(
    action: Action, schedule: Schedule, places: dict[Action, tuple[int, int]], last: int
) -> set[tuple[int, int]]:
    """The places of all actions that must have been issued before the result of `action` can be there."""
    reached: set[tuple[int, int]] = set()
    waiting = [action]
    while waiting:
        rank, index = places[waiting.pop()]
        for earlier in range(index, -1, -1):
            if (rank, earlier) in reached:
                break
            reached.add((rank, earlier))
            sender = sender_of(schedule[rank][earlier], last, places)
            waiting += [sender] if sender is not None else []
    return reached
