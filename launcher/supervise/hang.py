"""A run in which no rank ends and none takes a step: when to call it hung, and which rank holds up the others. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holmes_core.records.plan import Plan

STEPS = 20  # a step may be slow; twenty times the usual is no step any more
LEAST_S = 60.0
ASK_S = 3.0  # from asking the ranks where they are to naming one
_WAITING_ELSEWHERE = ("torch/distributed", "distributed_c10d", ".wait(", "process_groups.py", "pipeline.py")
_STATES = {"T": "stopped by a signal", "t": "stopped by a debugger", "D": "waiting for a device"}


class HangDetector:
    """Progress of every rank, and when the last one was made.

    Counts from the first step: before it, connecting and compiling have `timeout_s` of the job.
    """

    def __init__(self, plan: Plan, now_s: float) -> None:
        self._usual_s = plan.prediction.step_s
        self._most_s = plan.job.timeout_s / 2
        # Saving a checkpoint is no step either, and how long it takes is the disk's affair.
        self._least_s = LEAST_S if plan.job.checkpoint is None else self._most_s
        evaluation = plan.job.evaluation
        self._batches = 1 + (evaluation.num_batches if evaluation else 0)
        self._steps: dict[int, int] = {rank.rank: -1 for rank in plan.ranks}
        self._states: dict[int, str] = {}
        self._progress_s = now_s
        self._asked_s: float | None = None

    def take_progress(self, rank: int, step: int, now_s: float) -> None:
        """A rank finished a step."""
        self._steps[rank] = max(step, self._steps[rank])
        self._progress_s = now_s
        self._asked_s = None

    def take_step(self, step_s: float) -> None:
        """All ranks finished a step in that time."""
        self._usual_s = max(self._usual_s, step_s)

    def take_states(self, states: Mapping[int, str]) -> None:
        """What the kernel says of ranks: R, S, D, T."""
        self._states.update(states)

    @property
    def limit_s(self) -> float:
        """Seconds without progress that mean the run is hung; always sooner than the job's own timeout."""
        return min(max(STEPS * self._usual_s * self._batches, self._least_s), self._most_s)

    def asks_now(self, now_s: float) -> bool:
        """True once, when it is time to ask the ranks where they are."""
        is_late = self._asked_s is None and now_s - self._progress_s > self.limit_s
        if is_late and min(self._steps.values()) >= 0:  # every rank has begun
            self._asked_s = now_s
            return True
        return False

    def culprit(self, last_lines: Mapping[int, Sequence[str]], now_s: float) -> tuple[int, str] | None:
        """The rank that holds up the others and how we know, some time after asking; None before."""
        if self._asked_s is None or now_s - self._asked_s < ASK_S:
            return None
        silent_s = now_s - self._progress_s
        text = f"no progress for {silent_s:.0f} s, a step takes {self._usual_s:.2g} s; "
        halted = [rank for rank, state in self._states.items() if state in _STATES]
        if halted:
            return halted[0], text + f"its process is {_STATES[self._states[halted[0]]]}"
        fewest = min(self._steps.values())
        behind = [rank for rank, step in self._steps.items() if step == fewest]
        if len(behind) < len(self._steps):
            return behind[0], text + f"it finished step {fewest}, others are further"
        busy = [rank for rank in self._steps if rank in last_lines and not _waits(last_lines[rank])]
        return (busy or behind)[0], text + "the lines below say where it is"


def _waits(lines: Sequence[str]) -> bool:
    """Whether the innermost frames of a traceback that faulthandler printed wait for another rank."""
    starts = [index for index, line in enumerate(lines) if "most recent call first" in line]
    innermost = " ".join(lines[starts[-1] + 1 : starts[-1] + 4]) if starts else ""
    return any(sign in innermost for sign in _WAITING_ELSEWHERE)
