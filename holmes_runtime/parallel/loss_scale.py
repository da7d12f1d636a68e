"""The factor that keeps fp16 gradients in range: halved when they overflow, doubled after a long time without overflow.

Source: Micikevicius et al., Mixed Precision Training, 2018; the numbers are those that torch.amp.GradScaler uses.
"""

from __future__ import annotations

from dataclasses import dataclass

GROWTH_STEPS = 2000


@dataclass
class LossScale:
    """The scale of the loss, and the `good_steps` without overflow since its last change. Equal on all ranks."""

    scale: float = 2.0**16
    good_steps: int = 0

    def update(self, finite: bool) -> bool:
        """Adapt the scale after a step whose gradients were `finite` or not. Return True if the step is to be taken.

        Raises RuntimeError if the gradients are not finite at any scale.
        """
        if not finite:
            if self.scale <= 1.0:
                raise RuntimeError("the gradients are not finite even with loss scale 1: fp16 cannot hold them")
            self.scale, self.good_steps = self.scale / 2, 0
            return False
        self.good_steps += 1
        if self.good_steps == GROWTH_STEPS:
            self.scale, self.good_steps = self.scale * 2, 0
        return True
