"""Whole examples packed into sequences of one length with little padding."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

Sized = TypeVar("Sized", bound=Sequence[int])

WINDOW_TOKENS = 2**23  # of examples that are packed together in memory


def packed(examples: Iterable[Sized], length: int) -> Iterator[list[Sized]]:
    """Yield the examples of each sequence. They have at most `length` tokens together, and none is longer.

    Best fit, longest first, within windows of WINDOW_TOKENS. Sequences, and the examples in each, keep the order of
    `examples`.
    """
    window: list[Sized] = []
    size = 0
    for example in examples:
        window.append(example)
        size += len(example)
        if size >= WINDOW_TOKENS:
            yield from _packed_window(window, length)
            window, size = [], 0
    yield from _packed_window(window, length)


def _packed_window(window: Sequence[Sized], length: int) -> list[list[Sized]]:
    sequences: list[list[int]] = []
    rooms: list[tuple[int, int]] = []  # (tokens left, sequence), ascending
    for number in sorted(range(len(window)), key=lambda number: -len(window[number])):
        place = bisect_left(rooms, (len(window[number]), -1))
        if place < len(rooms):
            room, sequence = rooms.pop(place)
            sequences[sequence].append(number)
        else:
            room, sequence = length, len(sequences)
            sequences.append([number])
        insort(rooms, (room - len(window[number]), sequence))
    return [[window[number] for number in numbers] for numbers in sorted(map(sorted, sequences))]
