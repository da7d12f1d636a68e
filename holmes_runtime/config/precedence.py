"""The precedence of a schedule's actions, as numbers: computed once per schedule, then simulated with any durations.

A schedule fixes the order of all actions of a rank, and of all messages on a link. Only durations vary. An action
therefore starts at the later of two moments, and a message leaves at the later of two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, repeat

from holmes_runtime.config.schedule import DEEPENED, ActionKind, Schedule, ScheduleName, make_schedule, warmups

MAX_KEPT = 48  # schedules in the cache: enough for the placements of two or three pipeline degrees
NOTHING = 0  # stands for no action: it ended, and its message arrived, before the step began

FIRST_FORWARD, FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT = range(5)
"""Kinds of work. A stage's first forward has its own kind because it waits for weights."""

Waits = tuple[int, int, int, int, int]
"""One action's predecessors, work and edge, as five numbers: the previous action on its rank; the action that sends
its message; its work (kind x stages + stage); the action whose message is ahead of its own on the link; and the edge
of its message. Edges are the forward ones by stage, then the backward ones, then one that takes no time.
"""


@dataclass(frozen=True, eq=False)
class Precedence:
    """A schedule's actions, numbered from 1 so that each waits only for smaller numbers.

    `waits[i]` belongs to action i + 1. `by_rank` has the numbers of each rank's actions in order. `last` has the number
    of each stage's last action.
    """

    num_stages: int
    waits: tuple[Waits, ...]
    by_rank: tuple[tuple[int, ...], ...]
    last: tuple[int, ...]


@lru_cache(maxsize=MAX_KEPT)
def precedence_of(
    name: ScheduleName, pp: int, num_microbatches: int, chunks: int = 1, extra_in_flight: Sequence[int] = ()
) -> Precedence:
    """Return the precedence of `make_schedule` with the same arguments. 1F1B and eager need no list of actions."""
    if name in DEEPENED:
        return _one_stage_a_rank(warmups(pp, num_microbatches, extra_in_flight or (0,) * (pp - 1)), num_microbatches)
    return find_precedence(make_schedule(name, pp, num_microbatches, chunks, extra_in_flight))


def _one_stage_a_rank(warmup: Sequence[int], num_microbatches: int) -> Precedence:
    """Return the precedence of 1F1B with `warmup` first forwards by rank. No later rank may have more.

    The actions are numbered in waves. After the first forwards comes each rank's next backward, from the last rank on,
    and then each rank's next forward.
    """
    pp, m, sent = len(warmup), num_microbatches, 2 * len(warmup) - 2
    forwards, backwards = _wave_numbers(warmup, m)
    waits: list[Waits] = [(NOTHING,) * 5] * (2 * pp * m)
    by_rank: list[tuple[int, ...]] = []
    for rank, first in enumerate(warmup):
        forth, back = forwards[rank], backwards[rank]
        steady = m - first  # forwards that follow a backward
        order = [NOTHING, *forth[:first], *chain(*zip(back, forth[first:], strict=False)), *back[steady:]]
        by_rank.append(tuple(order[1:]))
        needed = forwards[rank - 1] if rank else repeat(NOTHING)
        works = [FIRST_FORWARD * pp + rank] + [FORWARD * pp + rank] * (m - 1)
        ahead, edge = ([NOTHING, *forth], rank) if rank < pp - 1 else (repeat(NOTHING), sent)
        before = order[:first] + back[:steady]
        for number, each in zip(forth, zip(before, needed, works, ahead, repeat(edge), strict=False), strict=True):
            waits[number - 1] = each
        needed = backwards[rank + 1] if rank < pp - 1 else forth
        ahead, edge = ([NOTHING, *back], pp - 2 + rank) if rank else (repeat(NOTHING), sent)
        before = forth[first - 1 :] + back[steady:-1]
        work = repeat(BACKWARD * pp + rank)
        for number, each in zip(back, zip(before, needed, work, ahead, repeat(edge), strict=False), strict=True):
            waits[number - 1] = each
    return Precedence(pp, tuple(waits), tuple(by_rank), tuple(back[-1] for back in backwards))


