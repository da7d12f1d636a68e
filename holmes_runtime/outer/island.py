"""Islands for a trainer of the user's own: its script registers parameters and calls `step` after each inner step.

    island = Island(model.named_parameters(), steps)
    step = island.begin(0)
    while step < steps:
        ...  # forward, backward, optimizer
        step = island.step()

The launch of a plan with islands gives the settings. Without one, nothing is exchanged.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from holmes_runtime.checkpoint.tensor_piece import TensorPiece
from holmes_runtime.config.islands.island_training import IslandTraining
from holmes_runtime.config.node_config import TRAINER_VARIABLE
from holmes_runtime.config.rank_metrics import OUTER_SYNCS_FILE, RankOuterSync
from holmes_runtime.config.strict_json import parse, to_json
from holmes_runtime.config.trainer_config import read_trainer_config
from holmes_runtime.node.checkpoint_files.description import OuterCounters
from holmes_runtime.outer.local_weights import LocalWeights
from holmes_runtime.outer.outer_loop import OuterLoop

COUNTERS, STEPS = "counters", "steps"


class Island:
    """Island `number` of `count` that train one model apart; 0 of 1 without islands.

    All ranks make one from the same trained `parameters` by name, and call its methods after the same of `steps` steps.
    """

    def __init__(self, parameters: Iterable[tuple[str, Tensor]], steps: int) -> None:
        """Raise RuntimeError if the script does not match the plan, or a parameter cannot be exchanged."""
        self.number, self.count = 0, 1
        self._steps: int | None = None  # taken so far; None before `begin`
        self._last = steps
        self._loop: OuterLoop | None = None
        training = _training(os.environ)
        if training is None:
            return
        self.number, self.count = training.outer_sync.island, training.outer_sync.num_islands
        _check_script(steps, training)
        self._rank, timeout = dist.get_rank(), timedelta(seconds=training.timeout_s)
        self._group = dist.new_group(timeout=timeout, backend="gloo", group_desc="islands")
        self._weights = LocalWeights(parameters, self._rank, self._group, timeout)
        self._called = 0  # on rank 0, the outer sync at which other islands wait for this one
        self._counters: OuterCounters | None = None
        self._loaded_steps = 0
        self._loop = OuterLoop(training, self._rank, self._weights, self._call, group=self._group)

    def _call(self, exchange: int) -> None:
        self._called = exchange

    def begin(self, steps: int) -> int:
        """Join the other islands with the weights after `steps` steps; return the steps to continue from.

        If the others are ahead, the result is larger than `steps` and the weights become theirs.

        Raises:
            RuntimeError: it was called before.
            RuntimeError: `steps` is outside the training, or less than the steps of the loaded outer state.
            RuntimeError: copies of a parameter differ.
        """
        if self._steps is not None:
            raise RuntimeError("Island: `begin` was called twice: call it once, and make no second Island")
        if not 0 <= steps <= self._last:
            raise RuntimeError(f"Island: `begin({steps})` is outside the {self._last} steps that Island was made with")
        self._steps = steps
        if self._loop is not None:
            if steps < self._loaded_steps:
                raise RuntimeError(
                    f"Island: `begin({steps})`, but the loaded outer state is of {self._loaded_steps} steps: begin "
                    "with the weights and the steps that were saved with it, or load neither"
                )
            self._weights.check_copies()
            self._steps = self._loop.begin(steps, self._counters)
            self._report(self._loop)
        return self._steps

    def step(self) -> int:
        """Do everything that is due after an inner step; return the steps taken, or more if the others are ahead.

        Raises:
            RuntimeError: `begin` was not called, or all steps had been taken.
        """
        if self._steps is None:
            raise RuntimeError("Island: `step` was called before `begin`: call `begin` once, before the first step")
        if self._steps >= self._last:
            raise RuntimeError(f"Island: all {self._last} steps are taken: continue while step < {self._last}")
        self._steps += 1
        if self._loop is not None:
            called = torch.tensor(self._called)
            dist.broadcast(called, 0, self._group)
            self._steps = self._loop.after_step(self._steps, False, int(called))
            self._report(self._loop)
        return self._steps

    def _report(self, loop: OuterLoop) -> None:
        """Append outer syncs to the file from which the agent reports them to the controller."""
        path = Path(os.environ["HOLMES_METRICS_DIR"]) / OUTER_SYNCS_FILE.format(rank=self._rank)
        while (outer := loop.next_report()) is not None:
            with open(path, "a", encoding="utf-8") as lines:
                lines.write(to_json(RankOuterSync(self._rank, outer)) + "\n")

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's part of the outer state, to save with the weights and the steps; empty without islands.

        Wait for an outer sync in flight.
        """
        if self._loop is None:
            return {}
        self._loop.settle()
        values = {key: each.values for key, each in _pieces(self._loop).items()}
        return {**values, COUNTERS: to_json(self._loop.counters), STEPS: self._steps or 0}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of `state_dict` on this rank before calling `begin`. An empty one starts from the weights.

        Raises:
            RuntimeError: `state` is of another layout or other settings; names the missing tensor.
            RuntimeError: `begin` was called before.
        """
        if self._steps is not None:
            raise RuntimeError("Island: `load_state_dict` was called after `begin`: call it before")
        if self._loop is None or not state:
            return
        for key, piece in _pieces(self._loop).items():
            if key not in state or state[key].shape != piece.values.shape:
                raise RuntimeError(f"the outer state lacks {key}: it was saved with other ranks or other settings")
            piece.values.copy_(state[key])
        self._counters, self._loaded_steps = parse(OuterCounters, state[COUNTERS]), state.get(STEPS, 0)


def _pieces(loop: OuterLoop) -> dict[str, TensorPiece]:
    """Return the tensors of the outer state, each by a name that no other rank has."""
    return {f"{name}@{'x'.join(map(str, each.part.offset))}": each for name, each in loop.saved().items()}


def _check_script(steps: int, training: IslandTraining) -> None:
    """Raise RuntimeError unless the script has the plan's numbers of steps and ranks."""
    island = training.outer_sync.island
    if steps != training.steps:
        raise RuntimeError(
            f"the script trains {steps} steps, but the plan has {training.steps} for island {island}: pass it "
            "{steps} in trainer.command"
        )
    if not dist.is_initialized() or dist.get_world_size() != training.num_ranks:
        raise RuntimeError(
            f"the plan has {training.num_ranks} ranks for island {island}: call torch.distributed.init_process_group "
            "for all of them before Island"
        )


def _training(environ: Mapping[str, str]) -> IslandTraining | None:
    """Return the training of this rank's island; None without islands."""
    path = environ.get(TRAINER_VARIABLE)
    return read_trainer_config(Path(path)).island if path else None
