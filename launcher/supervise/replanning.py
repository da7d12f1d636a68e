"""The plans a run goes on with when hosts are lost or come back, or when one turns out to be slow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from holmes_core.errors import HolmesError
from holmes_core.records.plan import Plan
from holmes_runtime.config.verdicts import SlowPart
from launcher.journal.run_record import RunRecord
from launcher.journal.step_metrics import median_step_s
from launcher.supervise.lost_hosts import LostHosts

LEAST_GAIN = 1.1  # a restart costs some steps


class Planner(Protocol):
    """Who makes plans for a run under way, from the inventory its first plan was made from. Each raises HolmesError."""

    def without(self, plan: Plan, hosts: tuple[str, ...]) -> Plan:
        """A plan of the same job that does without those hosts."""

    def after(self, plan: Plan, verdict: SlowPart, hosts: tuple[str, ...]) -> Plan:
        """A plan of the same job that takes the verdict on a slow host or link for true, without those hosts."""


class Replanning:
    """Each of its plans is made anew from the first one, and shown; None, and the reason shown, where there is none."""

    def __init__(self, first_plan: Plan, planner: Planner | None, record: RunRecord) -> None:
        """`planner`: None where the inventory is not at hand."""
        self._first_plan, self._planner, self._record = first_plan, planner, record
        self.lost = LostHosts()

    def without(self, plan: Plan, hosts: Sequence[str]) -> Plan | None:
        """A plan that does without those hosts of `plan`, and without the ones lost before."""
        self.lost.add(node for node in plan.nodes if node.host in hosts)
        gone = self.lost.names
        return self._plan(f"without {', '.join(gone)}", lambda planner: planner.without(self._first_plan, gone))

    def with_found(self) -> Plan | None:
        """A plan with the hosts that are back, if any are."""
        found = self.lost.take_found()
        if not found:
            return None
        gone = self.lost.names
        return self._plan(f"with {', '.join(found)} again", lambda planner: planner.without(self._first_plan, gone))

    def after(self, verdict: SlowPart) -> Plan | None:
        """A plan that knows what is slow, where it gains more than it costs to start again."""
        gone = self.lost.names
        why = f"after that ({verdict.sentence})"
        plan = self._plan(why, lambda planner: planner.after(self._first_plan, verdict, gone))
        if plan is None or not self._record.attempt_steps:
            return None
        gain = median_step_s(self._record.attempt_steps) / plan.prediction.step_s
        self._record.say(f"that plan would be {gain:.2f}x as fast as it is now")
        return plan if gain > LEAST_GAIN else None

    def _plan(self, why: str, make: Callable[[Planner], Plan]) -> Plan | None:
        if self._planner is None:
            self._record.say(f"no plan {why}: the inventory the plan was made from is not beside it")
            return None
        try:
            plan = make(self._planner)
        except HolmesError as error:
            self._record.say(f"no plan {why}: {error.what}")
            return None
        hosts = ", ".join(node.host for node in plan.nodes)
        step_s = f"{plan.prediction.step_s:.3g} s a step predicted"
        self._record.say(f"plan {why}: tp={plan.tp} pp={plan.pp} dp={plan.dp} on {hosts}, {step_s}")
        return plan
