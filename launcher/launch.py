"""Launch a run and see it through. Every node is released and cleaned up, however the run ends."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import Plan
from holmes_core.records.run import Failure, Run, Settings, State
from holmes_core.remote.slurm.slurm_step import slurm_name
from holmes_core.remote.slurm.slurm_word import slurm_word
from holmes_runtime.config.rank_metrics import AppliedOuterSync, RankNotice
from launcher.islands.island_part import IslandPart
from launcher.islands.island_return import IslandReturn
from launcher.journal.rank_files import FilePart
from launcher.journal.run_events import NodeState, RunEvent, View
from launcher.journal.run_folder import INVENTORY_FILE, PLAN_FILE, RunFolder, read_seen
from launcher.journal.run_record import RunRecord
from launcher.journal.run_store import remember
from launcher.journal.step_metrics import FinishedStep
from launcher.nodes.interrupts import Interrupts
from launcher.nodes.preflight import Preflight, PreflightFailed
from launcher.nodes.start import RunningNodes, follow, start
from launcher.nodes.stop import forget_states, stop
from launcher.prepare.bundle import NODE_CONFIG_FILE, NodeBundle
from launcher.prepare.prepare import Attempt, prepare
from launcher.prepare.user_variables import UserVariables
from launcher.supervise.attempt_state import AttemptState
from launcher.supervise.failure import shell_exit_code
from launcher.supervise.hook_command import HookCommand
from launcher.supervise.lost_hosts import LostHosts
from launcher.supervise.replanning import Planner, Replanning
from launcher.supervise.slow_gradients import AFTER_STEPS, slow_gradients_sentence
from launcher.supervise.watch import watch

SEEN_EVERY_S = 1.0  # between writes of the message counts per node
MAX_REASON = 200  # characters; the reason becomes an environment variable of the ranks
MAX_CATCH_UP_S = 30.0  # to hear from every node
CATCH_UP_S = 3.0  # after that, to receive the messages that the nodes kept


class Launch:
    """One run: its folder and its current attempt.

    `interrupts` holds requests to end it. `planner` plans again for the remaining hosts; None without the inventory.
    `exports` is the folder for the run's Prometheus file. `island` is set for one island of LaunchIslands.
    """

    def __init__(
        self,
        folder: RunFolder,
        plan: Plan,
        settings: Settings,
        variables: UserVariables,
        view: View,
        interrupts: Interrupts,
        planner: Planner | None = None,
        exports: Path | None = None,
        island: IslandPart | None = None,
    ) -> None:
        self.folder, self._plan, self._settings, self._variables = folder, plan, settings, variables
        self._view, self._interrupts, self._island = view, interrupts, island
        code = variables.code.sent if variables.code else None
        is_island, is_bundled = island is not None, plan.job.is_bundled
        self._record = RunRecord(folder, view, settings, exports, code, is_island, is_bundled)
        self._replanning: Replanning | IslandReturn = (
            IslandReturn(island.tries, interrupts, self._record.say)
            if island is not None
            else Replanning(plan, settings, planner, self._record.say, LostHosts(), interrupts)
        )
        self._attempt = Attempt(
            folder.run_id,
            detached=settings.detached,
            resume=settings.resume,
            from_scratch=settings.from_scratch,
            resume_step=settings.resume_step,
            outer_sync=island.outer_sync if island is not None else None,
            own_data=island.own_data if island is not None else None,
        )
        self._nodes = RunningNodes((), settings.detached, interrupts)
        self._remembering: dict[str, NodeBundle] = {}  # by host; its ranks may keep a checkpoint in memory
        self._stuck: tuple[str, ...] = ()
        self._seen_written_s = 0.0
        self._stop_at_s: float | None = None
        self._end_hook = HookCommand(() if island is not None else plan.job.launch.on_end, folder.path)
        self._verdict_hook = HookCommand(plan.job.launch.on_verdict, folder.path)

    def start(self, inventory: Inventory | None, forced: frozenset[str]) -> None:
        """Start the first attempt. If that fails, leave nothing on any host and raise what `check` raises."""
        try:
            self.check(inventory, forced)
            remember(self.folder.path)
            self.go()
        except BaseException:
            self.discard()
            raise

    def check(self, inventory: Inventory | None, forced: frozenset[str]) -> Preflight:
        """Start agents and check the nodes. Call `discard` after PreflightFailed, HolmesError or KeyboardInterrupt."""
        self._view.take_run(self.folder.run_id, time.time())
        if inventory is not None:
            self.folder.write_record(INVENTORY_FILE, inventory)
        preflight = self._start_nodes(inventory, forced)
        if not preflight.passed:
            raise PreflightFailed(preflight)
        for fault in preflight.faults:
            self._record.say(f"forced: host {fault.host}: {fault.check}: {fault.evidence}")
        return preflight

    def discard(self) -> None:
        """End everything that was started, and remove all traces of it."""
        stop(self._nodes)
        self.folder.close()
        shutil.rmtree(self.folder.path, ignore_errors=True)

    @property
    def is_living(self) -> bool:
        """True for an ordinary run, and for an island that has not failed since its last step."""
        return not isinstance(self._replanning, IslandReturn) or self._replanning.is_living

    def go(self) -> None:
        """Start the ranks after the checks have passed. Raises KeyboardInterrupt."""
        self._interrupts.heed()
        self._nodes.go()

    def leave(self) -> None:
        """Disconnect from a detached run without ending it."""
        self._nodes.close()
        self.folder.close()

    def take_over(self, run: Run) -> None:
        """Reconnect to a detached run whose controller is gone. Raises HolmesError if no node can be reached."""
        self._attempt = replace(self._attempt, number=run.attempt)
        self._record.remember(run)
        bundles = prepare(self._plan, self._attempt, self._variables)
        self._nodes = self._running(bundles)
        follow(self._nodes, read_seen(self.folder.path, run.attempt))
        self._record.write(self._plan, self._attempt.number, "running")

    def run_to_end(self) -> Run:
        """Watch the run, restart it if asked to, and end it after the last step, a failure or Ctrl-C."""
        while True:
            state, interrupted = self._watch_attempt()
            try:
                if interrupted or not self._start_again(state):
                    break
            except KeyboardInterrupt:
                self._stop_nodes()
                interrupted = True
                break
        return self._end(state, interrupted)

    def stop_unwatched(self) -> Run:
        """Take the messages that the nodes kept while no controller ran, end what still runs, and return the run."""
        self._stop_at_s = time.monotonic() + MAX_CATCH_UP_S
        return self._end(*self._watch_attempt())

    def _watch_attempt(self) -> tuple[AttemptState, bool]:
        """Watch one attempt to its end and clean up after it. Return its state, and True if Ctrl-C ended it."""
        now_s = time.monotonic()
        state = AttemptState(self._plan, self._settings.detached, now_s, time.time() - now_s)
        interrupted = False
        try:
            watch(state, self._nodes, self._take, lambda now_s: self._tick(state, now_s))
        except KeyboardInterrupt:
            interrupted = True
            with contextlib.suppress(KeyboardInterrupt):
                self._save_once_more(state)
        finally:
            if self._island is not None:
                self._island.meeting.lose(self._island.outer_sync.island)
            if interrupted:
                self._record.say("ending all ranks")
            self._stop_nodes()
            if not interrupted:
                self._ask_slurm(state)
        return state, interrupted

    def _ask_slurm(self, state: AttemptState) -> None:
        """After a failure, ask Slurm about the hosts in its jobs."""
        nodes = self._plan.nodes
        names = {node.host: slurm_name(node.host, node.access) for node in nodes if node.access.transport == "slurm"}
        if names and state.failures:
            state.take_slurm_word(slurm_word(names))

    def _save_once_more(self, state: AttemptState) -> None:
        """Have the ranks finish the step and save, if the run saves checkpoints. A hang is still detected."""
        if self._plan.job.checkpoint is not None and state.has_stepped and not state.failures:
            self._record.say("the ranks finish this step and save; Ctrl-C or `holmes stop` again ends them at once")
            self._nodes.save()
            watch(state, self._nodes, self._take, lambda _: None)

    def _stop_nodes(self) -> None:
        self._stuck = stop(self._nodes)

    def _take(self, event: RunEvent | FinishedStep | FilePart) -> None:
        """Record an event of the attempt, and act on it. A slow host or link may lead to another plan."""
        if isinstance(event, FinishedStep):
            skipped = self._record.steps_skipped
            self._record.take(event.metrics)
            if self._record.steps_skipped > skipped:  # so that `status` shows it at once
                self._record.write(self._plan, self._attempt.number, "running")
            if event.exchange is not None:
                self._take(event.exchange)
            self._replanning.take_step()
            self._tell_verdicts(event)
            self._replanning.take_verdicts(event.verdicts, self._record.attempt_steps.median_step_s)
            self._say_slow_gradients(event)
            self._save_for_next_plan()
        elif isinstance(event, FilePart):
            self.folder.write_part(event)
        else:
            self._record.take(event)
            if isinstance(event, AppliedOuterSync):
                self._replanning.take_outer_sync(event)
            is_stepping = isinstance(event, NodeState) and event.state == "stepping"  # its groups exist by now
            if isinstance(event, RankNotice) or (is_stepping and not self._plan.job.is_bundled):
                self._record.write(self._plan, self._attempt.number, "running")

    def _say_slow_gradients(self, step: FinishedStep) -> None:
        """Say so, once per attempt, if waiting for gradients makes steps slower than planned."""
        steps = self._record.attempt_steps
        if steps.count == AFTER_STEPS and steps.median_step_s is not None:
            sentence = slow_gradients_sentence(self._plan, step, steps.median_step_s)
            if sentence is not None:
                self._record.say(sentence)

    def _tell_verdicts(self, step: FinishedStep) -> None:
        if step.verdicts:
            outcome = {"step": step.metrics.step, "verdicts": step.metrics.verdicts}
            self._verdict_hook.tell({"event": "verdict", **self._time_and_place(), **outcome})

    def _time_and_place(self) -> dict[str, object]:
        path = self.folder.path.absolute()
        return {"time_s": time.time(), "run_id": self.folder.run_id, "folder": str(path)}

    def _tick(self, state: AttemptState, now_s: float) -> None:
        """Do the periodic work of an attempt."""
        self._stop_when_heard(state, now_s)
        if self._island is not None:
            self._island.take_silence(state.unheard_s(now_s))
            for notice in state.require_island(self._island.has_begun, now_s):
                self._record.take(notice)
            if not state.failures and (failure := self._island.tunnel_failure(now_s)) is not None:
                state.take(failure, now_s)
        if now_s - self._seen_written_s > SEEN_EVERY_S:
            self._seen_written_s = now_s
            self.folder.write_seen(self._attempt.number, state.seen)
            self._replanning.look_for_lost_hosts(self._plan)
            self._save_for_next_plan()

    def _stop_when_heard(self, state: AttemptState, now_s: float) -> None:
        """Raise KeyboardInterrupt once the nodes of a run to be stopped have sent the messages they kept."""
        if self._stop_at_s is None:
            return
        if len(state.seen) == len(self._plan.nodes):
            self._stop_at_s = min(self._stop_at_s, now_s + CATCH_UP_S)
        if now_s >= self._stop_at_s and self._nodes.heard.empty():
            self._stop_at_s = None
            raise KeyboardInterrupt

    def _save_for_next_plan(self) -> None:
        """Have the ranks save and end if the run continues with another plan."""
        if self._replanning.next_plan is not None:
            self._nodes.save()

    def _start_again(self, state: AttemptState) -> bool:
        """Start another attempt if the settings ask for it or a better plan exists. Return True if one was started."""
        if state.cannot_start_again:
            return False
        if state.cause is not None:
            plan = self._replanning.after_failure(self._plan, state.cause, state.lost_hosts)
        else:
            is_over = self._record.stopped_early or self._record.steps_done >= self._plan.job.steps
            plan = None if is_over else self._replanning.take_next_plan()
        why = state.cause.message if state.cause is not None else "another plan"
        self._attempt = replace(self._attempt, reason=" ".join(why.split())[:MAX_REASON])
        return plan is not None and self._start_attempts(plan)

    def _start_attempts(self, plan: Plan) -> bool:
        """Start attempts from the last checkpoint until one passes its checks. Return False if none does."""
        candidate: Plan | None = plan
        while candidate is not None:
            self._plan = candidate
            preflight = self._start_attempt()
            if preflight.passed:
                return True
            candidate = self._replanning.after_refusal(candidate, preflight.refusing)
        return False

    def _start_attempt(self) -> Preflight:
        """Start the next attempt unless its checks refuse it. Return the outcome of the checks."""
        resume, number = self._plan.job.checkpoint is not None, self._attempt.number + 1
        resume_step = self._attempt.resume_step if not self._record.steps_done else None
        # A checkpoint once saved must be found again. An island that finds none receives the other islands' state.
        is_unsaved = self._record.safe_steps is None and (not self._settings.resume or self._settings.from_scratch)
        from_scratch = is_unsaved or self._island is not None
        self._attempt = replace(
            self._attempt, number=number, resume=resume, from_scratch=from_scratch, resume_step=resume_step
        )
        self._record.begin_attempt()
        self._view.take_plan(self._plan)
        preflight = self._start_nodes(None, frozenset())
        for fault in preflight.refusing:
            self._record.say(f"host {fault.host}: preflight check {fault.check} failed: {fault.evidence}")
        if preflight.passed:
            self._nodes.go()
        else:
            self._stop_nodes()
        return preflight

    def _start_nodes(self, inventory: Inventory | None, forced: frozenset[str]) -> Preflight:
        """Store the nodes' files, except secrets, in the run's folder, and start the agents."""
        bundles = prepare(self._plan, self._attempt, self._variables)
        files = {name: text for parcel in bundles[0].parcels[1:] for name, text in parcel.files.items()}
        for bundle in bundles:
            files.update({name: text for name, text in bundle.files.items() if name not in bundle.secrets})
        self.folder.write_files({name: files[name] for name in files if name not in (NODE_CONFIG_FILE, PLAN_FILE)})
        self.folder.write_record(PLAN_FILE, self._plan)
        self._record.write(self._plan, self._attempt.number, "running")
        self._nodes = self._running(bundles)
        faults = () if self._island is None else tuple(self._island.enter_tunnel(self._interrupts))
        if not (entered := Preflight(faults, forced)).passed:
            return entered
        preflight = start(self._nodes, self._plan, self._attempt, inventory, forced, self._on_state)
        return replace(preflight, faults=(*faults, *preflight.faults))

    def _running(self, bundles: Sequence[NodeBundle]) -> RunningNodes:
        if self._plan.job.checkpoint is not None:
            self._remembering.update((bundle.node.host, bundle) for bundle in bundles)
        return RunningNodes(bundles, self._settings.detached, self._interrupts, self._island)

    def _on_state(self, host: str, state: str) -> None:
        cluster = next(node.cluster for node in self._plan.nodes if node.host == host)
        self._record.take(NodeState(host, cluster, state))

    def _end(self, state: AttemptState, interrupted: bool) -> Run:
        ended: tuple[State, tuple[Failure, ...], int] = ("done", (), 0)
        if interrupted:
            ended = ("stopped", tuple(state.failures), 130)
        elif state.cause is not None:
            ended = ("failed", tuple(state.failures), shell_exit_code(state.cause.exit_code))
        # Ranks that took the last step have themselves removed the checkpoints they kept in memory.
        clean = {node.host for node in self._plan.nodes} if ended[0] == "done" else set()
        forget_states(bundle for host, bundle in self._remembering.items() if host not in clean)
        run = self._record.write(self._plan, self._attempt.number, *ended, self._stuck)
        self.folder.close()
        outcome = {"cause": state.cause and state.cause.model_dump(mode="json"), "run": run.model_dump(mode="json")}
        self._end_hook.tell({"event": "end", **self._time_and_place(), **outcome})
        return run
