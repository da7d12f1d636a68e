"""An island's part in what islands have in common, between the steps of its own training.

When a fragment of the parameters is due, they are copied to host memory, and a thread exchanges their change with the
other islands while training goes on: from where the outer step leads if the others have come to what this island has.
`delay_steps` later the outcome is applied: the parameters move by as much as it is off that guess, so that what was
learned in between stays. What an island knows by itself is never late. Where others wait for it, because they come back
and need its state or because it has become slow, an island comes to an exchange before it is due.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from functools import partial
from threading import Thread

from holmes_runtime.checkpoint.description import OuterCounters
from holmes_runtime.checkpoint.reshard import TensorPiece
from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.comm.record_exchange import broadcast_record
from holmes_runtime.config.rank_grid import Rank
from holmes_runtime.config.rank_metrics import OuterExchange
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.outer.change_weights import change_weights
from holmes_runtime.outer.exchange_steps import Pace, Rounds, TakenByOthers, is_awaited, next_due, taken_since
from holmes_runtime.outer.island_exchange import IslandExchange
from holmes_runtime.outer.lanes import Fragments, fragments_of
from holmes_runtime.outer.meeting import LOOK_S, Meeting
from holmes_runtime.outer.meeting_store import islands_store
from holmes_runtime.outer.outcome import Offer, Outcome, UnderWay
from holmes_runtime.outer.outer_state import OuterState, Values
from holmes_runtime.parallel.zero1 import Zero1

OPENING_S = 30.0  # beyond the grace, for ranks that have agreed to exchange to find one another


class OuterLoop:
    """The outer loop of one rank, whose weights are those of `zero1`.

    All methods are called by all ranks after the same step.
    """

    def __init__(
        self,
        config: RunConfig,
        me: Rank,
        zero1: Zero1,
        groups: RankGroups,
        call: Callable[[int], None],
    ) -> None:
        """`call` has all ranks come to that exchange at once.

        Raises RuntimeError if nobody answers at the meeting.
        """
        assert config.outer_sync is not None
        self._config, self._sync, self._me, self._zero1, self._groups = config, config.outer_sync, me, zero1, groups
        self._call = call
        self._state = OuterState(zero1.shards(), me.tp_rank, self._sync)
        store = islands_store(os.environ, min(config.timeout_s, self._sync.grace_s + OPENING_S))
        self._meeting = Meeting(store, self._sync, me.rank, config.timeout_s)
        self._exchanges = partial(IslandExchange, config, me.rank, self._state, self._meeting, store)
        self._rounds = Rounds(config.steps, self._sync.inner_steps, self._sync.fragments)
        self._under_way: UnderWay | None = None
        self._unapplied: int | None = None  # the steps after which was sent what is known, and not applied yet
        self._fragments = Fragments({}, self._sync.fragments, self._rounds.last)
        self._changed: set[str] = set()  # parameters whose masters are not published yet
        self._behind_steps = 0  # to be left out once what is known is applied, as others have taken them
        self._watched: Future[Outcome] | None = None  # the exchange after which it is looked who comes to the next
        self._pace = Pace(0, time.monotonic(), 0)
        self.counters = OuterCounters(0, "", (0,) * self._sync.fragments)
        self._said = deque[OuterExchange]()

    def saved(self) -> Mapping[str, TensorPiece]:
        """What a checkpoint holds beside the counters, to be loaded into as well."""
        return self._state.saved()

    def begin(self, steps: int, counters: OuterCounters | None) -> int:
        """Comes to the other islands after so many steps; the steps to go on from, more where others had gone on.

        `counters` are those of the checkpoint that the state was loaded from; without one the weights are the anchor.
        """
        if counters is None:
            self._state.start_from_masters()
        else:
            self._go_on_from(counters, steps)
        started = broadcast_record(self._meeting.start(self.counters.exchange, self.counters.lineage))
        self._meeting.slot = started.slot
        self._meeting.show(started.start, self._state.pieces())
        layout = self._meeting.layout(self._sync.island, started.start, self._config.world_size)
        self._fragments = self._fragments._replace(by_name=fragments_of(layout, self._sync.fragments))
        self._exchange = self._exchanges(started.start, self._fragments)
        self._pace = Pace(steps, time.monotonic(), steps)
        if started.is_behind:
            self._send(steps, is_behind=True)
            steps = self._receive(steps)
            self._publish()
            self._pace = Pace(steps, time.monotonic(), steps)
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
        """Keeps that step from publishing weights that are to be changed after it, as far as that is known before."""
        acts = [self._due_steps if self._under_way is None else self._under_way.sent_steps + self._sync.delay_steps]
        if self._unapplied is not None:
            acts.append(self._unapplied + self._sync.delay_steps)
        if step + 1 >= min(acts):
            self._zero1.hold()

    def after_step(self, steps: int, stops: bool, called: int) -> int:
        """Does what is due after so many steps; the steps to go on from, more where others had gone on.

        To the exchange `called` it comes at once. If it `stops`, or these are all, nobody waits for this island then.
        """
        delay = self._sync.delay_steps
        self._pace = self._pace._replace(steps=steps)
        is_called = 0 < called == self.counters.exchange + (self._under_way is not None)
        if self._under_way is not None and (is_called or steps >= self._under_way.sent_steps + delay):
            steps = self._receive(steps)
        if self._unapplied is not None and (is_called or steps >= self._unapplied + delay):
            steps = self._apply(steps)
        if self._under_way is None and steps < self._config.steps and (is_called or steps >= self._due_steps):
            sent = self._send(steps, is_behind=False)
            if delay:
                self._go_ahead(sent)
            else:
                steps = self._receive(steps)
            self._pace = Pace(steps, time.monotonic(), steps)
        if stops or steps >= self._config.steps:
            steps = self._finish(steps)
        self._publish()
        return steps

    def _publish(self) -> None:
        """Publishes the weights that were changed; all, where the update before has left it to this."""
        if self._changed or self._zero1.is_held:
            self._zero1.publish(self._changed)
        self._changed = set()

    def _change(self, names: Collection[str], values: Values, adds: bool) -> None:
        change_weights(self._zero1, self._groups, names, values, adds)
        self._changed.update(names)

    def take_said(self) -> OuterExchange | None:
        """What there is to tell of the last exchange, once; who has joined and come to another tells of one a step."""
        return self._said.popleft() if self._said else None

    def settle(self) -> None:
        """Waits for what is under way, so that a checkpoint has it; it is applied when it is due."""
        if self._under_way is not None and not self._under_way.outcome.result().has_joined:
            self._take(self._under_way)

    def _finish(self, steps: int) -> int:
        """The end of the run, at which islands come to the same weights; or of this start of it."""
        is_over = steps >= self._config.steps
        self._watched = None
        if is_over:
            steps = self._hold_the_last(steps)
            self._exchange.finish()
        self.settle()
        if self._me.rank == 0:
            self._meeting.leave(is_over)
        return steps

    def _hold_the_last(self, steps: int) -> int:
        """Holds the exchanges that are left, in the last of which all parameters travel; they become the anchor."""
        while True:
            if self._under_way is not None:
                steps = self._receive(steps)
            if self._unapplied is not None:
                steps = self._apply(steps)
            if self.counters.exchange > self._rounds.last:
                break
            self._said.clear()  # a step has room for one, and the last is that by which islands are compared
            self._send(steps, is_behind=False)
        self._change(self._fragments.by_name, self._state.anchor, adds=False)
        self._state.forget()
        self.counters = self.counters._replace(are_common=True)
        return steps

    @property
    def _due_steps(self) -> int:
        """When the next exchange is due, after that which is under way; one of this run at its end at the latest."""
        number, due = self.counters.exchange, next_due(self.counters, self._sync.inner_steps)
        if (sent := self._under_way) is not None:
            number, due = number + 1, sent.sent_steps + sent.early_steps + self._rounds.interval(number + 1)
        return min(due, self._config.steps) if number <= self._rounds.last else due

    def _send(self, steps: int, is_behind: bool) -> Values:
        """Starts the next exchange; the parameters that it sends, of those this rank owns."""
        number, lineage, synced_steps, *_ = self.counters
        taken = steps - synced_steps[number % self._sync.fragments]
        tokens = taken * self._config.global_batch_size * self._config.model.seq_length
        sent = self._state.masters(name for name in self._fragments.names(number) if name in self._state.owned)
        early_steps = 0 if is_behind else max(0, self._due_steps - steps)
        interval, step_s = self._rounds.interval(number), self._pace.step_s()
        early = early_steps / interval
        offer = Offer(number, lineage, is_behind, sent, max(tokens, 1), early, interval * step_s, step_s)
        self._under_way = UnderWay(steps, early_steps, Future())
        self._watched = self._under_way.outcome
        # A daemon: when the run fails elsewhere, nobody waits for islands that are gone.
        Thread(target=self._run, args=(self._under_way.outcome, offer), name="islands", daemon=True).start()
        return sent

    def _run(self, outcome: Future[Outcome], offer: Offer) -> None:
        try:
            outcome.set_result(self._exchange.hold(offer))
        except Exception as error:  # all are raised again in the training thread
            outcome.set_exception(error)
        else:
            with contextlib.suppress(RuntimeError):  # where they meet may be gone by now
                self._meeting.tidy_up()
                self._watch(outcome)

    def _watch(self, before: Future[Outcome]) -> None:
        """Until the exchange after `before` is sent, looks whether others wait for this island to come to it."""
        while self._me.rank == 0 and self._watched is before:
            number = before.result().exchange + 1
            left_s = (self._due_steps - self._pace.steps) * self._pace.step_s()
            is_last = number >= self._rounds.last
            if is_awaited(self._meeting.waiting(), left_s, self._sync.grace_s, is_last) and self._watched is before:
                self._call(number)
                break
            time.sleep(LOOK_S)

    def _go_ahead(self, sent: Values) -> None:
        """Moves the parameters that were just sent to where the outer step leads if all islands have the same."""
        self._change(self._fragments.names(self.counters.exchange), self._state.go_ahead(sent), adds=False)

    def _receive(self, steps: int) -> int:
        """Waits for what is under way and applies it; the steps to go on from."""
        assert self._under_way is not None
        waited_s = time.monotonic()
        outcome = self._under_way.outcome.result()
        waited_s = time.monotonic() - waited_s
        if outcome.has_joined:
            came = self._rounds.planned(outcome.exchange) - round(
                outcome.early * self._rounds.interval(outcome.exchange)
            )
            steps = self._join(outcome, max(steps, min(came, self._config.steps - 1)))
            if self._me.rank == 0:
                weights = f"weights that are up to {self._sync.inner_steps} steps old: its loss starts above theirs"
                joined = f"has joined the other islands, which had gone on: goes on after {steps} steps"
                print(f"{joined}, from {weights}", flush=True)
        else:
            self._take(self._under_way)
            steps = self._apply(steps)
        self._under_way = None
        self._said.append(outcome.said(waited_s))
        return steps

    def _take(self, under_way: UnderWay) -> None:
        """Makes an outcome this rank's state, all but the parameters."""
        outcome, state = under_way.outcome.result(), self._state
        state.take(outcome.anchor, outcome.momentum, outcome.error)
        if state.correction is not None:
            for name, anchor in outcome.anchor.items():
                state.correction[name] += anchor
        synced = list(self.counters.synced_steps)
        synced[outcome.exchange % self._sync.fragments] = under_way.sent_steps
        self.counters = OuterCounters(outcome.exchange + 1, outcome.lineage, tuple(synced), outcome.islands)
        self._under_way, self._unapplied = None, under_way.sent_steps
        furthest_steps = round(outcome.early * self._rounds.interval(outcome.exchange))
        self._behind_steps = max(0, under_way.early_steps - furthest_steps)

    def _join(self, outcome: Outcome, steps: int) -> int:
        """Takes over the state of the others, parameters included; the steps to go on from.

        They are the others' own by now, so that this island comes to the next exchange when they do: who always came
        some steps behind them would join anew each time, and what it had learned would be lost.
        """
        self._state.take(outcome.anchor, outcome.momentum, None)
        self._state.forget()
        self._change(self._fragments.by_name, self._state.anchor, adds=False)
        until_s, since_s = outcome.held_s - outcome.decided_s, time.monotonic() - outcome.held_s
        interval_steps, delay_steps = self._rounds.interval(outcome.exchange + 1), self._sync.delay_steps
        taken = taken_since(until_s, since_s, outcome.interval_s, interval_steps, delay_steps)
        mine = TakenByOthers(max(0, min(taken, self._config.steps - steps - 1)))  # one at least is left
        now = steps + broadcast_record(mine).steps
        synced = [now] * self._sync.fragments
        synced[outcome.exchange % self._sync.fragments] = steps
        self.counters = OuterCounters(outcome.exchange + 1, outcome.lineage, tuple(synced), outcome.islands)
        self._unapplied, self._behind_steps = None, 0
        self._pace = Pace(now, time.monotonic(), now)
        return now

    def _apply(self, steps: int) -> int:
        """Moves the parameters of the last exchange: to the anchor if nothing was learned since they were sent.

        The steps to go on from: an island that was slower than others leaves out what they have taken and it has not.
        """
        left_out = min(self._behind_steps, self._config.steps - steps)
        adds = steps != self._unapplied
        state, names = self._state, self._fragments.names(self.counters.exchange - 1)
        values = state.correction if adds else state.anchor
        assert values is not None
        self._change(names, values, adds)
        if state.correction is not None:
            for name in state.owned.keys() & names:
                state.correction[name].zero_()
        self._behind_steps, self._unapplied = 0, None
        self._pace = self._pace.without(left_out)
        synced = tuple(each + left_out for each in self.counters.synced_steps)
        self.counters = self.counters._replace(synced_steps=synced)
        return steps + left_out
