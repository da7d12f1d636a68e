"""One run from start to end. Whatever happens in between, every node is let go of and cleaned."""

from __future__ import annotations

import contextlib
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from holmes_core.errors import ANSWER_IS_NO, HolmesError, HostError
from holmes_core.inventory import Inventory
from holmes_core.plan import Node, Plan
from holmes_core.record import write_atomically
from holmes_core.run import Failure, Run, Settings, State
from holmes_core.transport import connect
from launcher.bundle import NODE_CONFIG_FILE, NodeBundle
from launcher.failure import shell_exit_code
from launcher.preflight import Preflight
from launcher.prepare import Attempt, prepare
from launcher.recovery import next_step
from launcher.run_events import NodeState, Notice, RunEvent, View
from launcher.run_folder import INVENTORY_FILE, RunFolder, new_run_id, read_seen
from launcher.run_store import remember, this_process
from launcher.start import RunningNodes, follow, start
from launcher.step_metrics import StepMetrics, median_step_s, traffic_per_step
from launcher.stop import stop
from launcher.user_variables import UserVariables
from launcher.watch import SEEN_EVERY_S, Watch

LOOK_FOR_HOSTS_EVERY_S = 5.0
LEAST_GAIN = 1.1  # a restart costs some steps


class Planner(Protocol):
    """Who makes plans for a run under way, from the inventory its first plan was made from. Each raises HolmesError."""

    def without(self, plan: Plan, hosts: tuple[str, ...]) -> Plan:
        """A plan of the same job that does without those hosts."""

    def after(self, plan: Plan, verdict: str, hosts: tuple[str, ...]) -> Plan:
        """A plan of the same job that takes the verdict on a slow host or link for true, without those hosts."""


class PreflightFailed(HolmesError):
    """The checks refuse the launch; no rank was started and nothing is left behind."""

    def __init__(self, preflight: Preflight) -> None:
        first = preflight.refusing[0]
        count = len({fault.check for fault in preflight.refusing})
        super().__init__(
            f"host {first.host}: preflight check {first.check} failed: {first.evidence}",
            f"{count} checks failed in all; correct them, or go on in spite of one with `--force NAME`",
            ANSWER_IS_NO,
        )
        self.preflight = preflight


@dataclass(frozen=True)
class Ended:
    """A run that is over: its record, where it lies, the first failure if any, what could not be ended and where."""

    run: Run
    folder: Path
    cause: Failure | None
    stuck: tuple[str, ...]


