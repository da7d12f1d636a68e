"""Pipeline schedules as lists of actions that the planner simulates and the runtime executes. Free of torch.

A rank holds `chunks` stages, and stage s is on pipeline rank s % pp. Only interleaving has more than one chunk. A
backward may be split in two: the gradient of its input, for the stage before, and the gradients of its weights.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from enum import Enum
from typing import Literal, NamedTuple

ScheduleName = Literal["gpipe", "1f1b", "eager", "interleaved", "zero-bubble"]
DEEPENED: tuple[ScheduleName, ...] = ("1f1b", "eager")  # micro-batches in flight can be changed during a run


class ActionKind(Enum):
    """A stage's computation for one micro-batch. BACKWARD is both halves at once."""

    FORWARD = "forward"
    BACKWARD = "backward"
    BACKWARD_INPUT = "backward input"
    BACKWARD_WEIGHT = "backward weight"


class Action(NamedTuple):
    """Stage `stage` runs the forward or the backward of micro-batch `microbatch`."""

    stage: int
    kind: ActionKind
    microbatch: int


Schedule = dict[int, tuple[Action, ...]]
"""The actions of one step, in order, by pipeline rank."""


def make_schedule(
    name: ScheduleName, pp: int, num_microbatches: int, chunks: int = 1, extra_in_flight: Sequence[int] = ()
) -> Schedule:
    """Return the schedule `name` for `pp` pipeline ranks.

    `extra_in_flight[e]`, for "eager" only, are the micro-batches in flight from stage e to e+1 beyond 1F1B.

    Raises:
        ValueError: The schedule cannot use these values.
    """
    if chunks < 1 or (chunks > 1 and name != "interleaved"):
        raise ValueError(f"schedule {name} has one chunk of the model per rank, got {chunks}")
    if any(extra_in_flight) and name != "eager":
        raise ValueError(f"schedule {name} has no extra micro-batches in flight, got {tuple(extra_in_flight)}")
    if name == "gpipe":
        return gpipe(pp, num_microbatches)
    if name == "eager":
        return eager(pp, num_microbatches, extra_in_flight or (0,) * (pp - 1))
    if name == "interleaved":
        return interleaved(pp, num_microbatches, chunks)
    if name == "zero-bubble":
        return zero_bubble(pp, num_microbatches)
    return one_f_one_b(pp, num_microbatches)


def gpipe(pp: int, num_microbatches: int) -> Schedule:
    """Return the schedule of all forwards, then all backwards. Source: Huang et al., GPipe, 2019."""
    _check(pp, num_microbatches)
    return {stage: _one_stage(stage, num_microbatches, num_microbatches) for stage in range(pp)}


def one_f_one_b(pp: int, num_microbatches: int) -> Schedule:
    """Return 1F1B without interleaving.

    Stage s runs min(p - s, m) forwards, then alternates backward and forward until all m micro-batches are done. It
    never holds the activations of more than min(p - s, m) micro-batches. Source: Narayanan et al.,
    PipeDream-Flush, 2021.

    Raises:
        ValueError: There is less than one stage or micro-batch.
    """
    return eager(pp, num_microbatches, (0,) * (pp - 1))


def eager(pp: int, num_microbatches: int, extra_in_flight: Sequence[int]) -> Schedule:
    """Return 1F1B with more forwards ahead, so that a slow edge has something to carry during waits.

    Stage s first runs p - s forwards plus the extra micro-batches of every later edge. Source: the idea is from
    CrossPipe (Chen et al., 2025).

    Raises:
        ValueError: `extra_in_flight` does not have p - 1 numbers, or has a negative one.
    """
    first = warmups(pp, num_microbatches, extra_in_flight)
    return {stage: _one_stage(stage, first[stage], num_microbatches) for stage in range(pp)}


def warmups(pp: int, num_microbatches: int, extra_in_flight: Sequence[int]) -> list[int]:
    """Return the number of forwards that `eager` runs first, by stage. Raises ValueError as `eager` does."""
    _check(pp, num_microbatches)
    if len(extra_in_flight) != pp - 1 or any(extra < 0 for extra in extra_in_flight):
        raise ValueError(f"extra_in_flight must be {pp - 1} numbers, none negative, got {tuple(extra_in_flight)}")
    return [min(pp - stage + sum(extra_in_flight[stage:]), num_microbatches) for stage in range(pp)]


