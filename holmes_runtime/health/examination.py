"""Examinations during a run: all ranks measure at the same time, judge slowness, and adapt their edges."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from statistics import median

import torch
import torch.distributed as dist

from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.config.codec import EdgeSettings
from holmes_runtime.config.rank_grid import EDGE_AXES, Rank
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.config.verdicts import EdgeAdapted, Verdict
from holmes_runtime.data.read_ahead import READING
from holmes_runtime.health.adapt_edges import adapt
from holmes_runtime.health.edge_timing import time_edges
from holmes_runtime.health.examination_times import ExaminationTimes, UsualStep
from holmes_runtime.health.judge import verdicts
from holmes_runtime.health.measured_times import EdgeTime, Measured


class Examination:
    """Collects what one rank measures and regularly examines what all measured. `config` is the current run.

    There are no examinations if the plan has no expectation to compare with.
    """

    def __init__(self, config: RunConfig, me: Rank, groups: RankGroups, device: torch.device) -> None:
        self.config = self._plan = config
        self._me, self._groups, self._device = me, groups, device
        self._forward_s: list[float] = []
        self._backward_s: list[float] = []
        self._reading_s: list[float] = []
        self._step_s: list[float] = []
        self._usual, self._occasions = UsualStep(), ExaminationTimes()

    def add(self, step_s: float, paused_s: float, laps_s: Mapping[str, float]) -> bool:
        """Add a step, before which the run paused for `paused_s`. Return True if it is a reason to examine.

        `laps_s` are the seconds of its "forward", its "backward" and the wait for its batch. A step after a pause is
        not typical and never a reason.
        """
        count = self._plan.microbatches[self._me.dp_rank]
        self._forward_s.append(laps_s.get("forward", 0.0) / count)
        self._backward_s.append(laps_s.get("backward", 0.0) / count)
        self._reading_s.append(laps_s.get(READING, 0.0))
        self._step_s.append(step_s)
        if self._plan.expectation is None or not self._plan.edges_between_hosts or paused_s > 0:
            return False
        return self._usual.add(step_s)

    def is_due(self, step: int, asked: bool) -> bool:
        """Return True if an examination is due after `step`; `asked`: a rank has a reason. All ranks get the same."""
        return self._plan.expectation is not None and self._occasions.is_due(step, asked)

    def hold(self, step: int, asked: bool) -> tuple[Verdict, ...]:
        """Time the links and judge all ranks' measurements. Return the verdicts on rank 0. All ranks call this.

        `asked`: a rank had a reason. The run continues under the new `config`.
        """
        dist.barrier()
        measured = self._measure()
        before, now = self.config.edge_settings, adapt(self._plan, self.config, measured)
        found: list[Verdict] = []
        if self._me.rank == 0:
            found += verdicts(self._plan, self.config, measured, now)
            found += adapted_edges(self.config, measured, now)
        if now != before:
            planned = now == self._plan.edge_settings
            self.config = self._plan if planned else self.config.with_edge_settings(now)
        self._occasions.held(step, asked or now != before, self.config is self._plan)
        if asked or now != before:
            self._usual.forget()
        return tuple(found)

    def _measure(self) -> Measured:
        """Gather the measurements of all ranks. Each number is added to zeros only, so sums are exact."""
        config, rank = self.config, self._me.rank
        names = [group.name for group in config.groups if group.axis in EDGE_AXES]
        own = time_edges(config, self._me, self._groups, self._device)
        seen = (self._forward_s, self._backward_s, self._reading_s, self._step_s)
        of_ranks = torch.zeros(config.world_size, len(seen), dtype=torch.float64)
        of_ranks[rank] = torch.tensor([median(seconds) for seconds in seen], dtype=torch.float64)
        timed = torch.tensor([own.get(name, (0.0, 0.0)) for name in names], dtype=torch.float64).view(-1, 2)
        together = torch.cat([of_ranks.flatten(), timed.flatten()])
        dist.all_reduce(together)
        for seconds in seen:
            seconds.clear()
        of_all, of_edges = together[: of_ranks.numel()].view(of_ranks.shape), together[of_ranks.numel() :].view(-1, 2)
        forward_s, backward_s, reading_s, step_s = map(tuple, of_all.T.tolist())
        edges = {name: EdgeTime(*row) for name, row in zip(names, of_edges.tolist(), strict=True)}
        return Measured(forward_s, backward_s, edges, reading_s, max(step_s))


def adapted_edges(config: RunConfig, measured: Measured, now: tuple[EdgeSettings, ...]) -> list[EdgeAdapted]:
    """Return the edges whose settings in `now` differ from those measured, in `config`."""
    found = []
    for edge, (old, new) in enumerate(zip(config.edge_settings, now, strict=True)):
        if old != new:
            groups = [g for g in config.groups if g.axis in EDGE_AXES and config.grid.rank(g.ranks[0]).pp_rank == edge]
            earlier, later = (
                tuple(dict.fromkeys(config.grid.rank(g.ranks[end]).host for g in groups)) for end in (0, 1)
            )
            activations_s, gradients_s = (
                max(chain([0.0], (measured.edges[g.name].full_s for g in groups if g.axis == axis)))
                for axis in EDGE_AXES
            )
            found.append(EdgeAdapted(earlier, later, old, new, activations_s, gradients_s))
    return found
