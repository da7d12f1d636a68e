"""The DiLoCo outer loop on one rank: exchanges fragments with other islands while inner steps continue.

When a fragment is due, its parameters are copied to host memory, and a thread exchanges their pseudo-gradient with the
other islands. Training goes on meanwhile, from an estimate: the outer step as if the others had sent the same.
`delay_steps` later the outcome is applied: the parameters move by the error of the estimate, so that what was learned
in between stays. What an island knows by itself is never late. An island arrives at an outer sync before it is due
where others wait for it: because they come back and need its state, or because it has become slow.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from threading import Thread
from typing import NamedTuple

from torch.distributed import ProcessGroup

from holmes_runtime.checkpoint.tensor_piece import TensorPiece
from holmes_runtime.comm.record_exchange import all_gather_records, broadcast_record
from holmes_runtime.config.islands.island_training import IslandTraining
from holmes_runtime.config.messages import NOT_FINITE
from holmes_runtime.config.rank_metrics import AppliedOuterSync
from holmes_runtime.node.checkpoint_files.description import OuterCounters
from holmes_runtime.outer.island_sync import IslandSync
from holmes_runtime.outer.island_weights import IslandWeights, Values
from holmes_runtime.outer.lanes import Fragments, fragments_of
from holmes_runtime.outer.outcome import Contribution, InFlightSync, Outcome
from holmes_runtime.outer.outer_state import OuterState
from holmes_runtime.outer.rendezvous import LOOK_S, Rendezvous
from holmes_runtime.outer.rendezvous_store import open_meeting
from holmes_runtime.outer.sync_steps import Rounds, StepPace, TakenByOthers, is_awaited, next_due, taken_since

OPENING_S = 30.0  # beyond the grace, for ranks that have agreed to exchange to find one another


class _AnchorSum(NamedTuple):
    """The sum of the bits of a rank's anchor."""

    bits: int