def _one_stage(stage: int, max_in_flight: int, num_microbatches: int) -> tuple[Action, ...]:
    warmup = min(max_in_flight, num_microbatches)
    actions = [Action(stage, ActionKind.FORWARD, microbatch) for microbatch in range(warmup)]
    for microbatch in range(num_microbatches):
        actions.append(Action(stage, ActionKind.BACKWARD, microbatch))
        if microbatch + warmup < num_microbatches:
            actions.append(Action(stage, ActionKind.FORWARD, microbatch + warmup))
    return tuple(actions)


def zero_bubble(pp: int, num_microbatches: int) -> Schedule:
    """Return 1F1B with weight gradients in idle time: on stage s, they follow the input gradient by s micro-batches.

    A stage keeps the activations of at most min(p, m) micro-batches. Source: Qi et al., Zero Bubble Pipeline
    Parallelism, 2023, schedule ZB-H1.
    """
    return {stage: _delay_weights(actions, stage) for stage, actions in one_f_one_b(pp, num_microbatches).items()}


def _delay_weights(actions: Iterable[Action], lag: int) -> tuple[Action, ...]:
    """Return the actions with each backward split. The weight half follows the input half `lag` micro-batches later."""
    split: list[Action] = []
    waiting: list[Action] = []
    for action in actions:
        if action.kind is not ActionKind.BACKWARD:
            split.append(action)
            continue
        split.append(Action(action.stage, ActionKind.BACKWARD_INPUT, action.microbatch))
        waiting.append(Action(action.stage, ActionKind.BACKWARD_WEIGHT, action.microbatch))
        if len(waiting) > lag:
            split.append(waiting.pop(0))
    return tuple(split + waiting)


def interleaved(pp: int, num_microbatches: int, chunks: int) -> Schedule:
    """Return 1F1B over pp * chunks stages, which has a shorter bubble but more messages. Rank r holds r, r + pp, ...

    Micro-batches pass in rounds of pp through the first chunk, then the same round through the next. Source: Narayanan
    et al., Megatron-LM, SC 2021.

    Raises:
        ValueError: pp does not divide the micro-batches.
    """
    _check(pp, num_microbatches)
    if chunks > 1 and num_microbatches % pp:
        raise ValueError(f"interleaving needs micro-batches in rounds of {pp} pipeline ranks, got {num_microbatches}")
    if chunks == 1:
        return one_f_one_b(pp, num_microbatches)
    return {rank: _one_rank_interleaved(rank, pp, num_microbatches, chunks) for rank in range(pp)}


def _one_rank_interleaved(rank: int, pp: int, num_microbatches: int, chunks: int) -> tuple[Action, ...]:
    order = [
        (chunk, first + offset)
        for first in range(0, num_microbatches, pp)
        for chunk in range(chunks)
        for offset in range(pp)
    ]
    forwards = [Action(chunk * pp + rank, ActionKind.FORWARD, microbatch) for chunk, microbatch in order]
    backwards = [
        Action((chunks - 1 - chunk) * pp + rank, ActionKind.BACKWARD, microbatch) for chunk, microbatch in order
    ]
    warmup = min(2 * (pp - rank - 1) + (chunks - 1) * pp + 1, len(forwards))
    actions = forwards[:warmup]
    for position, backward in enumerate(backwards):
        actions.append(backward)
        actions.extend(forwards[warmup + position : warmup + position + 1])
    return tuple(actions)


def most_in_flight(actions: Iterable[Action]) -> dict[int, int]:
    """Return, by stage, the micro-batches whose activations a rank running `actions` holds at its worst moment.

    The worst moment is when the rank holds the most micro-batches over all its stages.
    """
    held: dict[int, int] = {}
    worst: dict[int, int] = {}
    for action in actions:
        if action.kind is ActionKind.FORWARD:
            held[action.stage] = held.get(action.stage, 0) + 1
        elif action.kind is not ActionKind.BACKWARD_INPUT:
            held[action.stage] -= 1
        if sum(held.values()) > sum(worst.values()):
            worst = dict(held)
    return worst


