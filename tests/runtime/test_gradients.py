"""Gradient buckets of one replica; several are tested in test_training.py."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from holmes_runtime.gradients import GradientSync, clip_factor


@pytest.mark.parametrize("bucket_bytes", [1, 100, 10**6])
def test_gradients_are_means_over_microbatches_whatever_the_buckets(bucket_bytes: int) -> None:
    layers = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    inputs = torch.randn(4, 3)
    expected = torch.autograd.grad(layers(inputs).square().mean(), list(layers.parameters()))
    sync = GradientSync(layers.parameters(), None, num_replicas=1, num_microbatches=4, bucket_bytes=bucket_bytes)

    for _ in range(2):
        sync.start()
        for sample in inputs:
            torch.autograd.backward(layers(sample).square().mean())
        sync.finish()

    gradients = [parameter.grad for parameter in layers.parameters()]
    torch.testing.assert_close(gradients, list(expected))
    assert sync.sum_of_squares().item() == pytest.approx(sum(g.square().sum().item() for g in expected), rel=1e-5)


def test_a_gradient_that_never_came_is_an_error() -> None:
    layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    sync = GradientSync(layers.parameters(), None, num_replicas=1, num_microbatches=1)
    sync.start()
    torch.autograd.backward(layers[0](torch.ones(2)).sum())

    with pytest.raises(RuntimeError, match="2 gradients of a bucket of 4 never came"):
        sync.finish()


def test_clipping_scales_down_to_the_limit_and_never_up() -> None:
    assert clip_factor(4.0, 1.0) == 0.25
    assert clip_factor(0.5, 1.0) == 1.0
    assert clip_factor(4.0, None) == 1.0
