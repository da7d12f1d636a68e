"""Expected rise of the validation loss of islands over training as one run, as measured, by their settings.

Source: `python -m benchmarks.islands_loss --settings --steps 1000 --seeds 8`: a GPT of two layers and width 64 on text
as bytes, two islands; docs/planning.md has the table. Three parts were measured one at a time and are added up: plain
DiLoCo by inner steps, a codec, and the delay of four fragments. Larger models and longer runs were not measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from math import hypot, log
from typing import NamedTuple

from holmes_core.records.islands import LossPenalty
from holmes_runtime.config.run_settings import ChosenIslands, OuterCodec

SOURCE = "docs/planning.md, Islands"


class Part(NamedTuple):
    """A mean of seeds in percent of the loss, and half of its 95 % interval (Student's t)."""

    percent: float
    half: float


BY_INNER_STEPS: Mapping[int, Part] = {
    10: Part(0.23, 1.56),
    20: Part(-1.07, 1.10),
    50: Part(0.96, 0.89),
    100: Part(2.93, 0.97),
    250: Part(4.28, 0.75),
    500: Part(4.85, 0.71),
}
"""Plain DiLoCo, without codec or delay, over training as one run with as many samples per step."""
BY_CODEC: Mapping[OuterCodec, Part] = {
    "none": Part(0.0, 0.0),
    "int8": Part(-0.00, 0.01),
    "int4": Part(-0.07, 0.07),
}
"""Over plain DiLoCo with 50 inner steps."""
BY_DELAY: Mapping[int, Part] = {
    0: Part(0.08, 0.60),
    2: Part(0.27, 0.35),
    6: Part(0.56, 0.27),
    12: Part(0.92, 0.48),
}
"""Four fragments without a codec, applied this many steps later, over the same."""

_RISING = {
    steps: part._replace(percent=max(0.0, *(p.percent for shorter, p in BY_INNER_STEPS.items() if shorter <= steps)))
    for steps, part in BY_INNER_STEPS.items()
}
MEASURED_STEPS = tuple(BY_INNER_STEPS)
MAX_INNER_STEPS = max(MEASURED_STEPS)  # also the rounds of DiLoCo's own runs (arXiv 2311.08105, section 3)


def loss_penalty(islands: ChosenIslands) -> LossPenalty | None:
    """Return the expected penalty of the settings; None if they are outside the measured range.

    Between measured inner steps it is linear in their logarithm. Rounds shorter than the shortest count as the
    shortest. Longer rounds count as no better than the worst shorter ones, since a measured gain would be noise.
    """
    steps, late = max(islands.inner_steps, min(MEASURED_STEPS)), islands.delay_steps
    if steps > MAX_INNER_STEPS or late > max(BY_DELAY):
        return None
    parts = [
        _between({log(each): part for each, part in _RISING.items()}, log(steps)),
        BY_CODEC[islands.codec],
    ]
    if late or islands.fragments > 1:
        parts.append(_between({float(each): part for each, part in BY_DELAY.items()}, float(late)))
    expected, half = sum(part.percent for part in parts), hypot(*(part.half for part in parts))
    low, middle, high = (round(each, 3) for each in (expected - half, expected, expected + half))
    return LossPenalty(expected=middle, low=low, high=high, source=SOURCE)


def _between(measured: Mapping[float, Part], at: float) -> Part:
    """Return the value between two measured ones, with the wider of their intervals."""
    if at in measured:
        return measured[at]
    (low, one), (high, other) = next(pair for pair in pairwise(sorted(measured.items())) if at <= pair[1][0])
    share = (at - low) / (high - low)
    return Part(one.percent + share * (other.percent - one.percent), max(one.half, other.half))
