"""The rectangle that pictures of inventories and plans are made of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Box:
    """A rectangle with a label inside and a tip, in pixels; `role` is its class in the page."""

    role: str
    x: int
    y: int
    width: int
    height: int
    fill: str
    stroke: str
    label: str
    tip: str
