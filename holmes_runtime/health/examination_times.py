"""The times of examinations: early, at intervals, when the usual step has changed, and after a change of the run.

Pure: the duration of each step is passed in. Free of torch.
"""

from __future__ import annotations

from collections import deque
from statistics import median

FIRST_STEPS = 10  # early enough to act on, but late enough for caches and connections to be warm
EVERY_STEPS = 200
SOON_STEPS = 20  # after a change or a reason, doubled each time: a slow host or link may recover

WARM_UP_STEPS = 3  # after the start and after each change of the run: they are not typical
MIN_KNOWN = 5  # steps to know the usual step
MAX_KNOWN = 20
UNUSUAL = 1.3  # ratio to the usual step, longer or shorter
UNUSUAL_STEPS = 2  # in a row: a single one is chance


class UsualStep:
    """The usual seconds of a step on one rank, and a watch for a lasting change of them."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget all steps, as the run has changed."""
        self._recent_s: deque[float] = deque(maxlen=MAX_KNOWN)
        self._to_ignore, self._unusual = WARM_UP_STEPS, 0

    def add(self, step_s: float) -> bool:
        """Add a step. Return True if it and the step before took unusually long or short, and are not remembered."""
        if self._to_ignore > 0:
            self._to_ignore -= 1
            return False
        if len(self._recent_s) >= MIN_KNOWN:
            ratio = step_s / median(self._recent_s)
            if not 1 / UNUSUAL <= ratio <= UNUSUAL:
                self._unusual += 1
                return self._unusual >= UNUSUAL_STEPS
        self._unusual = 0
        self._recent_s.append(step_s)
        return False


class ExaminationTimes:
    """The steps after which all ranks examine, for reasons known to all of them."""

    def __init__(self) -> None:
        self._wait_steps = SOON_STEPS
        self._next_steps: int | None = None
        self._seen_steps: int | None = None

    def is_due(self, step: int, asked: bool) -> bool:
        """Return True if an examination is due after `step`, or `asked` for. Steps before it may have been skipped."""
        before, steps = step if self._seen_steps is None else self._seen_steps, step + 1
        self._seen_steps = steps
        is_among = any(mark is not None and before < mark <= steps for mark in (FIRST_STEPS, self._next_steps))
        return asked or is_among or steps // EVERY_STEPS > before // EVERY_STEPS

    def held(self, step: int, is_another: bool, is_as_planned: bool) -> None:
        """Record an examination after `step`. The run then `is_as_planned` or not.

        `is_another`: it changed the run, or a rank asked for it, so the usual step is unknown.
        """
        self._wait_steps = SOON_STEPS if is_another else min(2 * self._wait_steps, EVERY_STEPS)
        self._next_steps = step + 1 + self._wait_steps if is_another or not is_as_planned else None
