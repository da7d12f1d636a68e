"""A rank's samples of a step, and the tokens in them that are only read, not predicted."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """A rank's samples of a step, int64: tokens (samples, seq_length + 1) and positions (samples, seq_length).

    `weight` is the factor on the mean loss of each micro-batch's targets: see `Samples.target_weight`.
    """

    tokens: Tensor | None
    positions: Tensor | None
    weight: float = 1.0

    def with_tensors(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """Return the same batch with each tensor changed, such as copied to a device."""
        tokens, positions = (None if values is None else change(values) for values in self[:2])
        return self._replace(tokens=tokens, positions=positions)


def as_read(tokens: Tensor) -> Tensor:
    """Return `tokens` as a model reads them: where one is only read, and not predicted, its complement stands in it."""
    return torch.where(tokens < 0, ~tokens, tokens)
