"""1F1B action lists."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holmes_runtime.schedule import Action, ActionKind, one_f_one_b

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
