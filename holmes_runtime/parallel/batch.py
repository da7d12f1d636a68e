"""A rank's samples for a step, and the tokens in them that are only read and not predicted."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from holmes_runtime.model.distilled_loss import SoftTargets


class Batch(NamedTuple):
    """A rank's samples for a step, int64: tokens (samples, seq_length + 1) and positions (samples, seq_length).

    `teacher` are the soft targets (samples, seq_length, top) on a rank that computes losses, if there is a teacher.
    `weight` is the factor on the mean loss of each micro-batch's targets: see `Samples.target_weight`. No sample has
    more than `max_documents` documents.
    """

    tokens: Tensor | None
    positions: Tensor | None
    weight: float = 1.0
    max_documents: int = 0
    teacher: SoftTargets | None = None

    def with_tensors(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """Return the batch with `change` applied to its tokens and positions, such as a copy to a device.

        Soft targets stay in host memory until their micro-batch needs them.
        """
        tokens, positions = (None if values is None else change(values) for values in self[:2])
        return self._replace(tokens=tokens, positions=positions)

    def pinned(self) -> Batch:
        """Return the batch in pinned host memory, from which a GPU can copy while it computes."""
        teacher = None if self.teacher is None else SoftTargets(*(values.pin_memory() for values in self.teacher))
        return self.with_tensors(lambda values: values.pin_memory())._replace(teacher=teacher)

    def more_inputs(self, num_microbatches: int) -> list[tuple[Tensor, int] | tuple[()]]:
        """Return the further arguments of a stage's module by micro-batch, if there are positions.

        They are the micro-batch's part of the positions, and the most documents it may have.
        """
        if self.positions is None:
            return [()] * num_microbatches
        return [(part, self.max_documents * len(part)) for part in self.positions.chunk(num_microbatches)]

    def teachers(self, num_microbatches: int) -> list[SoftTargets] | list[None]:
        """Return the teacher's soft targets by micro-batch, if there is a teacher."""
        if self.teacher is None:
            return [None] * num_microbatches
        parts = (values.chunk(num_microbatches) for values in self.teacher)
        return [SoftTargets(*values) for values in zip(*parts, strict=True)]


def max_documents(positions: Tensor) -> int:
    """Return the most documents in any sample, from each token's position in its document (samples, seq_length)."""
    return int((positions == 0).sum(1).max())


def as_read(tokens: Tensor) -> Tensor:
    """Return `tokens` as a model reads them. A token that is only read, not predicted, is stored as its complement."""
    return torch.where(tokens < 0, ~tokens, tokens)
