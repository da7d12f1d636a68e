"""Which ranks of islands exchange which boxes of parameters, against every element looked up one by one."""

from __future__ import annotations

import math
import random

import pytest
import torch
from torch import Tensor

from holmes_runtime.outer.lanes import Cell, FlatSlice, Lane, ShardLayout, cells_of, fragments_of, lanes_of
from tests.seeds import few_of

SHAPES = {"a": (7, 5), "b": (3, 4, 6), "c": (11,), "d": (8, 8), "e": (1, 9)}


def random_layout(draw: random.Random) -> ShardLayout:
    """An island of random degrees: layers over stages, dimensions cut in two or not, flat parts cut anywhere."""
    pp, tp, dp = draw.randint(1, 3), draw.randint(1, 2), draw.randint(1, 4)
    ranks: list[list[FlatSlice]] = [[] for _ in range(pp * tp * dp)]
    for name, shape in SHAPES.items():
        stage, dim = draw.randrange(pp), draw.randrange(len(shape))
        is_split = tp > 1 and shape[dim] > 1
        middle = shape[dim] // 2
        for tp_rank, (low, high) in enumerate(((0, middle), (middle, shape[dim])) if is_split else ((0, shape[dim]),)):
            offset = tuple(low if at == dim else 0 for at in range(len(shape)))
            part = tuple(high - low if at == dim else size for at, size in enumerate(shape))
            cuts = sorted(draw.randint(0, math.prod(part)) for _ in range(dp - 1))
            for dp_rank, (start, stop) in enumerate(zip([0, *cuts], [*cuts, math.prod(part)], strict=True)):
                if start < stop:
                    ranks[(stage * dp + dp_rank) * tp + tp_rank].append(
                        FlatSlice(name, shape, offset, part, start, stop)
                    )
    return ShardLayout(tuple(map(tuple, ranks)))


def box_of(whole: Tensor, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> Tensor:
    return whole[tuple(slice(first, first + size) for first, size in zip(offsets, sizes, strict=True))]


def owners_of(layout: ShardLayout) -> dict[str, Tensor]:
    """By parameter the rank that owns each element, each owned once."""
    found = {name: torch.full(shape, -1) for name, shape in SHAPES.items()}
    for rank, pieces in enumerate(layout.ranks):
        for piece in pieces:
            part = box_of(found[piece.name], piece.offset, piece.shape)
            flat = part.flatten().clone()
            assert (flat[piece.start : piece.stop] == -1).all()
            flat[piece.start : piece.stop] = rank
            part.copy_(flat.view(piece.shape))
    assert all((owners >= 0).all() for owners in found.values())
    return found


@pytest.mark.parametrize("seed", few_of(20, range(40)))
def test_lanes_join_the_owners_of_every_element_once_and_alike_at_all_ends(seed: int) -> None:
    draw = random.Random(seed)
    layouts = [random_layout(draw) for _ in range(draw.randint(1, 3))]
    owners = [owners_of(layout) for layout in layouts]
    found: list[list[list[Lane]]] = [
        [lanes_of(layouts, island, rank) for rank in range(len(layout.ranks))] for island, layout in enumerate(layouts)
    ]

    for island, by_rank in enumerate(found):
        covered = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
        for rank, lanes in enumerate(by_rank):
            for lane in lanes:
                assert lane.owners[island] == rank
                for position, owner in enumerate(lane.owners):
                    assert lane in found[position][owner]
                for cell in lane.cells:
                    box_of(covered[cell.name], cell.offsets, cell.sizes).add_(1)
                    for position, owner in enumerate(lane.owners):
                        assert (box_of(owners[position][cell.name], cell.offsets, cell.sizes) == owner).all()
        assert all((times == 1).all() for times in covered.values())


def test_the_same_plan_needs_one_lane_a_rank() -> None:
    layout = random_layout(random.Random(1))

    for rank, pieces in enumerate(layout.ranks):
        lanes = lanes_of([layout, layout], 0, rank)
        assert [lane.owners for lane in lanes] == ([(rank, rank)] if pieces else [])
        assert sorted(cell for lane in lanes for cell in lane.cells) == sorted(
            cell for piece in pieces for cell in cells_of(piece)
        )


def test_an_island_without_a_parameter_is_refused_with_its_name() -> None:
    whole = ShardLayout(((FlatSlice("a", (4,), (0,), (4,), 0, 4), FlatSlice("b", (2, 2), (0, 0), (2, 2), 0, 4)),))
    part = ShardLayout((whole.ranks[0][:1],))

    with pytest.raises(ValueError, match=r"parameter b of shape \(2, 2\): the island at position 1 lacks"):
        lanes_of([whole, part], 0, 0)


def test_a_parameter_of_other_dimensions_is_refused_with_its_name() -> None:
    matrix, vector = (
        ShardLayout(((FlatSlice("a", shape, (0,) * len(shape), shape, 0, 4),),)) for shape in ((2, 2), (4,))
    )

    with pytest.raises(ValueError, match=r"parameter a of shape \(2, 2\): the island at position 1 lacks"):
        lanes_of([matrix, vector], 0, 0)


def test_fragments_are_even_and_the_same_whatever_the_plan() -> None:
    draw = random.Random(5)
    found = [fragments_of(random_layout(draw), 2) for _ in range(4)]

    assert all(each == found[0] for each in found)
    filled = [sum(math.prod(SHAPES[name]) for name in SHAPES if found[0][name] == fragment) for fragment in (0, 1)]
    assert filled == [92, 99]  # 72 + 11 + 9, 64 + 35


def test_cells_of_a_piece_are_its_elements_in_order() -> None:
    assert cells_of(FlatSlice("a", (4, 6), (0, 3), (4, 3), 1, 8)) == [
        Cell("a", (0, 4), (1, 2)),
        Cell("a", (1, 3), (1, 3)),
        Cell("a", (2, 3), (1, 2)),
    ]
