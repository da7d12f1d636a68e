"""Cuts of layers, by hand."""

from __future__ import annotations

import pytest

from planner.search.placement import even_shares, take_surplus


def test_layers_are_even_but_for_the_first_stages() -> None:
    assert even_shares(11, 4) == (3, 3, 3, 2)


@pytest.mark.parametrize(
    ("stages", "surplus", "layers", "left"),
    [
        ((0, 1, 2), 1, [4, 2, 5], 0),
        ((2, 1, 0), 3, [4, 2, 3], 0),
        ((0, 1), 3, [1, 2, 6], 0),
        ((0, 1), 9, [1, 1, 6], 5),
    ],
)
def test_surplus_is_taken_from_the_fullest_and_leaves_every_stage_a_layer(
    stages: tuple[int, ...], surplus: int, layers: list[int], left: int
) -> None:
    cut = [4, 2, 6]
    assert take_surplus(cut, stages, surplus) == left
    assert cut == layers
