"""A picture of the best mode for each rate and latency between clusters, one square each in the mode's colour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holmes_cli.pages.picture_box import Box
from holmes_core.records.islands import BestMode, Mode
from holmes_core.units import format_rate, format_seconds

LEFT, TOP, WIDTH, HEIGHT = 90, 30, 130, 44
COLOURS: dict[Mode, str] = {
    "pipeline": "#54aeff",
    "data": "#4ac26b",
    "both": "#2da44e",
    "islands": "#ffb77c",
    "one cluster": "#d0d7de",
}


@dataclass(frozen=True)
class Label:
    """A label of a row or column of squares, in pixels."""

    x: int
    y: int
    text: str


@dataclass(frozen=True)
class ModesPicture:
    """Squares, their labels, and the size of the picture in pixels."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    labels: tuple[Label, ...]


def _over_next(cell: BestMode) -> str:
    return "" if cell.over_next is None else f", {cell.over_next:.2f}x as fast as the next best"


def draw_modes(cells: Sequence[BestMode]) -> ModesPicture:
    """Draw the best modes: faster from left to right, latency growing downwards."""
    rates = sorted({cell.bandwidth_bytes_per_s for cell in cells})
    latencies = sorted({cell.latency_s for cell in cells})
    labels = [Label(LEFT + at * WIDTH + 8, TOP - 10, format_rate(rate)) for at, rate in enumerate(rates)]
    labels += [Label(0, TOP + at * HEIGHT + 26, format_seconds(each)) for at, each in enumerate(latencies)]
    boxes = (
        Box(
            role="mode",
            x=LEFT + rates.index(cell.bandwidth_bytes_per_s) * WIDTH,
            y=TOP + latencies.index(cell.latency_s) * HEIGHT,
            width=WIDTH - 4,
            height=HEIGHT - 4,
            fill=COLOURS[cell.mode],
            stroke="none",
            label=cell.mode,
            tip=f"{format_rate(cell.bandwidth_bytes_per_s)} and {format_seconds(cell.latency_s)} between clusters: "
            f"{cell.mode}, {cell.tokens_per_s:.0f} tokens/s{_over_next(cell)}",
        )
        for cell in cells
    )
    size = LEFT + len(rates) * WIDTH, TOP + len(latencies) * HEIGHT
    return ModesPicture(*size, tuple(boxes), tuple(labels))