class Launch:
    """One run: its folder, the attempt that is under way, and what came of earlier ones.

    `planner` makes plans on what is left; None where the inventory is not at hand.
    """

    def __init__(
        self,
        folder: RunFolder,
        plan: Plan,
        settings: Settings,
        variables: UserVariables,
        view: View,
        planner: Planner | None = None,
    ) -> None:
        self.folder, self._plan, self._settings, self._variables = folder, plan, settings, variables
        self._first_plan = plan
        self._view, self._planner = view, planner
        self._attempt = Attempt(folder.run_id, detached=settings.detached, resume=settings.resume)
        self._next_plan: Plan | None = None
        self._lost: tuple[Node, ...] = ()
        self._search: threading.Thread | None = None
        self._found: list[str] = []
        self._nodes = RunningNodes((), settings.detached)
        self._started_at_s = time.time()
        self._restarts = 0
        self._steps: dict[int, StepMetrics] = {}
        self._attempt_steps: list[StepMetrics] = []
        self._stuck: tuple[str, ...] = ()
        self._seen_written_s = 0.0

    def start(self, inventory: Inventory | None, forced: frozenset[str]) -> None:
        """Start the first attempt. Raises PreflightFailed, or HolmesError; then nothing is left, here or on a node."""
        try:
            if inventory is not None:
                write_atomically(self.folder.path / INVENTORY_FILE, inventory.to_json())
            bundles = prepare(self._plan, self._attempt, self._variables)
            self._write_start(bundles)
            self._nodes = RunningNodes(bundles, self._settings.detached)
            preflight = start(self._nodes, self._plan, inventory, forced, self._on_state)
            if not preflight.passed:
                raise PreflightFailed(preflight)
            self._show_forced(preflight)
            remember(self.folder.path)
        except BaseException:
            with _deaf_to_ctrl_c():
                stop(self._nodes)
                self.folder.close()
                shutil.rmtree(self.folder.path, ignore_errors=True)
            raise

    def leave(self) -> None:
        """Let go of a detached run without ending it."""
        self._nodes.close()
        self.folder.close()

    def take_over(self, run: Run) -> None:
        """Come back to a detached run whose controller is gone. Raises HolmesError when no node is reached."""
        self._attempt = replace(self._attempt, number=run.attempt)
        self._started_at_s = run.started_at_s
        bundles = prepare(self._plan, self._attempt, self._variables)
        self._nodes = RunningNodes(bundles, self._settings.detached)
        follow(self._nodes, read_seen(self.folder.path, run.attempt))
        self._write_run("running")

    def run_to_end(self) -> Ended:
        """Watch, start again where that is asked for, and end it all: at the last step, at a failure, at Ctrl-C."""
        while True:
            watch = Watch(self._plan, self._nodes, self._settings.detached, self._record)
            interrupted = self._watched(watch)
            if interrupted or (watch.cause is None and self._next_plan is None):
                break
            try:
                if not self._start_again(watch.cause, watch.lost_hosts):
                    break
            except KeyboardInterrupt:
                with _deaf_to_ctrl_c():
                    self._stuck = stop(self._nodes)
                interrupted = True
                break
        return self._end(watch, interrupted)

    def _watched(self, watch: Watch) -> bool:
        """Watch one attempt to its end and clean up after it; whether Ctrl-C ended it."""
        interrupted = False
        try:
            watch.until_end(lambda: self._tick(watch))
        except KeyboardInterrupt:
            interrupted = True
            self._record(Notice("ending all ranks"))
        finally:
            with _deaf_to_ctrl_c():
                self._stuck = stop(self._nodes)
        return interrupted

    def _start_again(self, cause: Failure | None, lost: tuple[str, ...]) -> bool:
        """Whether another attempt was started, as the settings ask."""
        if cause is None:
            assert self._next_plan is not None
            self._plan, self._next_plan = self._next_plan, None
            return len(self._steps) < self._plan.job.steps and self._start_attempt()
        self._next_plan = None
        step = next_step(self._settings, self._restarts, lost)
        if step == "end":
            return False
        self._record(Notice(f"host {cause.host}: {cause.message.strip().splitlines()[-1]}"))
        if step == "restart":
            self._restarts += 1
            self._record(Notice(f"restart {self._restarts} of {self._settings.restarts} on the same hosts"))
        elif step == "wait":
            self._record(Notice(f"waiting for {', '.join(lost)}"))
            self._wait_for(lost)
        elif not self._go_on_without(lost):
            return False
        return self._start_attempt()

    def _start_attempt(self) -> bool:
        """Start the next attempt from the last checkpoint; a host that is gone by now may cost another plan."""
        resume = self._plan.job.checkpoint is not None
        self._attempt = replace(self._attempt, number=self._attempt.number + 1, resume=resume)
        bundles = prepare(self._plan, self._attempt, self._variables)
        self._write_start(bundles)
        self._attempt_steps = []
        self._view.take_plan(self._plan)
        self._nodes = RunningNodes(bundles, self._settings.detached)
        preflight = start(self._nodes, self._plan, None, frozenset(), self._on_state)
        for fault in preflight.refusing:
            self._record(Notice(f"host {fault.host}: preflight check {fault.check} failed: {fault.evidence}"))
        if not preflight.passed:
            with _deaf_to_ctrl_c():
                stop(self._nodes)
        return preflight.passed

    def _go_on_without(self, lost: tuple[str, ...]) -> bool:
        """Take a plan that does without the lost hosts; False if there is none."""
        self._lost += tuple(node for node in self._plan.nodes if node.host in lost)
        gone = tuple(sorted(node.host for node in self._lost))
        plan = self._planned(f"without {', '.join(gone)}", lambda planner: planner.without(self._first_plan, gone))
        if plan is not None:
            self._plan = plan
        return plan is not None

    def _planned(self, why: str, make: Callable[[Planner], Plan]) -> Plan | None:
        """A new plan, shown; None, and the reason shown, if there is none."""
        if self._planner is None:
            self._record(Notice(f"no plan {why}: the inventory the plan was made from is not beside it"))
            return None
        try:
            plan = make(self._planner)
        except HolmesError as error:
            self._record(Notice(f"no plan {why}: {error.what}"))
            return None
        hosts = ", ".join(node.host for node in plan.nodes)
        step_s = f"{plan.prediction.step_s:.3g} s a step predicted"
        self._record(Notice(f"plan {why}: tp={plan.tp} pp={plan.pp} dp={plan.dp} on {hosts}, {step_s}"))
        return plan

    def _tick(self, watch: Watch) -> None:
        """What is done now and then while an attempt runs."""
        now_s = time.monotonic()
        if now_s - self._seen_written_s > SEEN_EVERY_S:
            self._seen_written_s = now_s
            self.folder.write_seen(self._attempt.number, watch.seen)
            self._take_back_found()
            self._look_for_lost()

    def _look_for_lost(self) -> None:
        """Now and then try the hosts that were lost, in the background; found ones are noted."""
        if not self._lost or (self._search is not None and self._search.is_alive()):
            return

        def search() -> None:
            time.sleep(LOOK_FOR_HOSTS_EVERY_S)
            self._found = [node.host for node in self._lost if _answers(node)]

        self._search = threading.Thread(target=search, daemon=True)
        self._search.start()

    def _take_back_found(self) -> None:
        """Plan with the hosts that are back, and have the ranks save and end for it, if there are checkpoints."""
        if not self._found or self._next_plan is not None or self._plan.job.checkpoint is None:
            return
        found, self._found = self._found, []
        self._lost = tuple(node for node in self._lost if node.host not in found)
        gone = tuple(sorted(node.host for node in self._lost))
        self._next_plan = self._planned(
            f"with {', '.join(found)} again", lambda planner: planner.without(self._first_plan, gone)
        )
        self._save_for_next_plan()

    def _take_verdict(self, verdict: str) -> None:
        """Show what a plan that knows what is slow gains; take it where that is asked for."""
        if self._next_plan is not None:
            return
        gone = tuple(sorted(node.host for node in self._lost))
        plan = self._planned(f"after that ({verdict})", lambda planner: planner.after(self._first_plan, verdict, gone))
        if plan is None or not self._attempt_steps:
            return
        gain = median_step_s(self._attempt_steps) / plan.prediction.step_s
        self._record(Notice(f"that plan would be {gain:.2f}x as fast as it is now"))
        if self._settings.replan_when_slow and gain > LEAST_GAIN and self._plan.job.checkpoint is not None:
            self._next_plan = plan
            self._save_for_next_plan()

    def _save_for_next_plan(self) -> None:
        if self._next_plan is not None:
            self._record(Notice("the ranks save after this step, and go on with the new plan"))
            self._nodes.send(do="save")

    def _wait_for(self, hosts: tuple[str, ...]) -> None:
        nodes = [node for node in self._plan.nodes if node.host in hosts]
        while not all(_answers(node) for node in nodes):
            time.sleep(LOOK_FOR_HOSTS_EVERY_S)

    def _on_state(self, host: str, state: str) -> None:
        cluster = next(node.cluster for node in self._plan.nodes if node.host == host)
        self._record(NodeState(host, cluster, state))

    def _show_forced(self, preflight: Preflight) -> None:
        for fault in preflight.faults:
            self._record(Notice(f"forced: host {fault.host}: {fault.check}: {fault.evidence}"))

    def _record(self, event: RunEvent) -> None:
        self.folder.write_event(event)
        self._view.show(event)
        if isinstance(event, StepMetrics):
            self._steps[event.step] = event
            self._attempt_steps.append(event)
            for verdict in event.verdicts:
                self._record(Notice(verdict))
            if all(verdict.startswith("slow ") for verdict in event.verdicts):  # else no prediction is to be trusted
                for verdict in event.verdicts:
                    self._take_verdict(verdict)

    def _write_start(self, bundles: tuple[NodeBundle, ...]) -> None:
        """The folder's record of an attempt: its plan, and what goes to the nodes, save secrets and settings."""
        files = {
            name: text
            for bundle in bundles
            for name, text in (*bundle.parcels[1].files.items(), *bundle.files.items())
            if name not in (NODE_CONFIG_FILE, *bundle.secrets)
        }
        self.folder.write_files(files)
        self._write_run("running")

    def _write_run(self, state: State) -> None:
        self.folder.write_run(self._record_of(state))

    def _record_of(self, state: State, failures: tuple[Failure, ...] = (), exit_code: int | None = None) -> Run:
        """The run as it stands; speed and traffic are the last attempt's."""
        steps, latest = [self._steps[step] for step in sorted(self._steps)], self._attempt_steps
        seconds = median_step_s(latest) if latest else None
        tokens = self._plan.job.global_batch_size * self._plan.job.model.seq_length
        return Run(
            run_id=self.folder.run_id,
            plan_digest=self._plan.digest(),
            state=state,
            settings=self._settings,
            controller=this_process() if state == "running" else None,
            attempt=self._attempt.number,
            started_at_s=self._started_at_s,
            ended_at_s=None if state == "running" else time.time(),
            exit_code=exit_code,
            steps_done=len(steps),
            first_loss=steps[0].loss if steps else None,
            last_loss=steps[-1].loss if steps else None,
            tokens_per_s=tokens / seconds if seconds else None,
            step_s=seconds,
            traffic=traffic_per_step(latest, self._plan.prediction.traffic) if latest else (),
            failures=failures,
        )

    def _end(self, watch: Watch, interrupted: bool) -> Ended:
        cause = watch.cause
        if interrupted:
            run = self._record_of("stopped", tuple(watch.failures), 130)
        elif cause is not None:
            run = self._record_of("failed", tuple(watch.failures), shell_exit_code(cause.exit_code))
        else:
            run = self._record_of("done", (), 0)
        self.folder.write_run(run)
        self.folder.close()
        return Ended(run, self.folder.path, None if interrupted else cause, self._stuck)


def new_folder(runs: Path) -> RunFolder:
    """The folder of a new run below `runs`."""
    return RunFolder(runs / new_run_id())


def _answers(node: Node) -> bool:
    try:
        connect(node.host, node.access).close()
    except HostError:
        return False
    return True


@contextlib.contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """A second Ctrl-C must not leave ranks behind: ending takes seconds and is bounded."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
