"""From a solved program to its placement: the blocks in order, and the replicas of each stage by class."""

from __future__ import annotations

from typing import Any

from planner.problem.exchange_rates import are_even
from planner.search.closed_form import Block
from planner.search.program import Program


def decode(program: Program) -> tuple[tuple[Block, ...], tuple[tuple[int, ...], ...]]:
    """The blocks from the first stage on, and by stage its replicas in each class; integers are rounded."""
    order = _path(program)
    layers = [_block_layers(program, i) for i in order]
    rows = [_rows(program, i, len(held)) for i, held in zip(order, layers, strict=True)]
    blocks = tuple(
        Block(program.given.sites[i], held, all(_is_even(program, row) for row in of_block))
        for i, held, of_block in zip(order, layers, rows, strict=True)
    )
    return blocks, tuple(row for of_block in rows for row in of_block)


def _is_even(program: Program, row: tuple[int, ...]) -> bool:
    """Whether each cluster that holds any of a stage's replicas, given by class, holds equally many."""
    return are_even(program.given.coeffs.cluster[c] for c, count in enumerate(row) for _ in range(count))


def _path(program: Program) -> list[int]:
    """The used sites from the first stage's on."""
    order = [next(i for i in program.given.indices if _whole(program.first[i]))]
    while not _whole(program.last[order[-1]]) and len(order) <= len(program.given.sites):
        order.append(next(j for (i, j), follows in program.z.items() if i == order[-1] and _whole(follows)))
    return order


def _block_layers(program: Program, i: int) -> tuple[int, ...]:
    """The layers of the stages on a site: first, middle ones ascending, last; or as the cut is fixed."""
    fixed_layers = program.given.spec.fixed_layers
    if fixed_layers is not None:
        return tuple(fixed_layers[s] for (s, at), on in program.y.items() if at == i and _whole(on))
    found = []
    for kinds in (("first", "only"), ("middle",), ("last",)):
        for (at, kind, a), stages in sorted(program.n.items(), key=lambda item: item[0][2]):
            if at == i and kind in kinds:
                found += [a] * _whole(stages)
    return tuple(found)


def _rows(program: Program, i: int, stages: int) -> list[tuple[int, ...]]:
    """By stage of a site, its replicas in each class: as even as whole numbers allow, each class with one at least."""
    coeffs, site = program.given.coeffs, program.given.sites[i]
    num_classes, dp = len(coeffs.group_slots), coeffs.candidate.dp
    if len(site) == 1:
        return [tuple(dp if c == site[0] else 0 for c in range(num_classes))] * stages
    left = {c: _whole(program.r[i, c]) for c in site}
    rows = []
    for remaining in range(stages, 0, -1):
        row = {c: max(1, left[c] // remaining) for c in left}
        for c in sorted(left, key=lambda c: (-(left[c] - row[c] * remaining), c)):
            row[c] += min(dp - sum(row.values()), left[c] - row[c] - (remaining - 1))
        left = {c: left[c] - row[c] for c in left}
        rows.append(tuple(row.get(c, 0) for c in range(num_classes)))
    return rows


def _whole(expression: Any) -> int:
    """The value of a variable, or of a sum of variables."""
    return round(float(expression.value() or 0.0))
