"""Wait for a run to end: write down what the nodes report, notice the first failure, and say how it ended."""

from __future__ import annotations

import contextlib
import queue
import time
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from holmes_core.plan import Plan
from holmes_core.run import Failure, Run
from launcher.failure import first_cause, shell_exit_code
from launcher.prepare import SILENCE_LIMIT_S
from launcher.run_folder import RunFolder
from launcher.start import Event, RunningNodes
from launcher.step_metrics import StepCollector, StepMetrics, median_step_s, traffic_per_step

LAST_LINES = 20
# Peers of a dead rank fail within 0.2 s on Gloo (measured); torchrun looks every 0.1 s. Wait a little longer than both.
CAUSE_WINDOW_S = 1.5


class View(Protocol):
    """Who shows the run while it lasts."""

    def log(self, cluster: str, host: str, rank: int, line: str) -> None:
        """A line a rank printed."""

    def step(self, step: StepMetrics) -> None:
        """A finished step."""


class Watch:
    """One run as its events tell it."""

    def __init__(self, plan: Plan, nodes: RunningNodes, folder: RunFolder, view: View, started_at_s: float) -> None:
        self._plan, self._nodes, self._folder, self._view = plan, nodes, folder, view
        self._started_at_s = started_at_s
        self._collector = StepCollector(plan)
        self._steps: list[StepMetrics] = []
        self._failures: list[Failure] = []
        self._last_lines: dict[int, deque[str]] = {}
        self._exited: set[int] = set()
        self.gone: set[int] = set()
        self._heard_s = {node.node_rank: time.monotonic() for node in plan.nodes}
        self._rank_at = {(rank.host, rank.local_rank): rank.rank for rank in plan.ranks}

    def until_end(self) -> None:
        """Return when every node has ended, or a short time after the first failure."""
        give_up_at: float | None = None
        while len(self.gone) < len(self._plan.nodes):
            if give_up_at is not None and time.monotonic() > give_up_at:
                return
            with contextlib.suppress(queue.Empty):
                self._take(self._nodes.events.get(timeout=0.1))
            self._notice_silence()
            if self._failures and give_up_at is None:
                give_up_at = time.monotonic() + CAUSE_WINDOW_S

    def _notice_silence(self) -> None:
        """A host that is gone without a word (no power, no link) is a failure too."""
        for node in self._plan.nodes:
            silent_s = time.monotonic() - self._heard_s[node.node_rank]
            if node.node_rank not in self.gone and silent_s > SILENCE_LIMIT_S:
                self.gone.add(node.node_rank)
                text = f"no word from the node agent for {silent_s:.0f} s: the host or its network is down"
                self._fail(node.node_rank, None, 1, text, (), time.time())

    def result(self, interrupted: bool) -> Run:
        """The run as it stands now, ended."""
        if self._failures:
            state, exit_code = "failed", shell_exit_code(self.cause.exit_code)
        elif interrupted:
            state, exit_code = "stopped", 130
        else:
            state, exit_code = "done", 0
        steps = self._steps
        seconds = median_step_s(steps) if steps else None
        tokens = self._plan.job.global_batch_size * self._plan.job.model.seq_length
        return Run.model_validate(
            {
                "run_id": self._folder.path.name,
                "plan_digest": self._plan.digest(),
                "state": state,
                "started_at_s": self._started_at_s,
                "ended_at_s": time.time(),
                "exit_code": exit_code,
                "steps_done": len(steps),
                "first_loss": steps[0].loss if steps else None,
                "last_loss": steps[-1].loss if steps else None,
                "tokens_per_s": tokens / seconds if seconds else None,
                "step_s": seconds,
                "traffic": traffic_per_step(steps, self._plan.prediction.traffic) if steps else (),
                "failures": tuple(self._failures),
            }
        )

    @property
    def cause(self) -> Failure:
        """The failure to show first; there must be one."""
        return first_cause(self._failures)

    def _take(self, event: Event) -> None:
        node = self._plan.nodes[event.node_rank]
        data = event.data
        self._heard_s[event.node_rank] = time.monotonic()
        if event.kind == "log":
            rank = self._rank_at[node.host, data["local_rank"]]
            self._last_lines.setdefault(rank, deque(maxlen=LAST_LINES)).append(data["line"])
            self._folder.write_log(f"{node.host}-rank{rank}", data["line"])
            self._view.log(node.cluster, node.host, rank, data["line"])
        elif event.kind == "metrics":
            step = self._collector.add(data["metrics"])
            if step is not None:
                self._steps.append(step)
                self._folder.write_step(step)
                self._view.step(step)
        elif event.kind == "failure":
            seen: Iterable[str] = self._last_lines.get(data["rank"], ())
            lines = tuple(data.get("last_lines", seen))
            self._fail(event.node_rank, data["rank"], data["exit_code"], data["message"], lines, data["time_s"])
        elif event.kind == "exit":
            self._exited.add(event.node_rank)
        elif event.kind == "gone":
            lost_before = event.node_rank in self.gone
            self.gone.add(event.node_rank)
            if event.node_rank not in self._exited and not lost_before:
                lines = tuple(data["stderr"].splitlines()[-LAST_LINES:])
                text = f"lost the node agent (exit code {data['exit_code']}): the host or its sshd went away"
                self._fail(event.node_rank, None, data["exit_code"] or 1, text, lines, time.time())

    def _fail(
        self, node_rank: int, rank: int | None, exit_code: int, message: str, lines: tuple[str, ...], time_s: float
    ) -> None:
        node = self._plan.nodes[node_rank]
        self._failures.append(
            Failure(
                host=node.host,
                cluster=node.cluster,
                rank=rank,
                exit_code=exit_code,
                message=message,
                last_lines=lines,
                time_s=time_s,
            )
        )
