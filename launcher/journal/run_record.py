"""The record of a run: store and show every event, collect the steps, and make run.json from them."""

from __future__ import annotations

import time
from pathlib import Path

from holmes_core.records.plan import Plan
from holmes_core.records.run import Failure, NetworkGroups, Run, SentCode, Settings, State
from holmes_runtime.config.rank_metrics import AppliedOuterSync, GroupRecord, RankNotice
from launcher.journal.prometheus import PrometheusFile
from launcher.journal.run_events import Notice, RunEvent, View
from launcher.journal.run_folder import RunFolder
from launcher.journal.run_store import this_process
from launcher.journal.step_file import read_steps
from launcher.journal.step_metrics import StepMetrics, StepTotals, traffic_per_step


class RunRecord:
    """The record of one run. `attempt_steps` has the steps of the last attempt, for speed and traffic in run.json."""

    def __init__(
        self,
        folder: RunFolder,
        view: View,
        settings: Settings,
        exports: Path | None = None,
        code: SentCode | None = None,
        is_island: bool = False,
        is_bundled: bool = True,
    ) -> None:
        """Begin a record. `exports` is the folder for Prometheus. `code` is the user's own code as sent.

        A trainer that is not `is_bundled` chooses its own first step.
        """
        self._folder, self._view, self._settings, self._code = folder, view, settings, code
        self._prometheus = PrometheusFile(exports, folder.run_id) if exports else None
        self._is_island, self._is_bundled, self._has_joined = is_island, is_bundled, False
        self.steps_skipped = 0
        self._begun_steps = 0  # steps of the checkpoint from which an island began; the island itself took none of them
        self._started_at_s = time.time()
        self._first: StepMetrics | None = None
        self._last: StepMetrics | None = None
        self._bad_lines_skipped = 0
        self._origin: str | None = None
        self.safe_steps: int | None = None
        self._best_steps: int | None = None
        self._best: str | None = None
        self._early_stop: str | None = None
        self._says_full = False
        self._compares = False  # every step compares digests of the data sent between hosts
        self.begin_attempt()

    def begin_attempt(self) -> None:
        """Forget the steps and groups of the previous attempt."""
        self.attempt_steps = StepTotals()
        self._groups: dict[tuple[str | None, str | None], int] = {}

    @property
    def stopped_early(self) -> bool:
        """True once the ranks ended the run before its last step, by its validation loss."""
        return self._early_stop is not None

    @property
    def steps_done(self) -> int:
        """The number of steps of this run. A step that several attempts took counts once."""
        if self._first is None or self._last is None:
            return 0
        begun = min(self._begun_steps, self._first.step) if self._is_island else self._first.step
        return self._last.step - begun + 1

    def remember(self, run: Run) -> None:
        """Continue the record that another controller began."""
        self._started_at_s, self._code = run.started_at_s, run.code
        self._origin, self.safe_steps, self._bad_lines_skipped = run.origin, run.safe_steps, run.bad_lines_skipped
        self._best_steps, self._best, self._early_stop = run.best_steps, run.best_checkpoint, run.early_stop
        self._compares = run.compared_steps is not None
        for step in read_steps(self._folder.path, most=2):
            self._take_step(step)

    def take(self, event: RunEvent) -> None:
        """Store an event and show it."""
        self._folder.write_event(event)
        self._show(event)
        if self._folder.lacks_room and not self._says_full:
            self._says_full = True
            self._show(Notice(f"{self._folder.path}: the disk is full: the run continues, and its logs end here"))
        if isinstance(event, AppliedOuterSync):
            self._has_joined = event.has_joined
        if isinstance(event, StepMetrics):
            if self._last is None and not (self._is_bundled or self._has_joined):
                self._begun_steps = event.step
            if self._is_island:
                self._count_skipped(self._begun_steps if self._last is None else self._last.step + 1, event.step)
            self._take_step(event)
            self.attempt_steps.add(event)
            if self._prometheus:
                self._prometheus.take_step(event)
        elif isinstance(event, GroupRecord):
            key = event.network, event.net_name
            self._groups[key] = self._groups.get(key, 0) + 1
        elif isinstance(event, RankNotice):
            self._take_notice(event)

    def _take_notice(self, event: RankNotice) -> None:
        self._bad_lines_skipped = max(self._bad_lines_skipped, event.bad_lines_skipped)
        self._compares = self._compares or event.topic == "compared"
        if event.topic == "start":
            self._origin, self._best_steps, self._best = event.sentence, None, None
            self._begun_steps = self._begun_steps if self._last else event.safe_steps or 0
        if event.topic == "early stop":
            self._early_stop = event.sentence
        if event.topic == "best":
            self._best_steps, self._best = event.safe_steps, event.sentence
        elif event.safe_steps is not None:
            self.safe_steps = event.safe_steps

    def _show(self, event: RunEvent) -> None:
        with self._folder.as_room_allows():  # the screen output may go to a file on the same disk
            self._view.show(event)

    def _count_skipped(self, following: int, step: int) -> None:
        """Count the steps before `step` that an island missed, and show a notice about them."""
        skipped = step - following
        if skipped > 0:
            self.steps_skipped += skipped
            if self._has_joined or not self.attempt_steps.count:
                self.say(f"steps {following + 1} to {step} were taken by other islands, {skipped} in all")

    def _take_step(self, step: StepMetrics) -> None:
        if self._first is None or step.step <= self._first.step:
            self._first = step
        if self._last is None or step.step >= self._last.step:
            self._last = step

    def say(self, text: str) -> None:
        """Store and show a notice."""
        self.take(Notice(text))

    def write(
        self,
        plan: Plan,
        attempt: int,
        state: State,
        failures: tuple[Failure, ...] = (),
        exit_code: int | None = None,
        not_ended: tuple[str, ...] = (),
    ) -> Run:
        """Replace run.json by the current state of the run, and return it. Speed and traffic are the last attempt's."""
        latest = self.attempt_steps
        seconds = latest.median_step_s
        tokens = plan.job.global_batch_size * plan.job.model.seq_length
        run = Run(
            run_id=self._folder.run_id,
            plan_digest=plan.digest(),
            state=state,
            settings=self._settings,
            controller=this_process() if state == "running" else None,
            code=self._code,
            attempt=attempt,
            started_at_s=self._started_at_s,
            ended_at_s=None if state == "running" else time.time(),
            exit_code=exit_code,
            steps_done=self.steps_done,
            bad_lines_skipped=self._bad_lines_skipped,
            origin=self._origin,
            safe_steps=self.safe_steps,
            best_steps=self._best_steps,
            best_checkpoint=self._best,
            early_stop=self._early_stop,
            compared_steps=self._last.step + 1 if self._compares and self._last else None,
            steps_skipped=self.steps_skipped,
            first_loss=self._first.loss if self._first else None,
            last_loss=self._last.loss if self._last else None,
            tokens_per_s=tokens / seconds if seconds else None,
            step_s=seconds,
            traffic=traffic_per_step(latest, plan) if latest.count else (),
            groups=tuple(
                NetworkGroups(network=network, net_name=net_name, count=count)
                for (network, net_name), count in self._groups.items()
            ),
            failures=failures,
            not_ended=not_ended,
        )
        self._folder.write_run(run)
        if self._prometheus:
            self._prometheus.take_run(run, plan)
        return run
