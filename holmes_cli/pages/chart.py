"""Curves over the steps of a run, with axes, in a square that the page stretches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

SIDE = 1000.0  # of the drawing, whatever room the page gives it
MAX_TICKS = 5
LARGEST, SMALLEST = 1e300, 1e-290  # of a value: beyond these, sums and quotients of an axis overflow
COLOURS = 8  # classes c0 to c7 of the style sheet


@dataclass(frozen=True)
class Series:
    """Values by step, None for no value; `is_planned` is dashed, in the colour and with the label of the measured
    series."""

    label: str
    values: Sequence[float | None]
    colour: int = 0
    is_planned: bool = False


@dataclass(frozen=True)
class Curve:
    """A series as SVG wants it; `role` is its class in the page."""

    label: str
    role: str
    points: str
    is_planned: bool


@dataclass(frozen=True)
class Tick:
    """A line of the grid: percent from the left or the top, and its label."""

    percent: float
    label: str


@dataclass(frozen=True)
class Chart:
    """Curves on one scale; the unit stands in the labels of the ticks or in the title."""

    title: str
    curves: tuple[Curve, ...]
    values: tuple[Tick, ...]
    steps: tuple[Tick, ...]


def draw_chart(
    title: str, steps: Sequence[int], series: Sequence[Series], text: Callable[[float], str], from_zero: bool = True
) -> Chart:
    """Draw the series over `steps`, counted from 0. `text` formats a value. Raises ValueError without a value."""
    series = [replace(one, values=[_drawn(value) for value in one.values]) for one in series]
    known = [value for one in series for value in one.values if value is not None]
    marks = _marks(0.0 if from_zero else min(known), max(known))
    low, high = min(marks[0], min(known)), max(marks[-1], max(known))
    first, last = steps[0] + 1, steps[-1] + 1

    def points(values: Sequence[float | None]) -> str:
        return " ".join(
            f"{SIDE * _share(step + 1, first, last):.1f},{SIDE * (1 - _share(value, low, high)):.1f}"
            for step, value in zip(steps, values, strict=True)
            if value is not None
        )

    curves = [
        Curve(
            one.label, f"curve c{one.colour % COLOURS}{' planned' * one.is_planned}", points(one.values), one.is_planned
        )
        for one in series
    ]
    step_marks = [mark for mark in _marks(first, last) if mark == int(mark) and first <= mark <= last] or [first]
    return Chart(
        title,
        tuple(curves),
        tuple(Tick(round(100 * (1 - _share(mark, low, high)), 2), text(mark)) for mark in marks),
        tuple(Tick(round(100 * _share(mark, first, last), 2), f"{mark:.0f}") for mark in step_marks),
    )


def _drawn(value: float | None) -> float | None:
    """Return the value clipped to the range of axes; tiny values become 0."""
    if value is None or abs(value) < SMALLEST:
        return value if value is None else 0.0
    return min(max(value, -LARGEST), LARGEST)


def _share(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low) if high > low else 0.5


def _marks(low: float, high: float) -> list[float]:
    """Return round numbers for an axis, from one not above `low` to one not below `high`."""
    span = (high - low) or abs(high) or 1.0
    unit = next(size for size in _round_sizes(span / MAX_TICKS / 10) if size * MAX_TICKS >= span)
    first = math.floor(low / unit)
    return [unit * number for number in range(first, max(math.ceil(high / unit), first + 1) + 1)]


def _round_sizes(above: float) -> Iterator[float]:
    """Yield 1, 2, 5, 10, ... from a power of ten below `above`."""
    power = math.floor(math.log10(above))
    while True:
        for digit in (1, 2, 5):
            yield digit * 10.0**power
        power += 1
