"""The DiLoCo outer loop of one rank: it synchronizes fragments with other islands while inner steps continue.

When a fragment is due, its parameters are copied to host memory, and a thread exchanges their pseudo-gradient with the
other islands. Meanwhile training continues from an estimate: the outer step that would follow if all other islands sent
the same pseudo-gradient. The outcome is applied `delay_steps` later. The parameters then move only by the error of the
estimate, so the inner steps in between keep their progress.

An island arrives at an outer sync early if other islands wait for it there, because they have come back and need its
state or because it has become slow.
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

OPENING_S = 30.0  # added to the grace time, for the ranks of an agreed roster to connect to one another


class _AnchorSum(NamedTuple):
    """The sum over a rank's part of the anchor, with the bits of each element read as an integer."""

    bits: int


class OuterLoop:
    """The outer loop of one rank. All ranks call its methods after the same steps."""

    def __init__(
        self,
        training: IslandTraining,
        rank: int,
        weights: IslandWeights,
        call: Callable[[int], None],
        frozen_weights: str | None = None,
        group: ProcessGroup | None = None,
    ) -> None:
        """Connect to the rendezvous.

        `call` takes the number of an outer sync and makes all ranks arrive at it at once. `frozen_weights` identifies
        the weights that are not trained. `group` has all ranks, for tensors in host memory; None is torch's default.

        Raises:
            RuntimeError: The rendezvous does not answer.
        """
        self._training, self._sync, self._rank, self._weights = training, training.outer_sync, rank, weights
        self._call, self._group = call, group
        self._state = OuterState(weights, self._sync, frozen_weights)
        store = open_meeting(os.environ, min(training.timeout_s, self._sync.grace_s + OPENING_S))
        self._rendezvous = Rendezvous(store, self._sync, rank, training.timeout_s)
        self._make_sync = partial(IslandSync, training, rank, self._state, self._rendezvous, store)
        self._rounds = Rounds(training.steps, self._sync.inner_steps, self._sync.fragments)
        self._in_flight: InFlightSync | None = None
        self._unapplied: int | None = None  # the steps after which the outer sync yet to be applied was sent
        self._fragments = Fragments({}, self._sync.fragments, self._rounds.last)
        self._behind_steps = 0  # steps that the others are ahead, to skip when the outcome is applied
        self._watched: Future[Outcome] | None = None  # the outer sync whose thread looks for arrivals at the next
        self._pace = StepPace(0, time.monotonic(), 0)
        self.counters = OuterCounters(0, "", (0,) * self._sync.fragments)
        self._unreported = deque[AppliedOuterSync]()

    def saved(self) -> Mapping[str, TensorPiece]:
        """Return the tensors that a checkpoint holds in addition to the counters. Loading a checkpoint fills them."""
        return self._state.saved()

    def begin(self, steps: int, counters: OuterCounters | None) -> int:
        """Join the other islands after `steps` steps.

        `counters` come from the loaded checkpoint. Without one, the weights become the anchor, and earlier outer syncs
        are skipped.

        Returns:
            The steps to continue from: more than `steps` if the other islands are ahead.

        Raises:
            RuntimeError: The islands differ in their models, initial weights or tokenizers.
        """
        if counters is None:
            self._state.start_from_masters()
            first = self._rounds.first_open(steps, self._sync.delay_steps)  # earlier ones would apply momentum alone
            self.counters = OuterCounters(first, "", (steps,) * self._sync.fragments)
        else:
            self._continue_from(counters, steps)
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
                self._rendezvous.compare_weights(self.counters.exchange, sum(anchor.bits for anchor in sums))
        self._fragments = self._fragments._replace(by_name=fragments_of(layout, self._sync.fragments))
        self._island_sync = self._make_sync(started.start, self._fragments)
        self._pace = StepPace(steps, time.monotonic(), steps)
        if started.is_behind:
            self._send(steps, is_behind=True)
            steps = self._receive(steps)
            self._weights.publish()
            self._pace = StepPace(steps, time.monotonic(), steps)
        return steps

    def _continue_from(self, counters: OuterCounters, steps: int) -> None:
        saved, now = len(counters.synced_steps), self._sync.fragments
        if saved != now:
            raise RuntimeError(f"the checkpoint was saved with {saved} fragments; this run has {now}")
        self.counters = counters._replace(are_common=False)
        sent_steps = counters.synced_steps[(counters.exchange - 1) % now]
        if counters.exchange and steps < sent_steps + self._sync.delay_steps:
            self._unapplied = sent_steps

    def before_step(self, step: int) -> None:
        """Hold back the new weights of `step` if an outer step will change them right after it."""
        sent, delay = self._in_flight, self._sync.delay_steps
        changes_after = [self._due_steps if sent is None else sent.sent_steps + delay]
        if self._unapplied is not None:
            changes_after.append(self._unapplied + delay)
        if step + 1 >= min(changes_after):
            self._weights.hold()

    def after_step(self, steps: int, stops: bool, called: int) -> int:
        """Do everything that is due after `steps` steps; return the steps to continue from.

        These are more than `steps` if the other islands are ahead. If the next outer sync is number `called`, the
        island arrives at it at once. If the run `stops` or is over, the others no longer wait for this island.
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
                estimate = self._state.estimate(sent)
                self._weights.change(self._fragments.names(self.counters.exchange), estimate, adds=False)
            else:
                steps = self._receive(steps)
            self._pace = StepPace(steps, time.monotonic(), steps)
        if stops or steps >= self._training.steps:
            steps = self._finish(steps)
        self._weights.publish()
        return steps

    def next_report(self) -> AppliedOuterSync | None:
        """Return the oldest outer sync that has not been reported, if any. A step reports at most one."""
        return self._unreported.popleft() if self._unreported else None

    def settle(self) -> None:
        """Wait for the outer sync in flight, so that a checkpoint includes it. It is applied only when due."""
        if self._in_flight is not None and not self._in_flight.outcome.result().has_joined:
            self._take(self._in_flight)

    def _finish(self, steps: int) -> int:
        """Leave the other islands. At the end of the run, first give all islands the same weights."""
        is_over = steps >= self._training.steps
        self._watched = None
        if is_over:
            steps = self._run_last_syncs(steps)
            self._island_sync.finish()
        self.settle()
        if self._rank == 0:
            self._rendezvous.leave(is_over)
        return steps

    def _run_last_syncs(self, steps: int) -> int:
        """Run the remaining outer syncs. The last includes all parameters, which then equal the anchor."""
        while True:
            if self._in_flight is not None:
                steps = self._receive(steps)
            if self._unapplied is not None:
                steps = self._apply(steps)
            if self.counters.exchange > self._rounds.last:
                break
            self._unreported.clear()  # a step reports only one, and the digests of the last one are compared
            self._send(steps, is_behind=False)
        self._weights.change(self._fragments.by_name, self._state.anchor, adds=False)
        self._state.forget()
        self.counters = self.counters._replace(are_common=True)
        return steps

    @property
    def _due_steps(self) -> int:
        """The number of steps after which the next outer sync is due, but no more than the steps of the run."""
        number, due = self.counters.exchange, next_due(self.counters, self._sync.inner_steps)
        if (sent := self._in_flight) is not None:
            number, due = number + 1, sent.sent_steps + sent.early_steps + self._rounds.interval(number + 1)
        return min(due, self._training.steps) if number <= self._rounds.last else due

    def _send(self, steps: int, is_behind: bool) -> Values:
        """Start the next outer sync, and return the parameters that this rank sends: its pieces of the fragment.

        Raises:
            RuntimeError: A parameter, which the message names, is not finite and would spoil the mean of all islands.
        """
        number, lineage, synced_steps, *_ = self.counters
        taken = steps - synced_steps[number % self._sync.fragments]
        tokens = taken * self._training.step_tokens
        sent = self._state.masters(name for name in self._fragments.names(number) if name in self._state.owned)
        if bad := [] if is_behind else [name for name, piece in sent.items() if not piece.isfinite().all()]:
            raise RuntimeError(
                f"after step {steps} parameter {bad[0]} has numbers that are {NOT_FINITE}: no other island gets them"
            )
        early_steps = 0 if is_behind else max(0, self._due_steps - steps)
        interval, step_s = self._rounds.interval(number), self._pace.step_s()
        early = early_steps / interval
        contribution = Contribution(number, lineage, is_behind, sent, max(tokens, 1), early, interval * step_s, step_s)
        self._in_flight = InFlightSync(steps, early_steps, Future())
        self._watched = self._in_flight.outcome
        # It is a daemon thread, because a process whose run fails elsewhere must not wait for lost islands.
        Thread(target=self._run, args=(self._in_flight.outcome, contribution), name="islands", daemon=True).start()
        return sent

    def _run(self, outcome: Future[Outcome], contribution: Contribution) -> None:
        try:
            outcome.set_result(self._island_sync.run(contribution))
        except Exception as error:  # raised again in the training thread
            outcome.set_exception(error)
        else:
            with contextlib.suppress(RuntimeError):  # the rendezvous may be gone by now
                self._watch(outcome)

    def _watch(self, before: Future[Outcome]) -> None:
        """Call all ranks to the outer sync after `before` once other islands wait for this one there."""
        while self._rank == 0 and self._watched is before:
            number = before.result().exchange + 1
            due_in_s = (self._due_steps - self._pace.steps) * self._pace.step_s()
            is_last = number >= self._rounds.last
            awaited = is_awaited(self._rendezvous.waiting(), due_in_s, self._sync.grace_s, is_last)
            if awaited and self._watched is before:
                self._call(number)
                break
            time.sleep(LOOK_S)

    def _receive(self, steps: int) -> int:
        """Wait for the outer sync in flight and apply it; return the steps to continue from."""
        assert self._in_flight is not None
        waited_s = time.monotonic()
        outcome = self._in_flight.outcome.result()
        waited_s = time.monotonic() - waited_s
        if outcome.has_joined:
            early_steps = round(outcome.early * self._rounds.interval(outcome.exchange))
            their_steps = self._rounds.planned(outcome.exchange) - early_steps
            steps = self._join(outcome, max(steps, min(their_steps, self._training.steps - 1)))
            if self._rank == 0:
                print(
                    f"has joined the other islands, which were ahead: continues after {steps} steps from weights up to "
                    f"{self._sync.inner_steps} steps old, so its loss starts above theirs",
                    flush=True,
                )
        else:
            self._take(self._in_flight)
            steps = self._apply(steps)
        self._in_flight = None
        self._unreported.append(outcome.report(waited_s))
        return steps

    def _take(self, in_flight: InFlightSync) -> None:
        """Take an outcome into this rank's state, except for the parameters, which `_apply` changes."""
        outcome, state = in_flight.outcome.result(), self._state
        state.take(outcome.anchor, outcome.momentum, outcome.error)
        if state.correction is not None:
            for name, anchor in outcome.anchor.items():
                state.correction[name] += anchor
        synced = list(self.counters.synced_steps)
        synced[outcome.exchange % self._sync.fragments] = in_flight.sent_steps
        self.counters = OuterCounters(outcome.exchange + 1, outcome.lineage, tuple(synced), outcome.islands)
        self._in_flight, self._unapplied = None, in_flight.sent_steps
        furthest_early_steps = round(outcome.early * self._rounds.interval(outcome.exchange))
        self._behind_steps = max(0, in_flight.early_steps - furthest_early_steps)

    def _join(self, outcome: Outcome, steps: int) -> int:
        """Take the state of the other islands, including the parameters; return the steps to continue from.

        These include the steps that the others took meanwhile, so that all arrive at the next outer sync together. An
        island that stayed a few steps behind would have to join at every outer sync, and lose its own progress.
        """
        self._state.take(outcome.anchor, outcome.momentum, None)
        self._state.forget()
        self._weights.change(self._fragments.by_name, self._state.anchor, adds=False)
        until_s, since_s = outcome.held_s - outcome.decided_s, time.monotonic() - outcome.held_s
        interval_steps, delay_steps = self._rounds.interval(outcome.exchange + 1), self._sync.delay_steps
        taken = taken_since(until_s, since_s, outcome.interval_s, interval_steps, delay_steps)
        skipped = TakenByOthers(max(0, min(taken, self._training.steps - steps - 1)))  # leaves at least one step
        steps_now = steps + broadcast_record(skipped, self._group).steps
        synced = [steps_now] * self._sync.fragments
        synced[outcome.exchange % self._sync.fragments] = steps
        self.counters = OuterCounters(outcome.exchange + 1, outcome.lineage, tuple(synced), outcome.islands)
        self._unapplied, self._behind_steps = None, 0
        self._pace = StepPace(steps_now, time.monotonic(), steps_now)
        return steps_now

    def _apply(self, steps: int) -> int:
        """Apply the last outcome: set its parameters to the anchor, or add the correction if steps were taken since.

        Return the steps to continue from. An island behind the furthest one skips the steps that it lacks.
        """
        skipped = min(self._behind_steps, self._training.steps - steps)
        adds = steps != self._unapplied
        state, names = self._state, self._fragments.names(self.counters.exchange - 1)
        values = state.correction if adds else state.anchor
        assert values is not None
        self._weights.change(names, values, adds)
        if state.correction is not None:
            for name in state.owned.keys() & names:
                state.correction[name].zero_()
        self._behind_steps, self._unapplied = 0, None
        self._pace = self._pace.without(skipped)
        synced = tuple(sent_steps + skipped for sent_steps in self.counters.synced_steps)
        self.counters = self.counters._replace(synced_steps=synced)
        return steps + skipped
