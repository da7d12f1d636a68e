"""Islands of one rank each in one process, without a meeting or a network: what they learn, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.outer.island_weights import BundledWeights, Values
from holmes_runtime.outer.lanes import Fragments, ShardLayout, fragments_of, lanes_of
from holmes_runtime.outer.outer_state import OuterState
from holmes_runtime.outer.outer_step import estimated_anchor, outer_step, outgoing
from holmes_runtime.outer.sync_steps import Rounds, due_after
from holmes_runtime.trainer import Trainer


class _Sent(NamedTuple):
    """What was sent after so many steps, and by island where its parameters went on from."""

    steps: int
    ahead: list[Values]


class IslandsInProcess:
    """`trainers` by island, all with as many inner steps; what they exchange is theirs at once, and applied when due.

    The arithmetic is the runtime's own, in its order; only what may be lost or late between islands is left out.
    """

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        syncs = [trainer.config.outer_sync for trainer in trainers]
        self._syncs = [sync for sync in syncs if sync is not None]
        assert len(self._syncs) == len(trainers)
        self.trainers, self._sync = trainers, self._syncs[0]
        self._weights = [BundledWeights(trainer.zero1, RankGroups(), 0) for trainer in trainers]
        self._states = [OuterState(each, sync) for each, sync in zip(self._weights, self._syncs, strict=True)]
        layouts = [ShardLayout((state.pieces(),)) for state in self._states]
        last = Rounds(trainers[0].config.steps, self._sync.inner_steps, self._sync.fragments).last
        by_name = fragments_of(layouts[0], self._sync.fragments)
        self._fragments = Fragments(by_name, self._sync.fragments, last)
        (lane,) = lanes_of(layouts, 0, 0)
        self._cells = lane.cells
        self._exchange = 0
        self._under_way: _Sent | None = None

    def step(self, step: int) -> list[float]:
        """The islands' losses of that step, after which they do what is due."""
        losses = [trainer.step(step).loss for trainer in self.trainers]
        steps, is_last = step + 1, step + 1 == self.trainers[0].config.steps
        self._apply_due(steps, self._sync.delay_steps)
        if is_last:
            self._apply_due(steps, 0)
        if is_last or steps >= due_after(self._exchange, self._sync.inner_steps, self._sync.fragments):
            self._send(steps)
        self._apply_due(steps, 0 if is_last else self._sync.delay_steps)
        assert None not in losses
        return [loss for loss in losses if loss is not None]

    def _send(self, steps: int) -> None:
        """The outer step of the fragment that is due."""
        sync, names = self._sync, self._fragments.names(self._exchange)
        cells = [cell for cell in self._cells if cell.name in names]
        sent = [state.masters(names) for state in self._states]
        own = [
            outgoing(
                state.gather(state.anchor, cells),
                state.gather(parameters, cells),
                state.gather(state.error, cells) if state.error is not None else None,
                sync.codec,
            )
            for state, parameters in zip(self._states, sent, strict=True)
        ]
        ahead = [
            {
                name: estimated_anchor(state.anchor[name], state.momentum[name], values, sync.outer_rate, sync.momentum)
                for name, values in parameters.items()
            }
            for state, parameters in zip(self._states, sent, strict=True)
        ]
        tokens = [trainer.config.global_batch_size for trainer in self.trainers]
        for state, mine in zip(self._states, own, strict=True):
            anchor, momentum = state.gather(state.anchor, cells), state.gather(state.momentum, cells)
            parts = [each.arrives for each in own]
            rate, factor = self._fragments.rule(self._exchange, sync)
            stepped = outer_step(anchor, momentum, parts, tokens, sync.codec, rate, factor)
            state.scatter(stepped.anchor, state.anchor, cells)
            state.scatter(stepped.momentum, state.momentum, cells)
            if state.error is not None and mine.error is not None:
                state.scatter(mine.error, state.error, cells)
        assert self._under_way is None
        self._under_way = _Sent(steps, ahead)
        self._exchange += 1
        if sync.delay_steps:
            for weights, values in zip(self._weights, ahead, strict=True):
                _change(weights, values, adds=False)

    def _apply_due(self, steps: int, delay: int) -> None:
        """Moves the parameters of what was sent so long ago."""
        sent = self._under_way
        if sent is None or steps < sent.steps + delay:
            return
        self._under_way = None
        for weights, state, ahead in zip(self._weights, self._states, sent.ahead, strict=True):
            if steps == sent.steps:
                _change(weights, {name: state.anchor[name] for name in ahead}, adds=False)
            else:
                _change(weights, {name: state.anchor[name] - values for name, values in ahead.items()}, adds=True)


def _change(weights: BundledWeights, values: Values, adds: bool) -> None:
    """Puts or adds `values` to the weights."""
    weights.change(values, values, adds)
    weights.publish()
