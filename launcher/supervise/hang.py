"""A run in which no rank ends or finishes a step: when it counts as hung, and which rank holds up the others. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holmes_core.records.plan import Plan
from holmes_runtime.config.messages import RankPosition
from holmes_runtime.config.rank_metrics import GroupRecord
from launcher.supervise.blocking_rank import (
    WatchedGroup,
    culprit,
    doing_in_words,
    operations_under_way,
    stuck_in_words,
)

STEPS = 20  # a step may be slow, but twenty times the usual is a hang
MIN_S = 60.0
ASK_S = 4.0  # from asking the ranks, which observe for 1 s, to naming one; well below VERDICT_MARGIN_S
# Bytes by all ranks together, in the second after they were asked. A waiting rank that looks at a store each second
# moves a few hundred. Over a wire that carries no more than this, a message takes minutes.
MIN_MOVED_BYTES = 16384
MAX_DUMPED = 20  # the innermost lines of a stack
_STACK_BEGINS = "(most recent call first)"  # printed by faulthandler; the main thread's stack comes last
_STATES = {"T": "stopped by a signal", "t": "stopped by a debugger", "D": "waiting for a device"}


class HangReport(NamedTuple):
    """Why a run counts as hung, the rank that holds up the others and its stack; the rank is None if unknown."""

    rank: int | None
    text: str
    stack: tuple[str, ...] = ()


class HangDetector:
    """The progress of every rank, and the time of the last progress.

    Until every rank has finished a step, the job's `timeout_s` may pass without progress, as connecting, compiling and
    loading are not steps. If a wire became slow, data may be under way for longer than that. As long as the ranks'
    connections carry bytes when the ranks are asked, that is progress.
    """

    def __init__(self, plan: Plan, now_s: float) -> None:
        self._plan = plan
        self._usual_s = plan.prediction.step_s
        self._most_s = plan.job.timeout_s / 2
        # Saving a checkpoint is not a step and takes as long as the disk needs. A trainer may save at any time.
        self._min_s = MIN_S if plan.job.checkpoint is None and plan.job.is_bundled else self._most_s
        evaluation = plan.job.evaluation
        self._batches = 1 + (evaluation.num_batches if evaluation else 0)
        self._steps: dict[int, int] = {rank.rank: -1 for rank in plan.ranks}
        self._states: dict[int, str] = {}
        self._positions: dict[int, RankPosition] = {}
        # The bundled trainer's groups. Another trainer's are known once it has made them.
        groups = plan.groups if plan.job.is_bundled else ()
        self._groups = {group.name: WatchedGroup(group.name, group.name, group.ranks) for group in groups}
        self._progress_s = now_s
        self._asked_s: float | None = None
        # If no printed line of a trainer is recognized as a step, there is no limit.
        self._first_s = plan.job.timeout_s if plan.job.is_bundled else math.inf

    def take_progress(self, rank: int, step: int, now_s: float) -> None:
        """Record that a rank finished a step."""
        self._steps[rank] = max(step, self._steps[rank])
        self._progress_s = now_s
        self._asked_s = None
        self._positions.clear()

    def take_step(self, step_s: float) -> None:
        """Record that all ranks finished a step in `step_s`."""
        self._usual_s = max(self._usual_s, step_s)

    def take_states(self, states: Mapping[int, str]) -> None:
        """Take the kernel's states of the ranks: R, S, D, T."""
        self._states.update(states)

    def take_group(self, group: GroupRecord) -> None:
        self._groups[group.key] = WatchedGroup(group.key, group.name, group.ranks)

    def take_position(self, position: RankPosition) -> None:
        """Take a rank's report of its progress in its groups."""
        self._positions[position.rank] = position

    @property
    def has_begun(self) -> bool:
        """True if every rank has finished a step."""
        return min(self._steps.values()) >= 0

    @property
    def limit_s(self) -> float:
        """Seconds without progress after which the run counts as hung. After the first step, always below the timeout.

        An island may also have to wait for other islands.
        """
        if not self.has_begun:
            return self._first_s + self._for_others_s
        return min(max(STEPS * self._usual_s * self._batches, self._min_s), self._most_s) + self._for_others_s

    @property
    def _for_others_s(self) -> float:
        """Seconds that an island that is behind may wait for islands on their way to an outer sync."""
        if self._plan.job.islands is None:
            return 0.0
        islands = self._plan.job.islands.chosen()
        between_s = islands.inner_steps / islands.fragments * self._usual_s
        return islands.grace_s + self._plan.job.timeout_s + 2 * between_s

    def asks_now(self, now_s: float) -> bool:
        """Return True once, when it is time to ask the ranks for their positions."""
        if self._asked_s is None and now_s - self._progress_s > self.limit_s:
            self._asked_s = now_s
            return True
        return False

    def verdict(self, last_lines: Mapping[int, Sequence[str]], now_s: float) -> HangReport | None:
        """Return the verdict that the run is hung, `ASK_S` after the ranks were asked; None before."""
        if self._asked_s is None or now_s - self._asked_s < ASK_S:
            return None
        if sum(position.moved_bytes for position in self._positions.values()) >= MIN_MOVED_BYTES:
            self._progress_s, self._asked_s = now_s, None
            self._positions.clear()
            return None
        operations = list(operations_under_way(self._groups.values(), self._positions))
        found = self._halted() or self._alone() or self._working() or culprit(operations) or self._behind()
        silent_s = now_s - self._progress_s
        since = f"no progress for {silent_s:.0f} s, a step usually takes {self._usual_s:.2g} s"
        if not self.has_begun:
            since = f"no first step on every rank after {silent_s:.0f} s (timeout_s in job.yaml)"
        if found is not None:
            rank, why = found
            stack = self._stack_of(rank, last_lines.get(rank, ()))
            return HangReport(rank, f"{since}; rank {rank} holds up the others: {why}", stack)
        hosts = {rank.rank: rank.host for rank in self._plan.ranks}
        doing = doing_in_words(self._positions, hosts, self._steps.keys() - self._positions.keys())
        return HangReport(None, f"{since}; the rank at fault is not known: {doing}{stuck_in_words(operations)}")

    def _halted(self) -> tuple[int, str] | None:
        """Return a rank that the kernel is not running, and why."""
        halted = [rank for rank, state in self._states.items() if state in _STATES]
        return (halted[0], f"its process is {_STATES[self._states[halted[0]]]}") if halted else None

    def _alone(self) -> tuple[int, str] | None:
        """Return a rank that waits for no other while others wait."""
        alone = [rank for rank, position in self._positions.items() if position.alone]
        if not alone or len(alone) == len(self._positions):
            return None
        return alone[0], f"it is still {self._positions[alone[0]].doing}"

    def _behind(self) -> tuple[int, str] | None:
        """Return the one rank that finished fewer steps than all others, if there is one."""
        fewest = min(self._steps.values())
        behind = [rank for rank, step in self._steps.items() if step == fewest]
        return (behind[0], f"it finished step {fewest + 1}, all others are ahead") if len(behind) == 1 else None

    def _working(self) -> tuple[int, str] | None:
        """Return a rank whose stack shows work while others wait. A rank on a GPU may wait for its GPU in any line.

        A rank that computes in code that lets no other Python thread run does not answer either.
        """
        if self._plan.job.device == "cuda":
            return None
        working = {rank: at.working_in for rank, at in sorted(self._positions.items()) if at.working_in is not None}
        silent = sorted(self._steps.keys() - self._positions.keys())
        if working and len(working) < len(self._steps):
            first, *others = working
            also = f", rank {', '.join(map(str, others))} likewise" if others else ""
            return first, f"it is in {working[first]}{also}, and the others wait"
        if len(silent) == 1 and not working and self._positions and self._states.get(silent[0]) == "R":
            return silent[0], "it computes and does not answer, and the others wait"
        return None

    def _stack_of(self, rank: int, last_lines: Sequence[str]) -> tuple[str, ...]:
        """Return the rank's stack from its answer, or else from faulthandler's output."""
        if rank in self._positions:
            return self._positions[rank].stack
        starts = [index for index, line in enumerate(last_lines) if _STACK_BEGINS in line]
        return tuple(last_lines[starts[-1] :][:MAX_DUMPED]) if starts else ()
