"""Figures that the pages of plans and runs share: tiles, a step in parts, names of lanes, the load of a wire."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from holmes_core.records.plan import Plan
from holmes_core.units import format_seconds
from planner.advice.explain import counted

PART_COLOURS = ("s0", "s1", "s7", "s6", "s2", "s3")  # classes of the style sheet
STAGE_COLOURS = 8  # classes s0 to s7
MIN_WIRE_PX, MAX_WIRE_PX = 3, 14
FLOW_NAMES = {"pp_forward": "activations", "pp_backward": "their gradients", "ep": "tokens", "cp": "keys and values"}
OTHER_FLOWS = "gradients and weights"
Heat = Literal["cool", "warm", "hot"]


@dataclass(frozen=True)
class LaneName:
    """The stages of a pipeline rank as both pages name them: `stages 0, 4`, `layers 0-1, 8-9`, in the rank's colour."""

    colour: str
    stages: str
    layers: str


def lane_name(plan: Plan, pp_rank: int) -> LaneName:
    """Return the name of the lane of a pipeline rank."""
    stages = [stage for stage in plan.stages if stage.index % plan.pp == pp_rank]
    layers = [layer for stage in stages for layer in range(stage.first_layer, stage.stop_layer)]
    numbers = [stage.index for stage in stages]
    return LaneName(f"s{pp_rank % STAGE_COLOURS}", counted("stage", numbers), counted("layer", layers))


@dataclass(frozen=True)
class Tile:
    """A figure at the head of a page; `role` is its class, if any."""

    value: str
    label: str
    role: str = ""


@dataclass(frozen=True)
class StepPart:
    """A part of a step: its class, its percent of the longest step shown, and its seconds in words."""

    label: str
    colour: str
    percent: float
    value: str


@dataclass(frozen=True)
class Stack:
    """A step as one bar of its parts."""

    label: str
    parts: tuple[StepPart, ...]


@dataclass(frozen=True)
class Load:
    """The load of a NIC or a wire; the percent is the length of its bar, None for no bar. `heat` is its colour."""

    label: str
    percent: float | None
    value: str
    heat: Heat

    @property
    def width_px(self) -> int:
        return MIN_WIRE_PX + round((MAX_WIRE_PX - MIN_WIRE_PX) * (self.percent or 0.0) / 100)


def heat_of(value: float, warm: float, hot: float) -> Heat:
    """Return the colour of a value that is a matter of note from `warm`, and a bad one from `hot`."""
    return "hot" if value >= hot else "warm" if value >= warm else "cool"


def stacks(steps: Sequence[tuple[str, Sequence[tuple[str, float]]]]) -> list[Stack]:
    """Return steps of named parts (seconds) as bars on one scale; none if nothing takes time."""
    totals_s = [sum(seconds for _, seconds in parts) for _, parts in steps]
    longest_s = max(totals_s, default=0.0)
    return [
        Stack(
            f"{label}: {format_seconds(total_s)}",
            tuple(
                StepPart(name, colour, round(100 * seconds / longest_s, 2), format_seconds(seconds))
                for colour, (name, seconds) in zip(PART_COLOURS, parts, strict=False)
            ),
        )
        for total_s, (label, parts) in zip(totals_s, steps, strict=True)
        if longest_s
    ]
