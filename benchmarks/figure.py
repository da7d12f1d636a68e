"""The lines by which figures are compared over time."""

from __future__ import annotations


def print_figure(name: str, value: float, unit: str) -> None:
    """`figure NAME VALUE UNIT`; names are stable."""
    print(f"figure {name} {value:.4g} {unit}", flush=True)
