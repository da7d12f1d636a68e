"""Behaviour of torch that the runtime relies on and no page of torch promises: a torch that changes it fails here."""

from __future__ import annotations

import torch
from torch import nn


def test_a_gradient_may_be_of_another_type_than_its_parameter() -> None:
    weight = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    total = torch.zeros(2)
    weight.grad_dtype = None
    weight.grad = total
    for _ in range(2):
        torch.autograd.backward((weight * 1.5).sum())

    assert total.tolist() == [3.0, 3.0]
