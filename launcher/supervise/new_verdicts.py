"""Verdicts worth showing: a slow host or wire is shown again only when its slowness has changed."""

from __future__ import annotations

from collections.abc import Sequence

from holmes_runtime.config.verdicts import AllHostsSlow, HostIsSlow, LinkIsSlow, Verdict

CHANGED = 2.0  # times slower or faster than when it was last shown


class NewVerdicts:
    """Remembers how slow each part of a run was when last shown."""

    def __init__(self) -> None:
        self._said: dict[object, float] = {}

    def of(self, verdicts: Sequence[Verdict]) -> list[Verdict]:
        """Return the verdicts not shown before, or on a part that has become at least twice as slow or fast."""
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
