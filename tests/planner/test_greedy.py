"""Greedy placements may be taken as they are, and are never better than the best."""

from __future__ import annotations

import pytest

from planner.search.closed_form import blocks_step_s, site_stage_s
from planner.search.greedy import place_cut, place_greedily
from planner.search.lower_bounds import LowerBounds
from tests.planner.enumerator import best_by_enumeration, random_coefficients, random_cut
from tests.seeds import few_of


@pytest.mark.parametrize(("seeds", "at_least", "best_at_least"), few_of(1, [(40, 10, 4), (150, 50, 20)]))
def test_greedy_placements_fit_keep_the_pace_and_never_beat_brute_force(
    seeds: int, at_least: int, best_at_least: int
) -> None:
    found = best = 0
    for seed in range(seeds):
        coeffs = random_coefficients(seed)
        bounds, last = LowerBounds(coeffs), coeffs.candidate.pp - 1
        least_s = best_by_enumeration(coeffs)
        for pace_s in bounds.paces_s[bounds.first_pace :][:4]:
            placed = place_greedily(bounds, pace_s)
            if placed is None:
                continue
            stages = [(block.site[0], held) for block in placed.blocks for held in block.layers]
            assert len(stages) == coeffs.candidate.pp
            assert sum(held for _, held in stages) == coeffs.num_layers
            assert all(1 <= held <= coeffs.capacity[s][c] for s, (c, held) in enumerate(stages)), seed
            assert all(len(block.layers) <= coeffs.most_stages[block.site[0]] for block in placed.blocks), seed
            slowest_s = max(site_stage_s(coeffs, (c,), held, (s == 0, s == last)) for s, (c, held) in enumerate(stages))
            assert slowest_s <= pace_s * (1 + 1e-9), seed
            assert placed.seconds == blocks_step_s(coeffs, placed.blocks)
            assert least_s is not None
            assert placed.seconds >= least_s * (1 - 1e-9), seed
            found += 1
            best += placed.seconds <= least_s * (1 + 1e-9)
    assert found > at_least
    assert best > best_at_least


@pytest.mark.slow
def test_a_fixed_cut_is_placed_where_it_fits_and_never_better_than_by_brute_force() -> None:
    found = best = 0
    for seed in range(150):
        coeffs = random_coefficients(seed)
        cut = random_cut(coeffs, seed)
        placed, least_s = place_cut(coeffs, cut), best_by_enumeration(coeffs, fixed_layers=cut)
        if placed is None:
            continue
        stages = [(block.site[0], held) for block in placed.blocks for held in block.layers]
        assert tuple(held for _, held in stages) == cut
        assert all(held <= coeffs.capacity[s][c] for s, (c, held) in enumerate(stages)), seed
        assert all(len(block.layers) <= coeffs.most_stages[block.site[0]] for block in placed.blocks), seed
        assert least_s is not None
        assert placed.seconds >= least_s * (1 - 1e-9), seed
        found += 1
        best += placed.seconds <= least_s * (1 + 1e-9)
    assert found > 50
    assert best > 20
