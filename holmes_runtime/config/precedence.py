"""What each action of a schedule waits for, as numbers: found once a schedule, then simulated with any seconds.

Schedules fix every order beforehand: of a rank's actions, of the messages on a link. What may vary is only how long
things take, so an action starts at the later of two moments and a message leaves at the later of two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from holmes_runtime.config.schedule import ActionKind, Schedule, ScheduleName, make_schedule

MOST_KEPT = 48  # schedules in the cache: the ways to run the placements of two or three pipeline degrees
NOTHING = 0  # the number of no action: it ended, and its message arrived, when the step began

FIRST_FORWARD, FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT = range(5)
"""Kinds of work. A stage's first forward is one of its own, since it waits for weights."""

Waits = tuple[int, int, int, int, int]
"""Of one action: the one before it on its rank, the one whose message it needs, its work (kind x stages + stage), the
one whose message is ahead of its own on the link, and the edge its message takes: forward edges by stage, then backward
ones, then one that takes no time."""


@dataclass(frozen=True, eq=False)
class Precedence:
    """A schedule's actions, numbered from 1 so that each waits for smaller numbers only.

    `waits[i]` are those of action i + 1. `by_rank` has the numbers of a rank's actions in its order, `last` those of
    each stage's last action.
    """

    num_stages: int
    waits: tuple[Waits, ...]
    by_rank: tuple[tuple[int, ...], ...]
    last: tuple[int, ...]


@lru_cache(maxsize=MOST_KEPT)
def precedence_of(
    name: ScheduleName, pp: int, num_microbatches: int, chunks: int = 1, extra_in_flight: Sequence[int] = ()
) -> Precedence:
    """That of `make_schedule` with the same arguments."""
    return find_precedence(make_schedule(name, pp, num_microbatches, chunks, extra_in_flight))


def find_precedence(schedule: Schedule) -> Precedence:
    """The precedence of `schedule`. Raises ValueError if it waits for itself."""
    pp, num_actions = len(schedule), sum(map(len, schedule.values()))
    num_stages = 1 + max(action.stage for actions in schedule.values() for action in actions)
    row = 1 + max(action.microbatch for action in schedule[0])
    # Of each input, found at row x (2 stage + is forward) + micro-batch, and last of one that no action needs:
    unneeded = 2 * num_stages * row
    made_by = [NOTHING] * (unneeded + 1)  # the action that makes it
    awaited_by: list[int | None] = [None] * len(made_by)  # the rank that waits for it
    # By link, from a rank to one of its neighbours, the last action that sent over it. Two ranks alone are each other's
    # only neighbour, so that with chunks activations and gradients take the same way.
    ahead = [NOTHING] * (2 * pp)
    last = [NOTHING] * num_stages
    by_rank: list[list[int]] = [[] for _ in range(pp)]
    waits: list[Waits] = []
    runnable = list(reversed(range(pp)))
    while runnable:
        rank = runnable.pop()
        numbers = by_rank[rank]
        before = numbers[-1] if numbers else NOTHING
        for stage, kind, microbatch in schedule[rank][len(numbers) :]:
            forward, weight = kind is ActionKind.FORWARD, kind is ActionKind.BACKWARD_WEIGHT
            own, needed = (2 * stage + forward) * row + microbatch, NOTHING
            if not weight and (stage > 0 or not forward):
                needed = made_by[own]
                if needed == NOTHING:
                    awaited_by[own] = rank
                    break
            number = len(waits) + 1
            output, leaves, edge = unneeded, NOTHING, 2 * num_stages - 2
            if forward and stage == num_stages - 1:  # it makes its own backward's input
                output = own - row
            elif not weight and (forward or stage > 0):
                output = own + 2 * row if forward else own - 2 * row
                link = 2 * rank + (forward and pp > 2)
                leaves, edge = ahead[link], stage if forward else num_stages - 2 + stage
                ahead[link] = number
            if forward:
                work = FORWARD if last[stage] else FIRST_FORWARD
            else:
                work = BACKWARD_WEIGHT if weight else BACKWARD if kind is ActionKind.BACKWARD else BACKWARD_INPUT
            waits.append((before, needed, work * num_stages + stage, leaves, edge))
            numbers.append(number)
            before = last[stage] = number
            made_by[output] = number
            waiting = awaited_by[output]
            if waiting is not None:
                awaited_by[output] = None
                runnable.append(waiting)
    if len(waits) < num_actions:
        raise ValueError(f"the schedule waits for itself after {len(waits)} actions")
    return Precedence(num_stages, tuple(waits), tuple(map(tuple, by_rank)), tuple(last))


def follow(
    precedence: Precedence,
    work_s: Sequence[float],
    edge_s: Sequence[float],
    late_s: Sequence[float],
    least_end_s: Sequence[float],
) -> tuple[list[float], list[float]]:
    """When each action ends and its message has left, by number: it runs as soon as rank and input are there.

    By work as `Waits` numbers it: its seconds, how long its input is under way, and before when it does not end. By
    edge: for how long a message keeps it busy. Number 0 is the begin of the step.
    """
    ends_s, left_s = [0.0], [0.0]
    ended, leaves = ends_s.append, left_s.append
    # This loop is most of what planning a small fleet takes: lists and numbers, no calls but the two appends.
    for before, needed, work, ahead, edge in precedence.waits:
        now_s, there_s = ends_s[before], left_s[needed] + late_s[work]
        now_s = (there_s if there_s > now_s else now_s) + work_s[work]
        if now_s < least_end_s[work]:
            now_s = least_end_s[work]
        ended(now_s)
        free_s = left_s[ahead]
        leaves((free_s if free_s > now_s else now_s) + edge_s[edge])
    return ends_s, left_s