class OuterLoop:
    """The outer loop of rank `rank`, which has `weights`.

    All ranks call all methods after the same step.
    """

    def __init__(
        self,
        training: IslandTraining,
        rank: int,
        weights: IslandWeights,
        call: Callable[[int], None],
        frozen_weights: str | None = None,
        group: ProcessGroup | None = None,
    ) -> None:
        """`call` makes all ranks arrive at that outer sync at once. `frozen_weights`: their identity, if any.

        `group`: all ranks, for tensors in host memory; by default torch's own.

        Raises:
            RuntimeError: the rendezvous does not answer.
        """
        self._training, self._sync, self._rank, self._weights = training, training.outer_sync, rank, weights
        self._call, self._group = call, group
        self._state = OuterState(weights, self._sync, frozen_weights)
        store = open_meeting(os.environ, min(training.timeout_s, self._sync.grace_s + OPENING_S))
        self._rendezvous = Rendezvous(store, self._sync, rank, training.timeout_s)
        self._exchanges = partial(IslandSync, training, rank, self._state, self._rendezvous, store)
        self._rounds = Rounds(training.steps, self._sync.inner_steps, self._sync.fragments)
        self._in_flight: InFlightSync | None = None
        self._unapplied: int | None = None  # the steps of the last send with an outcome that is not applied yet
        self._fragments = Fragments({}, self._sync.fragments, self._rounds.last)
        self._behind_steps = 0  # steps that the others have taken, to be skipped once the outcome is applied
        self._watched: Future[Outcome] | None = None  # the outer sync after which the next one's arrivals are watched
        self._pace = StepPace(0, time.monotonic(), 0)
        self.counters = OuterCounters(0, "", (0,) * self._sync.fragments)
        self._said = deque[AppliedOuterSync]()

    def saved(self) -> Mapping[str, TensorPiece]:
        """Return the tensors a checkpoint holds in addition to the counters; it is loaded into the same ones."""
        return self._state.saved()

    def begin(self, steps: int, counters: OuterCounters | None) -> int:
        """Join the other islands after so many steps; return the steps to go on from, more where others had gone on.

        `counters` belong to the loaded checkpoint; without one the weights are the anchor, and outer syncs before are
        left out.

        Raises:
            RuntimeError: another island trains another model, begins with other weights, or has another tokenizer.
        """
        if counters is None:
            self._state.start_from_masters()
            first = self._rounds.first_open(steps, self._sync.delay_steps)  # more would move weights by momentum alone
            self.counters = OuterCounters(first, "", (steps,) * self._sync.fragments)
        else:
            self._go_on_from(counters, steps)
        if self._rank == 0 and self._training.tokenizer is not None:
            self._rendezvous.compare_tokenizer(self._training.tokenizer)
        started = self._rendezvous.begin(self.counters.exchange, self.counters.lineage)
        started = broadcast_record(started, self._group)
        self._rendezvous.show(started.start, self._state.pieces())
        layout = self._rendezvous.layout(self._sync.island, started.start, self._training.num_ranks)
        sums = all_gather_records(_AnchorSum(self._state.anchor_sum()), self._group)
        if self._rank == 0:
            self._rendezvous.compare_model(layout)
            if counters is None and not started.is_behind:
                self._rendezvous.compare_weights(self.counters.exchange, sum(each.bits for each in sums))
        self._fragments = self._fragments._replace(by_name=fragments_of(layout, self._sync.fragments))
        self._exchange = self._exchanges(started.start, self._fragments)
        self._pace = StepPace(steps, time.monotonic(), steps)
        if started.is_behind:
            self._send(steps, is_behind=True)
            steps = self._receive(steps)
            self._weights.publish()
            self._pace = StepPace(steps, time.monotonic(), steps)
        return steps

    def _go_on_from(self, counters: OuterCounters, steps: int) -> None:
        then = len(counters.synced_steps)
        if then != self._sync.fragments:
            raise RuntimeError(f"the checkpoint is of a run with {then} fragments, this one has {self._sync.fragments}")
        self.counters = counters._replace(are_common=False)
        sent_steps = counters.synced_steps[(counters.exchange - 1) % then]
        if counters.exchange and steps < sent_steps + self._sync.delay_steps:
            self._unapplied = sent_steps

    def before_step(self, step: int) -> None:
        """Delay the publication of that step's weights if an outer step is known to change them after it."""
        acts = [self._due_steps if self._in_flight is None else self._in_flight.sent_steps + self._sync.delay_steps]
        if self._unapplied is not None:
            acts.append(self._unapplied + self._sync.delay_steps)
        if step + 1 >= min(acts):
            self._weights.hold()

    def after_step(self, steps: int, stops: bool, called: int) -> int:
        """Do all that is due after so many steps; return the steps to go on from, more where others had gone on.

        Arrives at outer sync `called` at once. If the run `stops`, or these are all steps, others stop waiting for us.
        """
        delay = self._sync.delay_steps
        self._pace = self._pace._replace(steps=steps)
        is_called = 0 < called == self.counters.exchange + (self._in_flight is not None)
        if self._in_flight is not None and (is_called or steps >= self._in_flight.sent_steps + delay):
            steps = self._receive(steps)
        if self._unapplied is not None and (is_called or steps >= self._unapplied + delay):
            steps = self._apply(steps)
        if self._in_flight is None and steps < self._training.steps and (is_called or steps >= self._due_steps):
            sent = self._send(steps, is_behind=False)
            if delay:
                self._go_ahead(sent)
            else:
                steps = self._receive(steps)
            self._pace = StepPace(steps, time.monotonic(), steps)
        if stops or steps >= self._training.steps:
            steps = self._finish(steps)
        self._weights.publish()
        return steps

    def take_said(self) -> AppliedOuterSync | None:
        """Return the oldest outer sync not reported yet; an island that has joined may have several, one a step."""
        return self._said.popleft() if self._said else None

    def settle(self) -> None:
        """Wait for the outer sync in flight, so that a checkpoint has it; it is applied when it is due."""
        if self._in_flight is not None and not self._in_flight.outcome.result().has_joined:
            self._take(self._in_flight)

    def _finish(self, steps: int) -> int:
        """End this start of the run; at the end of the run, bring all islands to the same weights."""
        is_over = steps >= self._training.steps
        self._watched = None
        if is_over:
            steps = self._hold_the_last(steps)
            self._exchange.finish()
        self.settle()
        if self._rank == 0:
            self._rendezvous.leave(is_over)
        return steps

    def _hold_the_last(self, steps: int) -> int:
        """Hold the outer syncs that are left, the last with all parameters, which become the anchor."""
        while True:
            if self._in_flight is not None:
                steps = self._receive(steps)
            if self._unapplied is not None:
                steps = self._apply(steps)
            if self.counters.exchange > self._rounds.last:
                break
            self._said.clear()  # a step has room for one, and the last is that by which islands are compared
            self._send(steps, is_behind=False)
        self._weights.change(self._fragments.by_name, self._state.anchor, adds=False)
        self._state.forget()
        self.counters = self.counters._replace(are_common=True)
        return steps

    @property
    def _due_steps(self) -> int:
        """The steps after which the next outer sync is due; one of this run is due at its end at the latest."""
        number, due = self.counters.exchange, next_due(self.counters, self._sync.inner_steps)
        if (sent := self._in_flight) is not None:
            number, due = number + 1, sent.sent_steps + sent.early_steps + self._rounds.interval(number + 1)
        return min(due, self._training.steps) if number <= self._rounds.last else due

    def _send(self, steps: int, is_behind: bool) -> Values:
        """Start the next outer sync; return the parameters it sends, only those this rank owns.

        Raises:
            RuntimeError: one has numbers that are not finite, which would be in all islands' mean; names it.
        """
        number, lineage, synced_steps, *_ = self.counters
        taken = steps - synced_steps[number % self._sync.fragments]
        tokens = taken * self._training.step_tokens
        sent = self._state.masters(name for name in self._fragments.names(number) if name in self._state.owned)
        if bad := [] if is_behind else [name for name, each in sent.items() if not each.isfinite().all()]:
            raise RuntimeError(
                f"after step {steps} parameter {bad[0]} has numbers that are {NOT_FINITE}: no other island is sent them"
            )
        early_steps = 0 if is_behind else max(0, self._due_steps - steps)
        interval, step_s = self._rounds.interval(number), self._pace.step_s()
        early = early_steps / interval
        contribution = Contribution(number, lineage, is_behind, sent, max(tokens, 1), early, interval * step_s, step_s)
        self._in_flight = InFlightSync(steps, early_steps, Future())
        self._watched = self._in_flight.outcome
        # A daemon: when the run fails elsewhere, it must not wait for islands that are gone.
        Thread(target=self._run, args=(self._in_flight.outcome, contribution), name="islands", daemon=True).start()
        return sent

    def _run(self, outcome: Future[Outcome], contribution: Contribution) -> None:
        try:
            outcome.set_result(self._exchange.hold(contribution))
        except Exception as error:  # raised again in the training thread
            outcome.set_exception(error)
        else:
            with contextlib.suppress(RuntimeError):  # the rendezvous may be gone by now
                self._watch(outcome)

    def _watch(self, before: Future[Outcome]) -> None:
        """Watch, until the outer sync after `before` is sent, if others wait for this island to arrive at it."""
        while self._rank == 0 and self._watched is before:
            number = before.result().exchange + 1
            left_s = (self._due_steps - self._pace.steps) * self._pace.step_s()
            is_last = number >= self._rounds.last
            if is_awaited(self._rendezvous.waiting(), left_s, self._sync.grace_s, is_last) and self._watched is before:
                self._call(number)
                break
            time.sleep(LOOK_S)

    def _go_ahead(self, sent: Values) -> None:
        """Move the parameters just sent to their outer step as if all islands had sent the same."""
        self._weights.change(self._fragments.names(self.counters.exchange), self._state.go_ahead(sent), adds=False)

    def _receive(self, steps: int) -> int:
        """Wait for the outer sync in flight and apply it; return the steps to go on from."""
        assert self._in_flight is not None
        waited_s = time.monotonic()
        outcome = self._in_flight.outcome.result()
        waited_s = time.monotonic() - waited_s
        if outcome.has_joined:
            came = self._rounds.planned(outcome.exchange) - round(
                outcome.early * self._rounds.interval(outcome.exchange)
            )
            steps = self._join(outcome, max(steps, min(came, self._training.steps - 1)))
            if self._rank == 0:
                weights = f"weights that are up to {self._sync.inner_steps} steps old: its loss starts above theirs"
                joined = f"has joined the other islands, which had gone on: goes on after {steps} steps"
                print(f"{joined}, from {weights}", flush=True)
        else:
            self._take(self._in_flight)
            steps = self._apply(steps)
        self._in_flight = None
        self._said.append(outcome.said(waited_s))
        return steps

    def _take(self, in_flight: InFlightSync) -> None:
        """Take over an outcome into this rank's state, all but the parameters."""
        outcome, state = in_flight.outcome.result(), self._state
        state.take(outcome.anchor, outcome.momentum, outcome.error)
        if state.correction is not None:
            for name, anchor in outcome.anchor.items():
                state.correction[name] += anchor
        synced = list(self.counters.synced_steps)
        synced[outcome.exchange % self._sync.fragments] = in_flight.sent_steps
        self.counters = OuterCounters(outcome.exchange + 1, outcome.lineage, tuple(synced), outcome.islands)
        self._in_flight, self._unapplied = None, in_flight.sent_steps
        furthest_steps = round(outcome.early * self._rounds.interval(outcome.exchange))
        self._behind_steps = max(0, in_flight.early_steps - furthest_steps)

    def _join(self, outcome: Outcome, steps: int) -> int:
        """Take over the state of the others, parameters included; return the steps to go on from.

        These include the steps the others took meanwhile, so that this island arrives at the next outer sync with them:
        always some steps behind, it would join anew each time, and lose its own progress.
        """
        self._state.take(outcome.anchor, outcome.momentum, None)
        self._state.forget()
        self._weights.change(self._fragments.by_name, self._state.anchor, adds=False)
        until_s, since_s = outcome.held_s - outcome.decided_s, time.monotonic() - outcome.held_s
        interval_steps, delay_steps = self._rounds.interval(outcome.exchange + 1), self._sync.delay_steps
        taken = taken_since(until_s, since_s, outcome.interval_s, interval_steps, delay_steps)
        mine = TakenByOthers(max(0, min(taken, self._training.steps - steps - 1)))  # one at least is left
        now = steps + broadcast_record(mine, self._group).steps
        synced = [now] * self._sync.fragments
        synced[outcome.exchange % self._sync.fragments] = steps
        self.counters = OuterCounters(outcome.exchange + 1, outcome.lineage, tuple(synced), outcome.islands)
        self._unapplied, self._behind_steps = None, 0
        self._pace = StepPace(now, time.monotonic(), now)
        return now

    def _apply(self, steps: int) -> int:
        """Apply the last outcome: move its parameters to the anchor, or by the correction if steps were taken since.

        Return the steps to go on from: an island slower than the furthest skips the steps it is missing.
        """
        left_out = min(self._behind_steps, self._training.steps - steps)
        adds = steps != self._unapplied
        state, names = self._state, self._fragments.names(self.counters.exchange - 1)
        values = state.correction if adds else state.anchor
        assert values is not None
        self._weights.change(names, values, adds)
        if state.correction is not None:
            for name in state.owned.keys() & names:
                state.correction[name].zero_()
        self._behind_steps, self._unapplied = 0, None
        self._pace = self._pace.without(left_out)
        synced = tuple(each + left_out for each in self.counters.synced_steps)
        self.counters = self.counters._replace(synced_steps=synced)
        return steps + left_out
