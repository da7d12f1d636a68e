"""How an island comes back: on the same hosts, as soon as all of them answer. Others do not wait for it meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holmes_core.records.plan import Node, Plan
from holmes_core.records.run import Failure
from holmes_runtime.config.verdicts import Verdict
from launcher.islands.told import Told
from launcher.nodes.preflight import Fault
from launcher.supervise.lost_hosts import PAUSE_S, answers
from launcher.supervise.new_verdicts import NewVerdicts

TRIES = 5


class ComingBack:
    """Takes the place of `Replanning` in an island: it starts again, unless it has so often without a step between.

    `say` is told when it is lost and when it comes back; `told` ends waiting.
    """

    next_plan = None  # an island keeps its plan: the others count on its shapes

    def __init__(
        self,
        tries: int,
        told: Told,
        say: Callable[[str], None],
        answers: Callable[[Node], bool] = answers,
        pause_s: float = PAUSE_S,
    ) -> None:
        self._most, self._told, self._say, self._answers, self._pause_s = tries, told, say, answers, pause_s
        self._tries = 0
        self._new = NewVerdicts()

    @property
    def is_living(self) -> bool:
        """Whether nothing has failed since the last step."""
        return self._tries == 0

    def take_next_plan(self) -> None:
        """There is none."""

    def take_step(self) -> None:
        """A step is done: what failed before counts no more."""
        self._tries = 0

    def take_verdicts(self, verdicts: Sequence[Verdict], _step_s: float | None) -> None:
        """Show what is slow."""
        for verdict in self._new.of(verdicts):
            self._say(verdict.sentence)

    def look_for_lost_hosts(self, _plan: Plan) -> None:
        """It runs on all of its hosts or not at all."""

    def after_failure(self, plan: Plan, cause: Failure, _lost_hosts: tuple[str, ...]) -> Plan | None:
        """The same plan once all its hosts answer; None when it was tried often enough. Raises KeyboardInterrupt."""
        said = cause.message.strip() or f"exit code {cause.exit_code}"
        return self._again(plan, f"host {cause.host}: {said.splitlines()[-1]}")

    def after_refusal(self, plan: Plan, faults: Sequence[Fault]) -> Plan | None:
        """The same, after checks that did not let it start."""
        self._told.pause(self._pause_s)  # what was there before may end yet
        return self._again(plan, f"host {faults[0].host}: preflight check {faults[0].check} failed")

    def _again(self, plan: Plan, why: str) -> Plan | None:
        self._tries += 1
        if self._tries > self._most:
            self._say(f"lost: {why}; not started again after {self._most} starts in a row that came to no step")
            return None
        self._say(f"lost: {why}; it starts again when its hosts answer, try {self._tries} of {self._most}")
        while not all(self._answers(node) for node in plan.nodes):
            self._told.pause(self._pause_s)
        self._say("its hosts answer; it starts again")
        return plan
