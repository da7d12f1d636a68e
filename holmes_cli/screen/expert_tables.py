"""Experts placed by a routing trace: a table in short, and the map of all layers for engines."""

from __future__ import annotations

import json
from collections.abc import Sequence

from holmes_cli.screen.plan_tables import Sheet
from holmes_core.records.advice import LayerExperts, PlacedBy
from holmes_core.units import format_seconds

MAP_BEGINS = '{"physical_to_logical_map": [\n'  # of each map, which no other file begins with


def expert_map(layers: Sequence[LayerExperts]) -> str:
    """Return the map in JSON that EPLB and SGLang name so: by layer, experts in the order of ranks, a line each."""
    rows = (json.dumps([expert for rank in layer.experts for expert in rank]) for layer in layers)
    return MAP_BEGINS + ",\n".join(rows) + "\n]}\n"


def expert_sheet(layers: Sequence[LayerExperts]) -> Sheet:
    """Return copies, balance and seconds of the usual order and as placed, over all layers."""
    orders = [[layer.usual for layer in layers], [layer.placed for layer in layers]]
    moved, left = sum(layer.placed != layer.usual for layer in layers), sum(layer.gap is None for layer in layers)
    gap = max((layer.gap for layer in layers if layer.gap is not None), default=0.0)
    proof = f"at most {gap:.1%}" if gap >= 5e-4 else "none"
    rows = (
        (
            "copies of a token that leave its host",
            *(f"{_mean([each.copies for each in order]):.2f}" for order in orders),
        ),
        ("rows of the fullest rank over the mean", *map(_fullest, orders)),
        ("seconds of a micro-batch, all layers", *(format_seconds(sum(each.seconds for each in o)) for o in orders)),
        ("layers with another order", "", f"{moved} of {len(layers)}"),
        *([("layers left in the usual order for lack of time", "", f"{left} of {len(layers)}")] if left else []),
        ("gap to the best order", "", "not known" if left else proof),
    )
    return Sheet("Experts by the trace", ("", "usual order", "placed"), rows)


def _fullest(order: Sequence[PlacedBy]) -> str:
    fullest = [each.fullest for each in order]
    return f"{_mean(fullest):.2f}, at most {max(fullest):.2f}"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
