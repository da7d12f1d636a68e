"""The loss of a student against torch's formulas on all logits at once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from holmes_runtime.config.run_settings import TeacherSettings
from holmes_runtime.model.distilled_loss import SoftTargets, distilled_loss
from holmes_runtime.model.head_loss import cross_entropy
from holmes_runtime.model.tensor_parallel import ALONE

VOCAB, TOP = 40_000, 7


def drawn(seq: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, SoftTargets]:
    """Return logits, targets and a teacher's soft targets for two samples; a fifth of the targets is not predicted."""
    generator = torch.Generator().manual_seed(seq)
    logits = 3 * torch.randn(2, seq, VOCAB, generator=generator)
    targets = torch.randint(VOCAB, (2, seq), generator=generator)
    targets = torch.where(torch.rand(2, seq, generator=generator) < 0.2, ~targets, targets)
    highest = torch.randn(2, seq, VOCAB, generator=generator).log_softmax(2).topk(TOP, 2)
    likeliest = highest.indices.to(torch.int32)
    likeliest[:, ::3, 2] = targets[:, ::3].clamp(min=0)  # the teacher agrees with the data here and there
    return logits.to(dtype).requires_grad_(), targets, SoftTargets(likeliest, highest.values)


def expected_loss(logits: Tensor, targets: Tensor, teacher: SoftTargets, settings: TeacherSettings) -> Tensor:
    """By torch's own losses, of dense probabilities."""
    values, is_predicted = logits.float().flatten(0, 1), targets.flatten() >= 0
    probabilities = (teacher.log_probabilities / settings.temperature).softmax(2).flatten(0, 1)
    dense = torch.zeros_like(values).scatter_add_(1, teacher.tokens.flatten(0, 1).long(), probabilities)
    student = (values / settings.temperature).log_softmax(1)
    soft = functional.kl_div(student, dense, reduction="none").sum(1) * settings.temperature**2
    hard = functional.cross_entropy(values, targets.flatten().clamp(min=0), reduction="none")
    return ((1 - settings.weight) * hard + settings.weight * soft).where(is_predicted, 0.0).mean()


@pytest.mark.parametrize(
    "settings", [TeacherSettings(0.3), TeacherSettings(1.0, 2.0), TeacherSettings(0.6, 0.5)], ids=str
)
@pytest.mark.parametrize("overwrites", [True, False])
def test_loss_and_gradient_are_those_of_dense_probabilities(settings: TeacherSettings, overwrites: bool) -> None:
    logits, targets, teacher = drawn(5)
    expected = expected_loss(logits, targets, teacher, settings)
    (expected_gradient,) = torch.autograd.grad(expected, logits)

    loss = distilled_loss(logits, targets, teacher, settings, VOCAB, ALONE, overwrites)
    (gradient,) = torch.autograd.grad(loss, logits)

    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-5, atol=1e-9)
    assert gradient[targets < 0].eq(0).all()
    assert (gradient.data_ptr() == logits.data_ptr()) is overwrites
    assert overwrites or torch.equal(logits, drawn(5)[0])


def test_chunks_make_no_difference_to_loss_or_gradient() -> None:
    settings = TeacherSettings(0.5, 1.5)
    logits, targets, teacher = drawn(300, torch.bfloat16)  # 600 targets; a chunk has 419
    expected = expected_loss(logits, targets, teacher, settings)
    (expected_gradient,) = torch.autograd.grad(expected, logits)

    loss = distilled_loss(logits, targets, teacher, settings, VOCAB, ALONE, True)
    (gradient,) = torch.autograd.grad(loss, logits)

    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-2, atol=1e-9)


def test_a_teacher_who_is_sure_of_the_data_gives_cross_entropy() -> None:
    logits, targets, _ = drawn(4)
    sure = SoftTargets(targets.clamp(min=0).unsqueeze(2).to(torch.int32), torch.zeros(2, 4, 1))

    loss = distilled_loss(logits, targets, sure, TeacherSettings(0.4), VOCAB, ALONE, False)

    torch.testing.assert_close(loss, cross_entropy(logits, targets, VOCAB, ALONE, False))


def test_a_student_like_its_teacher_has_no_loss_and_no_gradient() -> None:
    logits = torch.randn(1, 6, 50, requires_grad=True)
    likeliest = torch.arange(50, dtype=torch.int32).expand(1, 6, 50)
    teacher = SoftTargets(likeliest, logits.detach() + 3)  # logarithms but for a constant

    loss = distilled_loss(logits, torch.zeros(1, 6).long(), teacher, TeacherSettings(1.0, 3.0), 50, ALONE, False)
    (gradient,) = torch.autograd.grad(loss, logits)

    assert abs(loss.item()) < 1e-5
    assert gradient.abs().max() < 1e-6


def test_a_token_of_no_probability_counts_for_nothing() -> None:
    logits, targets, teacher = drawn(4)
    less = SoftTargets(teacher.tokens[:, :, :-1], teacher.log_probabilities[:, :, :-1])
    hidden = teacher.log_probabilities.clone()
    hidden[:, :, -1] = -torch.inf

    losses = [
        distilled_loss(logits, targets, each, TeacherSettings(0.5), VOCAB, ALONE, False)
        for each in (less, SoftTargets(teacher.tokens, hidden))
    ]

    torch.testing.assert_close(*losses)
