"""The codecs of messages between stages: as mild as the step allows, and none on edges that are hidden."""

from __future__ import annotations

from dataclasses import replace

from holmes_runtime.config.codec import Codec
from holmes_runtime.config.rank_grid import EDGE_AXES, Axis
from planner.cost.packing import allowed_codecs
from planner.layout.layout import EdgeCodecs, Layout
from planner.layout.predict import predict_step_s
from planner.problem.problem import Problem
from planner.tolerances import RELATIVE_TOLERANCE

WORTH = 1.02  # a step longer by less than two percent does not justify a loss of precision
WORTH_AN_EDGE = 1.01  # nor does one longer by less than one percent, for a single edge


def choose_codecs(problem: Problem, layout: Layout) -> Layout:
    """Return the layout with the allowed codecs that shorten the step.

    All edges between hosts begin with the lossiest codec. Then each edge, those inside clusters first, takes the
    mildest one that keeps the step within one percent of that or makes it shorter. If all of them together gain less
    than two percent, nothing is packed. Replicas and shards are alike.
    """
    allowed = allowed_codecs(problem.job)
    edges = _edges_between_hosts(layout)
    if len(allowed) == 1 or not edges:
        return layout
    codecs: dict[tuple[Axis, int], Codec] = dict.fromkeys(edges, allowed[-1])
    packed_s = _step_s(problem, layout, codecs)
    if _step_s(problem, layout, {}) <= packed_s * WORTH:
        return _shallower(problem, layout)
    most_s = packed_s * WORTH_AN_EDGE
    for edge in edges:
        for codec in allowed[:-1]:
            milder = {**codecs, edge: codec}
            step_s = _step_s(problem, layout, milder)
            if step_s <= most_s:
                codecs, most_s = milder, min(most_s, step_s * WORTH_AN_EDGE)
                break
    return _shallower(problem, layout.with_codecs(codecs))


def _shallower(problem: Problem, layout: Layout) -> Layout:
    """Return the layout with no more micro-batches in flight than are useful with the codecs, to save memory."""
    deepest = max(layout.mode.extra_in_flight, default=0)
    most_s = predict_step_s(problem, layout) * (1 + RELATIVE_TOLERANCE)
    for most in range(1, deepest):
        extra = tuple(min(each, most) for each in layout.mode.extra_in_flight)
        tried = replace(layout, mode=layout.mode._replace(extra_in_flight=extra))
        if predict_step_s(problem, tried) <= most_s:
            return tried
    return layout


def _step_s(problem: Problem, layout: Layout, codecs: EdgeCodecs) -> float:
    return predict_step_s(problem, replace(layout, codecs=codecs))


def _edges_between_hosts(layout: Layout) -> list[tuple[Axis, int]]:
    """Return both directions of the edges that leave a host in some replica, by earlier rank; crossing ones last."""
    found: dict[tuple[Axis, int], bool] = {}
    for group in layout.groups_of_first_shards:
        first, second = (layout.ranks[rank] for rank in (group.ranks[0], group.ranks[-1]))
        if group.axis in EDGE_AXES and first.host != second.host:
            key = group.axis, first.pp_rank
            found[key] = found.get(key, False) or first.cluster != second.cluster
    return sorted(found, key=lambda key: (found[key], key[1], key[0]))
