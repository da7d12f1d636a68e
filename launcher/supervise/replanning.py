"""Choose the plan with which a run continues after a failure, a lost or returned host, or a slow one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from holmes_core.errors import HolmesError
from holmes_core.records.plan import Plan
from holmes_core.records.run import Failure, Settings
from holmes_runtime.config.rank_metrics import AppliedOuterSync
from holmes_runtime.config.verdicts import AllHostsSlow, HostIsSlow, LinkIsSlow, SlowPart, Verdict
from launcher.nodes.interrupts import Interrupts
from launcher.nodes.preflight import Fault
from launcher.supervise.lost_hosts import LostHosts
from launcher.supervise.new_verdicts import NewVerdicts

MIN_GAIN = 1.1  # a restart costs some steps

NextStep = Literal["end", "restart", "wait", "replan"]


class Planner(Protocol):
    """Makes plans for a run under way, from the inventory of its first plan. All methods raise HolmesError."""

    def without(self, plan: Plan, hosts: tuple[str, ...]) -> Plan:
        """Return a plan of the same job without those hosts."""

    def after(self, plan: Plan, verdict: SlowPart, hosts: tuple[str, ...]) -> Plan:
        """Return a plan of the same job that accounts for a slow host or link, without those hosts."""


class Replanning:
    """Makes each new plan from the first one, and shows it with `say`, or the reason if there is none.

    `planner` is None without the inventory. `next_plan` is the plan to continue with once the ranks have saved.
    """

    def __init__(
        self,
        first_plan: Plan,
        settings: Settings,
        planner: Planner | None,
        say: Callable[[str], None],
        lost: LostHosts,
        interrupts: Interrupts,
    ) -> None:
        self.next_plan: Plan | None = None
        self._first_plan, self._settings, self._planner, self._say = first_plan, settings, planner, say
        self._saves = first_plan.job.checkpoint is not None
        self._lost, self._interrupts = lost, interrupts
        self._restarts = 0
        self._new = NewVerdicts()

    def take_next_plan(self) -> Plan | None:
        """Return the plan for which the ranks have saved, and clear it."""
        plan, self.next_plan = self.next_plan, None
        return plan

    def after_failure(self, plan: Plan, cause: Failure, lost_hosts: tuple[str, ...]) -> Plan | None:
        """Return the next attempt's plan as the settings ask, or None to end the run. May wait for lost hosts.

        Raises KeyboardInterrupt.
        """
        self.next_plan = None
        step = next_step(self._settings, self._restarts, lost_hosts)
        if step == "end":
            return None
        said = cause.message.strip() or f"exit code {cause.exit_code}"
        who = f"host {cause.host}: " if cause.host is not None else ""
        self._say(f"{who}{said.splitlines()[-1]}")
        if step == "replan":
            return self._without(plan, lost_hosts)
        if step == "wait":
            self._say(f"waiting for {', '.join(lost_hosts)}")
            self._lost.wait_for([node for node in plan.nodes if node.host in lost_hosts], self._interrupts)
        else:
            self._restarts += 1
            self._say(f"restart {self._restarts} of {self._settings.restarts} on the same hosts")
        return plan

    def after_refusal(self, plan: Plan, faults: Sequence[Fault]) -> None:
        """Do nothing: after checks refuse the next attempt, nothing else is tried."""

    def take_step(self) -> None:
        """Do nothing: restarts are counted over the whole run."""

    def take_outer_sync(self, _sync: AppliedOuterSync) -> None:
        """Do nothing, as with a step."""

    def take_verdicts(self, verdicts: Sequence[Verdict], step_s: float | None) -> None:
        """Show the gain of a plan that accounts for slow parts over steps of `step_s`. Continue with it if asked to."""
        verdicts = self._new.of(verdicts)
        for verdict in verdicts:
            self._say(verdict.sentence)
        if any(isinstance(verdict, AllHostsSlow) for verdict in verdicts):
            return  # no prediction can be trusted
        for part in verdicts:
            if not isinstance(part, HostIsSlow | LinkIsSlow):
                continue  # the ranks have already reacted, or no plan can help
            if self.next_plan is None:
                plan = self._after(part, step_s)
                if self._settings.replan_when_slow and self._saves:
                    self._go_on_with(plan)

    def look_for_lost_hosts(self, plan: Plan) -> None:
        """Continue with lost hosts that are back if that is faster than `plan`. Keep looking for the others."""
        found = self._lost.take_found() if self._saves and self.next_plan is None else ()
        if found:
            gone = self._lost.names
            again = f"with {', '.join(found)} again"
            new = self._plan(again, lambda planner: planner.without(self._first_plan, gone))
            self._go_on_with(new if new is not None and self._is_faster(new, plan) else None)
        self._lost.look()

    def _is_faster(self, new: Plan, plan: Plan) -> bool:
        """Return True if `new` has a shorter predicted step than `plan`. Otherwise show the reason."""
        if new.prediction.step_s < plan.prediction.step_s:
            return True
        self._say(f"the run keeps its plan, which is no slower: {plan.prediction.step_s:.3g} s per step predicted")
        return False

    def _without(self, plan: Plan, hosts: Sequence[str]) -> Plan | None:
        """Return a plan without those hosts of `plan` and without the hosts lost before."""
        self._lost.add(node for node in plan.nodes if node.host in hosts)
        gone = self._lost.names
        return self._plan(f"without {', '.join(gone)}", lambda planner: planner.without(self._first_plan, gone))

    def _after(self, verdict: SlowPart, step_s: float | None) -> Plan | None:
        """Return a plan that accounts for a slow part, if it gains more than a restart costs."""
        gone, why = self._lost.names, f"that accounts for this ({verdict.sentence})"
        plan = self._plan(why, lambda planner: planner.after(self._first_plan, verdict, gone))
        if plan is None or step_s is None:
            return None
        gain = step_s / plan.prediction.step_s
        better = f"{gain:.2f}x as fast as" if gain > 1 else "no faster than"
        self._say(f"that plan would be {better} the current one")
        return plan if gain > MIN_GAIN else None

    def _go_on_with(self, plan: Plan | None) -> None:
        self.next_plan = plan
        if plan is not None:
            self._say("the ranks save after this step and continue with the new plan")

    def _plan(self, why: str, make: Callable[[Planner], Plan]) -> Plan | None:
        planner = self._planner
        if planner is None:
            self._say(f"no plan {why}: the inventory that the plan was made from is not in its folder")
            return None
        try:
            plan = self._interrupts.raised_during(lambda: make(planner))
        except HolmesError as error:
            self._say(f"no plan {why}: {error.what}")
            return None
        hosts = ", ".join(node.host for node in plan.nodes)
        step_s = f"{plan.prediction.step_s:.3g} s per step predicted"
        fixed = plan.job.parallel
        groups = "".join(f" {key}={size}" for key in ("cp", "ep", "etp") if (size := getattr(fixed, key) or 1) > 1)
        self._say(f"plan {why}: tp={plan.tp} pp={plan.pp} dp={plan.engine_dp}{groups} on {hosts}, {step_s}")
        return plan


def next_step(settings: Settings, restarts_done: int, lost_hosts: tuple[str, ...]) -> NextStep:
    """Choose to end the run, restart it on the same hosts, wait for lost hosts, or plan without them."""
    if lost_hosts and settings.on_loss != "stop":
        return settings.on_loss
    if not lost_hosts and restarts_done < settings.restarts:
        return "restart"
    return "end"
