"""Lower bounds by hand, and on random instances with what brute force finds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from planner.problem.coefficients import Coefficients
from planner.search.closed_form import Block, blocks_step_s, layers_within, site_stage_s
from planner.search.lower_bounds import LayerLimits, LowerBounds
from tests.planner.enumerator import all_blocks, random_coefficients


def slowest_stage_s(coeffs: Coefficients, blocks: Sequence[Block]) -> float:
    """The pace of a placement."""
    stages = [(block.site, held) for block in blocks for held in block.layers]
    last = len(stages) - 1
    return max(site_stage_s(coeffs, site, held, s == last) for s, (site, held) in enumerate(stages))


@pytest.mark.parametrize(
    ("seconds", "layer_s", "most", "layers"),
    [(3.0, 1.0, 9, 3), (2.999, 1.0, 9, 2), (0.3, 0.1, 9, 3), (100.0, 1.0, 9, 9), (-1.0, 1.0, 9, 0), (1.0, 0.0, 9, 9)],
)
def test_layers_within_seconds(seconds: float, layer_s: float, most: int, layers: int) -> None:
    assert layers_within(seconds, layer_s, most) == layers


def test_both_limits_are_the_lesser_of_each() -> None:
    one, other = LayerLimits((3, 1), (4, 4), (2, 5)), LayerLimits((2, 2), (5, 3), (2, 6))
    assert one.both(other) == LayerLimits((2, 1), (4, 3), (2, 5))


def test_every_stage_of_every_placement_is_within_the_limits_of_its_pace() -> None:
    for seed in range(30):
        coeffs = random_coefficients(seed)
        bounds = LowerBounds(coeffs)
        for blocks in all_blocks(coeffs, False):
            stages = [(block.site, held) for block in blocks for held in block.layers]
            middle = bounds.within(slowest_stage_s(coeffs, blocks)).middle
            assert all(held <= middle[c] for site, held in stages for c in site), seed


def test_no_placement_keeps_a_pace_before_the_first() -> None:
    for seed in range(60):
        coeffs = random_coefficients(seed)
        bounds = LowerBounds(coeffs)
        assert bounds.paces_s == sorted(bounds.paces_s)
        for blocks in all_blocks(coeffs, False):
            assert slowest_stage_s(coeffs, blocks) >= bounds.paces_s[bounds.first_pace] * (1 - 1e-9), seed


def test_a_bound_from_a_pace_is_no_higher_than_the_bound_at_it() -> None:
    for seed in range(60):
        bounds = LowerBounds(random_coefficients(seed))
        for pace_s in bounds.paces_s[bounds.first_pace :]:
            assert bounds.from_pace_s(pace_s) <= bounds.at_pace_s(pace_s) * (1 + 1e-9), seed


@pytest.mark.parametrize("mixed", [False, True])
def test_no_placement_beats_the_bound_at_its_pace(mixed: bool) -> None:
    for seed in range(150):
        coeffs = random_coefficients(seed)
        bounds = LowerBounds(coeffs, mixed)
        for blocks in all_blocks(coeffs, mixed):
            bound_s = bounds.at_pace_s(slowest_stage_s(coeffs, blocks))
            assert bound_s <= blocks_step_s(coeffs, blocks) * (1 + 1e-9), (seed, blocks)
