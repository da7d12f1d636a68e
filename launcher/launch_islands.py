"""Launch a run of islands and see it through. Each island is a launch in its own thread, so one can end alone."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from holmes_core.records.inventory import Inventory
from holmes_core.records.islands import island_name
from holmes_core.records.plan import IslandsPlan
from holmes_core.records.run import Run, Settings, State
from holmes_runtime.config.rank_metrics import AppliedOuterSync
from launcher.islands.common_end import common_end, exit_code_of
from launcher.islands.going_back import require_checkpoints, step_of_island
from launcher.islands.island_part import IslandPart, outer_sync_of
from launcher.islands.island_return import TRIES
from launcher.islands.rendezvous_server import RendezvousServer
from launcher.islands.run_tunnel import RunTunnel
from launcher.journal.run_events import NodeState, Notice, RunEvent, Silent
from launcher.journal.run_folder import PLAN_FILE, RUN_FILE, RunFolder, read_own
from launcher.journal.run_store import remember, this_process
from launcher.launch import Launch
from launcher.nodes.interrupts import Interrupts
from launcher.prepare.user_variables import UserVariables
from launcher.supervise.hook_command import HookCommand

POLL_S = 0.2
MAX_DIGESTS = 1000  # kept; one per outer sync
MAX_SIGNALS = 2  # the first means "save and end", the second "at once"; further ones are ignored


class IslandsView(Protocol):
    """Shows the islands while they run. The threads of all islands call it, one at a time."""

    def show(self, island: int, event: RunEvent) -> None:
        """Show an event of an island."""

    def take_run(self, run_id: str, started_at_s: float) -> None:
        """Take the id of the run and its start in Unix time."""


class SilentIslands:
    """A view that shows nothing; the counterpart of `Silent`."""

    def show(self, island: int, event: RunEvent) -> None:
        """Show nothing."""

    def take_run(self, run_id: str, started_at_s: float) -> None:
        """Show nothing."""


@dataclass
class _Island:
    launch: Launch
    interrupts: Interrupts
    is_straggler: bool = False  # asked to end, because no island is left to join
    run: Run | None = None  # once it has ended
    error: BaseException | None = None


class LaunchIslands:
    """One run of several islands: its folder, which contains theirs, and their ranks' rendezvous.

    An island is lost for good after `settings.restarts` starts in a row without a step. `exports` is the folder for the
    islands' Prometheus files.
    """

    def __init__(
        self,
        folder: RunFolder,
        plan: IslandsPlan,
        settings: Settings,
        variables: UserVariables,
        view: IslandsView,
        exports: Path | None = None,
    ) -> None:
        self.folder, self._plan, self._settings, self._variables = folder, plan, settings, variables
        self._view, self._exports = view, exports
        quorum = outer_sync_of(plan, 0).quorum
        self._rendezvous, self._lock = RendezvousServer(len(plan.islands), quorum), threading.Lock()
        self._tunnel = RunTunnel(plan, folder.run_id)
        self._islands: list[_Island] = []
        self._interrupts, self._signals = [Interrupts() for _ in plan.islands], 0
        self._digests: dict[int, tuple[int, str]] = {}  # by outer sync: the first island to report, and its digest
        self._last: dict[int, AppliedOuterSync] = {}  # by island: the latest
        self._started_at_s = time.time()
        self._not_ended: tuple[str, ...] = ()  # processes of the tunnel
        self._end_hook = HookCommand(plan.job.launch.on_end, folder.path)

    def start(self, inventory: Inventory | None, forced: frozenset[str]) -> None:
        """Check all hosts, then start all islands. If that fails, leave nothing on any host and raise as `Launch`."""
        self._view.take_run(self.folder.run_id, self._started_at_s)
        try:
            self.folder.write_record(PLAN_FILE, self._plan)
            saved: list[frozenset[int]] = []
            for number in range(len(self._plan.islands)):
                island = self._make(number)
                self._islands.append(island)
                saved.append(island.launch.check(inventory, forced).saved_steps)
            if self._settings.resume_step is not None:
                require_checkpoints(self._plan, self._settings.resume_step, saved)
            self._write("running")
            remember(self.folder.path)
            for island in self._islands:
                island.launch.go()
        except BaseException:
            for island in self._islands:
                island.launch.discard()
            self._tunnel.stop()
            self.folder.close()
            shutil.rmtree(self.folder.path, ignore_errors=True)
            raise

    def leave(self) -> None:
        """Disconnect from a detached run. Its ranks end by themselves unless `take_over` is called soon."""
        for island in self._islands:
            island.launch.leave()
        self._tunnel.leave()
        self.folder.close()

    def take_over(self, run: Run) -> None:
        """Reconnect to a run just left, before its ranks have met. Raises HolmesError as `Launch.take_over`."""
        self._started_at_s = run.started_at_s
        self._tunnel.take_over(self._interrupts)
        for number in range(len(self._plan.islands)):
            island = self._make(number)
            island.launch.take_over(read_own(Run, self.folder.path / island_name(number), RUN_FILE))
            self._islands.append(island)
        self._write("running")

    def run_to_end(self) -> Run:
        """Watch all islands until the living ones have ended; Ctrl-C ends all."""
        threads = [threading.Thread(target=_run, args=(island,), daemon=True) for island in self._islands]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            time.sleep(POLL_S)
            self._rendezvous.look()
            for text in self._tunnel.look(time.monotonic()):
                self._tell(0, Notice(text))
            self._end_stragglers()
        return self._end(self._signals > 0)

    def take_signal(self) -> None:
        """Ask all islands to save and end; at a second signal, to end at once."""
        self._signals += 1
        if self._signals <= MAX_SIGNALS:
            for interrupts in self._interrupts:
                interrupts.tell()

    def _make(self, number: int) -> _Island:
        name, interrupts = island_name(number), self._interrupts[number]
        folder = RunFolder(self.folder.path / name, f"{self.folder.run_id}-{name}")
        tries = self._settings.restarts or TRIES
        sync, own_data = outer_sync_of(self._plan, number), self._plan.own_data(number)
        part = IslandPart(sync, own_data, self._rendezvous, tries, self._tunnel)
        view = _View(lambda event: self._take(number, event))
        plan = self._plan.islands[number]
        resume_step = step_of_island(self._plan, self._settings.resume_step, number)
        own = {"detached": False, "resume_step": resume_step}  # ranks need this controller, so they end with it
        settings = self._settings.model_copy(update=own)
        launch = Launch(folder, plan, settings, self._variables, view, interrupts, None, self._exports, part)
        return _Island(launch, interrupts)

    def _take(self, number: int, event: RunEvent) -> None:
        """Show an event. Store notices and node states for the whole run."""
        with self._lock:
            if isinstance(event, Notice):
                self.folder.write_event(replace(event, text=f"island {number}: {event.text}"))
            elif isinstance(event, NodeState):
                self.folder.write_event(event)
            self._view.show(number, event)
            if isinstance(event, AppliedOuterSync):
                self._last[number] = event
                self._compare(number, event)

    def _compare(self, number: int, exchange: AppliedOuterSync) -> None:
        """Show a notice if the islands' digests differ after an outer sync, which no rank can see.

        An island that has just joined received its state without a digest. It is compared after the next outer sync.
        """
        if exchange.has_joined:
            return
        other, digest = self._digests.setdefault(exchange.exchange, (number, exchange.digest))
        if digest != exchange.digest:
            text = f"outer sync {exchange.exchange + 1}: islands {other} and {number} do not have the same state"
            self._tell(number, Notice(text))
        while len(self._digests) > MAX_DIGESTS:
            del self._digests[next(iter(self._digests))]

    def _tell(self, number: int, notice: Notice) -> None:
        """Show a notice about the whole run in one island's view, and store it for `attach`."""
        self.folder.write_event(notice)
        self._islands[number].launch.folder.write_event(notice)
        self._view.show(number, notice)

    def _end_stragglers(self) -> None:
        """Once an island is done, end the others if each of them has failed and taken no step since."""
        ended = [island.run for island in self._islands if island.run is not None]
        left = [island for island in self._islands if island.run is None and not island.is_straggler]
        if any(run.state == "done" for run in ended) and not any(island.launch.is_living for island in left):
            for island in left:
                island.is_straggler = True
                island.interrupts.tell()

    def _write(self, state: State, exit_code: int | None = None) -> Run:
        runs = [island.run for island in self._islands if island.run is not None]
        speeds = [run.tokens_per_s for run in runs if run.state == "done" and run.tokens_per_s is not None]
        run = Run(
            run_id=self.folder.run_id,
            plan_digest=self._plan.digest(),
            state=state,
            settings=self._settings,
            controller=this_process() if state == "running" else None,
            started_at_s=self._started_at_s,
            ended_at_s=None if state == "running" else time.time(),
            exit_code=exit_code,
            steps_done=max((run.steps_done for run in runs), default=0),
            missing_islands=self._missing() if state == "done" else (),
            tokens_per_s=sum(speeds) if speeds else None,
            not_ended=tuple(dict.fromkeys([*(what for run in runs for what in run.not_ended), *self._not_ended])),
            failures=tuple(failure for run in runs if run.state != "done" for failure in run.failures),
        )
        self.folder.write_run(run)
        return run

    def _missing(self) -> tuple[int, ...]:
        """Return the islands that have not ended with the common model."""
        ended = enumerate(island.run for island in self._islands)
        done = [number for number, run in ended if run is not None and run.state == "done" and number in self._last]
        common = common_end({number: self._last[number] for number in done}, self._plan.num_exchanges - 1)
        return tuple(number for number in range(len(self._islands)) if number not in common)

    def _end(self, interrupted: bool) -> Run:
        """End the run and return it. It is done if any island is, because a lost island costs the others nothing.

        The exit code is 1 if an island did not end with the others' model, unless that is allowed.
        """
        self._not_ended = self._tunnel.stop()
        runs = [island.run for island in self._islands if island.run is not None]
        if interrupted:
            run = self._write("stopped", 130)
        elif any(run.state == "done" for run in runs):
            run = self._write("done", exit_code_of(self._missing(), self._settings.allow_missing_island))
        else:
            run = self._write("failed", next((run.exit_code for run in runs if run.exit_code), 1))
        self.folder.close()
        for island in self._islands:
            if island.error is not None:
                raise island.error
        path = {"run_id": self.folder.run_id, "folder": str(self.folder.path.absolute())}
        cause = run.failures[0].model_dump(mode="json") if run.failures and run.state == "failed" else None
        record = run.model_dump(mode="json")
        self._end_hook.tell({"event": "end", "time_s": time.time(), **path, "cause": cause, "run": record})
        return run


def _run(island: _Island) -> None:
    try:
        island.run = island.launch.run_to_end()
    except BaseException as error:  # raised by the thread that waits, in `_end`
        island.error = error


class _View(Silent):
    """One island's view, which only forwards its events to the view of all islands."""

    def __init__(self, show: Callable[[RunEvent], None]) -> None:
        self._show = show

    def show(self, event: RunEvent) -> None:
        self._show(event)