def _wave_numbers(warmup: Sequence[int], num_microbatches: int) -> tuple[list[list[int]], list[list[int]]]:
    """Return the numbers of forwards and of backwards, by rank and micro-batch.

    As long as all ranks have forwards left, all waves have the same form.
    """
    pp, forwards, last = len(warmup), list[list[int]](), 0
    for first in warmup:
        forwards.append([*range(last + 1, last + first + 1)])
        last += first
    alike = num_microbatches - warmup[0]
    end = last + 2 * pp * alike
    backwards = [[*range(last + pp - rank, end, 2 * pp)] for rank in range(pp)]
    for rank in range(pp):
        forwards[rank] += range(last + pp + rank + 1, end + 1, 2 * pp)
    for j in range(alike, num_microbatches):
        for rank in reversed(range(pp)):
            end += 1
            backwards[rank].append(end)
        for rank in range(pp):
            if j + warmup[rank] < num_microbatches:
                end += 1
                forwards[rank].append(end)
    return forwards, backwards


def find_precedence(schedule: Schedule) -> Precedence:
    """Return the precedence of `schedule`. Raises ValueError if it waits for itself."""
    pp, num_actions = len(schedule), sum(map(len, schedule.values()))
    num_stages = 1 + max(action.stage for actions in schedule.values() for action in actions)
    row = 1 + max(action.microbatch for action in schedule[0])
    # Inputs are at row x (2 stage + is forward) + micro-batch. The last entry is for messages that no action needs.
    unneeded = 2 * num_stages * row
    made_by = [NOTHING] * (unneeded + 1)  # the action that produces it
    awaited_by: list[int | None] = [None] * len(made_by)  # the rank that waits for it
    # The last action that sent over each link, from a rank to a neighbour. With only two ranks, each is the other's
    # only neighbour, so with chunks activations and gradients share a link.
    ahead = [NOTHING] * (2 * pp)
    last = [NOTHING] * num_stages
    by_rank: list[list[int]] = [[] for _ in range(pp)]
    waits: list[Waits] = []
    runnable = list(reversed(range(pp)))
    # Enum members are looked up once here: inside the loop that would take half of its time.
    forwards, whole, weights = ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.BACKWARD_WEIGHT
    while runnable:
        rank = runnable.pop()
        numbers = by_rank[rank]
        before = numbers[-1] if numbers else NOTHING
        for stage, kind, microbatch in schedule[rank][len(numbers) :]:
            forward, weight = kind is forwards, kind is weights
            own, needed = (2 * stage + forward) * row + microbatch, NOTHING
            if not weight and (stage > 0 or not forward):
                needed = made_by[own]
                if needed == NOTHING:
                    awaited_by[own] = rank
                    break
            number = len(waits) + 1
            output, leaves, edge = unneeded, NOTHING, 2 * num_stages - 2
            if forward and stage == num_stages - 1:  # its output is the input of its own backward
                output = own - row
            elif not weight and (forward or stage > 0):
                output = own + 2 * row if forward else own - 2 * row
                link = 2 * rank + (forward and pp > 2)
                leaves, edge = ahead[link], stage if forward else num_stages - 2 + stage
                ahead[link] = number
            if forward:
                work = FORWARD if last[stage] else FIRST_FORWARD
            else:
                work = BACKWARD_WEIGHT if weight else BACKWARD if kind is whole else BACKWARD_INPUT
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
    """Return the end of each action and the moment its message has left, by number. Actions start as early as they can.

    By work, as numbered in `Waits`: `work_s` are its seconds, `late_s` is the latency of its input, and `least_end_s`
    its earliest end. By edge: `edge_s` are the seconds a message keeps it busy. Number 0 is the start of the step.
    """
    ends_s, left_s = [0.0], [0.0]
    ended, leaves = ends_s.append, left_s.append
    # Planning a small fleet spends most of its time in this loop: lists and numbers, no calls but the two appends.
    for before, needed, work, ahead, edge in precedence.waits:
        now_s, there_s = ends_s[before], left_s[needed] + late_s[work]
        now_s = (there_s if there_s > now_s else now_s) + work_s[work]
        if now_s < least_end_s[work]:
            now_s = least_end_s[work]
        ended(now_s)
        free_s = left_s[ahead]
        leaves((free_s if free_s > now_s else now_s) + edge_s[edge])
    return ends_s, left_s
