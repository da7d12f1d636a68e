"""Sentences on jobs that save nothing, or evaluate nothing that they save."""

from __future__ import annotations

import pytest

from planner.advice.unsaved_work import unevaluated_sentences, unsaved_sentences
from tests.planner.fleets import bed_job

SAVED = {"path": "/saved", "every_steps": 20}


def evaluating(every_steps: int, steps: int) -> tuple[str, ...]:
    job = bed_job(
        steps=steps,
        data={"path": "/data", "validation_fraction": 0.1},
        evaluation={"every_steps": every_steps},
        checkpoint=SAVED,
    )
    return unevaluated_sentences(job)


def test_checkpoints_without_an_evaluation_are_named_with_what_to_set() -> None:
    (none,), (some,) = evaluating(7, 100), evaluating(30, 100)
    assert "set checkpoint.every_steps (20) to a multiple of evaluation.every_steps (7)" in none
    assert none.startswith("Only checkpoints of evaluated steps can be kept as the best, here none:")
    assert some.startswith("Only checkpoints of evaluated steps can be kept as the best, here one in 3:")


@pytest.mark.parametrize("every_steps", [10, 20, 1])
def test_where_every_saved_step_is_evaluated_nothing_is_said(every_steps: int) -> None:
    assert evaluating(every_steps, 90) == ()


def test_a_long_job_without_checkpoints_is_told_how_often_to_save() -> None:
    (sentence,) = unsaved_sentences(bed_job(steps=10_000), 9.0)
    assert "every_steps: 100}" in sentence
    assert unsaved_sentences(bed_job(steps=10_000, checkpoint=SAVED), 9.0) == ()
    assert unsaved_sentences(bed_job(steps=100), 9.0) == ()
