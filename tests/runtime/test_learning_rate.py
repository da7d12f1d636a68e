"""The learning rate of each step, worked by hand."""

from __future__ import annotations

from typing import Literal

import pytest

from holmes_runtime.config.run_settings import OptimizerSettings


def settings(
    decay: Literal["constant", "linear", "cosine"], warmup_steps: int, lowest: float = 0.0
) -> OptimizerSettings:
    return OptimizerSettings(1.0, lowest, warmup_steps, decay, 0.1, 0.9, 0.95, None)


def rates(given: OptimizerSettings, num_steps: int) -> list[float]:
    return [given.rate_at(step, num_steps) for step in range(num_steps)]


def test_warm_up_rises_in_equal_steps_to_the_full_rate() -> None:
    assert rates(settings("constant", 4), 6) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_linear_decay_falls_from_the_end_of_the_warm_up_to_the_least_rate() -> None:
    assert rates(settings("linear", 2, 0.2), 6) == pytest.approx([0.5, 1.0, 0.8, 0.6, 0.4, 0.2])


def test_cosine_decay_is_half_way_down_in_the_middle() -> None:
    assert rates(settings("cosine", 0, 0.2), 5) == pytest.approx([1.0, 0.8828427, 0.6, 0.3171573, 0.2])


def test_steps_after_the_planned_end_keep_the_least_rate() -> None:
    assert settings("cosine", 0, 0.1).rate_at(50, 10) == pytest.approx(0.1)


def test_a_run_of_one_step_has_a_rate() -> None:
    assert rates(settings("cosine", 0, 0.1), 1) == pytest.approx([0.1])
    assert rates(settings("linear", 5), 1) == pytest.approx([0.2])
