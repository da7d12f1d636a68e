"""The return of a lost island: on the same hosts, once all of them answer. The other islands do not wait meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holmes_core.records.plan import Node, Plan
from holmes_core.records.run import Failure
from holmes_runtime.config.rank_metrics import AppliedOuterSync
from holmes_runtime.config.verdicts import Verdict
from launcher.nodes.interrupts import Interrupts
from launcher.nodes.preflight import Fault
from launcher.supervise.failure import is_not_finite
from launcher.supervise.lost_hosts import PAUSE_S, answers
from launcher.supervise.new_verdicts import NewVerdicts

TRIES = 5


class IslandReturn:
    """Replaces `Replanning` in an island: restart it, unless it has restarted too often without a step between.

    After numbers that were not finite a step is not enough: it has to have had a part in a further outer sync.
    `say` gets a line when the island is lost and when it comes back; `interrupts` ends the waiting.
    """

    next_plan = None  # an island keeps its plan: the others count on its shapes

    def __init__(
        self,
        tries: int,
        interrupts: Interrupts,
        say: Callable[[str], None],
        answers: Callable[[Node], bool] = answers,
        pause_s: float = PAUSE_S,
    ) -> None:
        self._most, self._interrupts, self._say, self._answers, self._pause_s = tries, interrupts, say, answers, pause_s
        self._tries, self._awaits_sync, self._last_sync = 0, False, -1
        self.is_living = True  # nothing has failed since the last step
        self._new = NewVerdicts()

    def take_next_plan(self) -> None:
        """Return None: an island keeps its plan."""

    def take_step(self) -> None:
        """Reset the count of restarts after a step, unless an outer sync is awaited."""
        self.is_living = True
        if not self._awaits_sync:
            self._tries = 0

    def take_outer_sync(self, sync: AppliedOuterSync) -> None:
        """Let the next step reset the count if this island had a part in `sync`, and in none as late before."""
        if not sync.has_joined and sync.exchange > self._last_sync:
            self._last_sync, self._awaits_sync = sync.exchange, False

    def take_verdicts(self, verdicts: Sequence[Verdict], _step_s: float | None) -> None:
        """Show slow hosts and links."""
        for verdict in self._new.of(verdicts):
            self._say(verdict.sentence)

    def look_for_lost_hosts(self, _plan: Plan) -> None:
        """Do nothing: an island runs on all of its hosts or not at all."""

    def after_failure(self, plan: Plan, cause: Failure, _lost_hosts: tuple[str, ...]) -> Plan | None:
        """Return the same plan once all its hosts answer, None after too many tries. Raises KeyboardInterrupt."""
        said = cause.message.strip() or f"exit code {cause.exit_code}"
        self._awaits_sync = self._awaits_sync or is_not_finite(cause)
        return self._again(plan, f"host {cause.host}: {said.splitlines()[-1]}", cause.likely)

    def after_refusal(self, plan: Plan, faults: Sequence[Fault]) -> Plan | None:
        """Return the same after checks that refused the start."""
        self._interrupts.pause(self._pause_s)  # earlier processes may still be ending
        return self._again(plan, f"host {faults[0].host}: preflight check {faults[0].check} failed")

    def _again(self, plan: Plan, why: str, likely: str | None = None) -> Plan | None:
        self._tries, self.is_living = self._tries + 1, False
        if self._tries > self._most:
            reached = "outer sync" if self._awaits_sync else "step"
            over = f"not restarted: {self._most} starts in a row reached no {reached}"
            self._say("; ".join(part for part in (f"lost: {why}", over, likely) if part))
            return None
        self._say(f"lost: {why}; it restarts when its hosts answer, try {self._tries} of {self._most}")
        while not all(self._answers(node) for node in plan.nodes):
            self._interrupts.pause(self._pause_s)
        self._say("its hosts answer; it restarts")
        return plan
