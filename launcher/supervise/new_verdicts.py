"""Verdicts that say something new: a slow host or wire is worth a word again when it has become another."""

from __future__ import annotations

from collections.abc import Sequence

from holmes_runtime.config.verdicts import AllHostsSlow, HostIsSlow, LinkIsSlow, Verdict

CHANGED = 2.0  # times slower or faster than when it was last said


class NewVerdicts:
    """Remembers how slow each part of a run was said to be."""

    def __init__(self) -> None:
        self._said: dict[object, float] = {}

    def of(self, verdicts: Sequence[Verdict]) -> list[Verdict]:
        """Return those not said before, or of a part that is now slower or faster by twice."""
        return [verdict for verdict in verdicts if self._is_new(verdict)]

    def _is_new(self, verdict: Verdict) -> bool:
        match verdict:
            case HostIsSlow(host, ratio):
                return self._differs(host, ratio)
            case LinkIsSlow():
                return self._differs(verdict.trunk or (verdict.sender, verdict.receiver), verdict.ratio)
            case AllHostsSlow(_, most):
                return self._differs(AllHostsSlow, most)
        return True

    def _differs(self, part: object, ratio: float) -> bool:
        before = self._said.get(part)
        if before is not None and before / CHANGED < ratio < before * CHANGED:
            return False
        self._said[part] = ratio
        return True
