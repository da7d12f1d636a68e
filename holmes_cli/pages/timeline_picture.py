"""The simulated step of one replica drawn: a row a pipeline rank, a bar an action, time from left to right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holmes_core.units import format_seconds
from planner.schedule.simulate import Span

WIDTH, ROW, LEFT = 1100, 22, 70
MAX_ROWS = 32
MAX_BARS = 4000
CLASSES = {"forward": "f", "backward": "b", "backward input": "i", "backward weight": "w"}


@dataclass(frozen=True)
class Bar:
    """An action: kind is a class of the page's style sheet; x and width in tenths of a pixel are enough."""

    kind: str
    x: float
    y: int
    width: float
    tip: str


@dataclass(frozen=True)
class Row:
    """A pipeline rank's line and its name."""

    y: int
    label: str


@dataclass(frozen=True)
class TimelinePicture:
    """The drawing, its size in pixels, and a sentence on parts left out."""

    width: int
    height: int
    rows: tuple[Row, ...]
    bars: tuple[Bar, ...]
    title: str
    left_out: str


def draw_timeline(spans: Sequence[Span], step_s: float) -> TimelinePicture:
    """Draw the spans over `step_s` seconds; only the outer ranks of a deep pipeline, and at most MAX_BARS bars."""
    ranks = sorted({span.rank for span in spans})
    half = MAX_ROWS // 2
    shown = ranks if len(ranks) <= MAX_ROWS else [*ranks[:half], *ranks[-half:]]
    row_of = {rank: 8 + index * ROW for index, rank in enumerate(shown)}
    drawn = sorted((span for span in spans if span.rank in row_of), key=lambda span: (span.start_s, span.rank))
    window_s = step_s if len(drawn) <= MAX_BARS else drawn[MAX_BARS].start_s
    scale = (WIDTH - LEFT) / window_s if window_s else 0.0
    bars = [
        Bar(
            kind=CLASSES[span.kind.value],
            x=round(LEFT + span.start_s * scale, 1),
            y=row_of[span.rank],
            width=max(0.2, round((span.end_s - span.start_s) * scale - 0.3, 1)),
            tip=f"{span.kind.value} {span.microbatch}, stage {span.stage}, from {format_seconds(span.start_s)} to "
            f"{format_seconds(span.end_s)}",
        )
        for span in drawn[:MAX_BARS]
    ]
    left_out = []
    if len(shown) < len(ranks):
        left_out.append(f"{len(ranks) - len(shown)} pipeline ranks in the middle are not drawn.")
    if len(drawn) > MAX_BARS:
        left_out.append(f"Only the first {format_seconds(window_s)} are drawn.")
    return TimelinePicture(
        width=WIDTH,
        height=16 + len(shown) * ROW,
        rows=tuple(Row(row_of[rank], f"rank {rank}") for rank in shown),
        bars=tuple(bars),
        title=f"Replica 0, {format_seconds(window_s)} from left to right",
        left_out=" ".join(left_out),
    )