def microbatches_in_flight(
    schedule: ScheduleName,
    pp: int,
    num_microbatches: int,
    rank: int,
    chunks: int = 1,
    extra_in_flight: Sequence[int] = (),
) -> tuple[int, ...]:
    """Return, by chunk, the micro-batches whose activations pipeline rank `rank` holds at its worst moment.

    These are closed forms of `most_in_flight`. A test compares the two.
    """
    if schedule == "gpipe":
        return (num_microbatches,)
    if schedule == "zero-bubble":
        return (min(pp, num_microbatches),)
    if chunks == 1:
        return (min(pp - rank + sum(extra_in_flight[rank:]), num_microbatches),)
    warmup = min(2 * (pp - rank - 1) + (chunks - 1) * pp + 1, num_microbatches * chunks)
    rounds, rest = divmod(warmup, pp * chunks)
    return tuple(rounds * pp + min(max(rest - chunk * pp, 0), pp) for chunk in range(chunks))


def gradients_arrived(schedule: Schedule, pp_rank: int) -> dict[Action, list[Action]]:
    """Return, for each forward of `pp_rank`, its backwards whose gradients must have arrived when the input has.

    The rank before sends that input after all earlier actions in its own list, and these needed our gradients. Each
    backward is listed once, with the first forward that proves it.
    """
    pp = len(schedule)
    before = schedule[(pp_rank - 1) % pp]
    arrived: dict[Action, list[Action]] = {}
    backwards = {(action.stage, action.microbatch): action for action in schedule[pp_rank] if _gives_gradient(action)}
    position = 0
    for forward in schedule[pp_rank]:
        sender = Action(forward.stage - 1, ActionKind.FORWARD, forward.microbatch)
        if forward.kind is not ActionKind.FORWARD or sender.stage < 0:
            continue
        until = max(before.index(sender), position)
        used = [action for action in before[position:until] if _gives_gradient(action)]
        keys = [(action.stage + 1, action.microbatch) for action in used]
        arrived[forward] = [backwards[key] for key in keys if key in backwards]
        position = until
    return arrived


def receive_positions(schedule: Schedule, pp_rank: int) -> dict[int, list[Action]]:
    """Return, by position in the list of `pp_rank`, the actions whose messages it starts to receive just before.

    A receive starts when the rank needs the previous message, so a message is under way while the rank computes. It
    does not start before the rank has issued everything the message depends on: a receive that blocks a GPU would
    otherwise wait for work queued behind it.
    """
    last = max(action.stage for actions in schedule.values() for action in actions)
    issued: dict[Action, int] = {}  # number of own actions, from the start of the list, that each action depends on
    done = dict.fromkeys(schedule, 0)
    while any(done[rank] < len(schedule[rank]) for rank in schedule):
        for rank, actions in schedule.items():
            for index in range(done[rank], len(actions)):
                sender = sender_of(actions[index], last, issued)
                if sender is not None and sender not in issued:
                    break
                earlier = issued[actions[index - 1]] if index else 0
                needed = max(earlier, issued[sender] if sender is not None else 0)
                issued[actions[index]] = index + 1 if rank == pp_rank else needed
                done[rank] = index + 1
    starts: dict[int, list[Action]] = {}
    before = 0
    for index, action in enumerate(schedule[pp_rank]):
        sender = sender_of(action, last, issued)
        if sender is not None:
            starts.setdefault(max(before, issued[sender]), []).append(action)
            before = index
    return starts


def sender_of(action: Action, last: int, known: Container[Action]) -> Action | None:
    """Return the action whose result `action` needs as a message; None if it needs none. `last` is the last stage.

    A gradient comes from a whole backward or from its input half, whichever is `known`.
    """
    stage, kind, microbatch = action
    if kind is ActionKind.FORWARD:
        return Action(stage - 1, kind, microbatch) if stage > 0 else None
    if kind is ActionKind.BACKWARD_WEIGHT or stage == last:
        return None
    whole = Action(stage + 1, ActionKind.BACKWARD, microbatch)
    return whole if whole in known else Action(stage + 1, ActionKind.BACKWARD_INPUT, microbatch)


def _gives_gradient(action: Action) -> bool:
    return action.kind in (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT)


def _check(pp: int, num_microbatches: int) -> None:
    if pp < 1 or num_microbatches < 1:
        raise ValueError(f"need at least one stage and one micro-batch, got {pp} and {num_microbatches}")
