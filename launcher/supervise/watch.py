"""Wait for an attempt to end: write down what the nodes report, notice the first failure, and say how it ended."""

from __future__ import annotations

import contextlib
import queue
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from holmes_core.records.plan import Plan
from holmes_core.records.run import Failure
from holmes_runtime.config.verdicts import Verdict
from launcher.journal.run_events import LogLine, NodeState, Notice, RunEvent
from launcher.journal.step_metrics import StepCollector, StepMetrics
from launcher.nodes.node_link import Event
from launcher.nodes.start import RunningNodes
from launcher.prepare.prepare import SILENCE_LIMIT_S
from launcher.supervise.failure import first_cause, likely_reason
from launcher.supervise.hang import Standstill

LAST_LINES = 20
ASLEEP_S = 3.0  # a machine that is suspended or overloaded does not look at its watch for so long
SEEN_EVERY_S = 1.0
# Peers of a dead rank fail within 0.2 s on Gloo (measured); torchrun looks every 0.1 s. Wait a little longer than both.
CAUSE_WINDOW_S = 1.5


class Watch:
    """One attempt as its events tell it. `record` takes every event for screen and folder, `judged` what is slow."""

    def __init__(
        self,
        plan: Plan,
        nodes: RunningNodes,
        detached: bool,
        record: Callable[[RunEvent], None],
        judged: Callable[[tuple[Verdict, ...]], None],
    ) -> None:
        self._plan, self._nodes, self._detached, self._record, self._judged = plan, nodes, detached, record, judged
        self.steps: list[StepMetrics] = []
        self.failures: list[Failure] = []
        self.seen: dict[int, int] = {}
        self._collector = StepCollector(plan)
        self._standstill = Standstill(plan)
        self._last_lines: dict[int, deque[str]] = {}
        self._ended: dict[int, int | None] = {}
        self._looked_s = time.monotonic()
        self._rank_at = {(rank.host, rank.local_rank): rank.rank for rank in plan.ranks}
        self._states: dict[str, str] = {}

    def until_end(self, tick: Callable[[], None]) -> None:
        """Return when every node has ended, or a short time after the first failure; `tick` is called meanwhile."""
        give_up_at: float | None = None
        while len(self._ended) < len(self._plan.nodes):
            if give_up_at is not None and time.monotonic() > give_up_at:
                return
            with contextlib.suppress(queue.Empty):
                self._take(self._nodes.events.get(timeout=0.1))
            self._notice_silence()
            self._notice_standstill()
            tick()
            if self.failures and give_up_at is None:
                give_up_at = time.monotonic() + CAUSE_WINDOW_S

    @property
    def cause(self) -> Failure | None:
        """The failure to show first."""
        return first_cause(self.failures) if self.failures else None

    @property
    def lost_hosts(self) -> tuple[str, ...]:
        """Hosts that are gone themselves."""
        return tuple(dict.fromkeys(failure.host for failure in self.failures if failure.host_lost))

    def _take(self, event: Event) -> None:
        node = self._plan.nodes[event.node_rank]
        data = event.data
        if "seen" in data:
            self.seen[event.node_rank] = data["seen"]
        if event.kind == "log":
            self._take_line(event, self._rank_at[node.host, data["local_rank"]], data["line"])
        elif event.kind == "metrics":
            self._take_metrics(event.node_rank, data["metrics"])
        elif event.kind == "failure":
            self._take_failure(event)
        elif event.kind == "states":
            ranks = {self._rank_at[node.host, int(local)]: state for local, state in data["states"].items()}
            self._standstill.take_states(ranks)
        elif event.kind == "stuck":
            self._record(Notice(f"host {node.host}: cannot be ended: {', '.join(data['processes'])}"))
        elif event.kind == "exit":
            self._ended.setdefault(event.node_rank, None)
            self._ended[event.node_rank] = data["exit_code"]
            self._set_state(event.node_rank, "ended")
        elif event.kind == "gone":
            self._take_gone(event)
        elif event.kind in ("started", "ranks", "state"):
            words = {"started": "starting ranks", "ranks": "ranks up"}
            self._set_state(event.node_rank, words.get(event.kind) or data["state"])

    def _take_line(self, event: Event, rank: int, line: str) -> None:
        node = self._plan.nodes[event.node_rank]
        self._last_lines.setdefault(rank, deque(maxlen=LAST_LINES)).append(line)
        self._record(LogLine(node.host, node.cluster, rank, line))
        if self._states.get(node.host) == "ranks up" and line.startswith(f"rank {rank} on "):
            self._set_state(event.node_rank, "rendezvous")

    def _take_metrics(self, node_rank: int, report: dict[str, Any]) -> None:
        self._standstill.take_progress(report["rank"], report["step"])
        if not self._states.get(self._nodes.host(node_rank), "").startswith("step"):
            self._set_state(node_rank, "stepping")
        step = self._collector.add(report)
        if step is not None:
            self.steps.append(step.metrics)
            self._standstill.take_step(step.metrics.step_s)
            self._record(step.metrics)
            self._judged(step.verdicts)

    def _set_state(self, node_rank: int, state: str) -> None:
        node = self._plan.nodes[node_rank]
        if self._states.get(node.host) != state:
            self._states[node.host] = state
            self._record(NodeState(node.host, node.cluster, state))

    def _take_failure(self, event: Event) -> None:
        data = event.data
        lines = tuple(data.get("last_lines", self._last_lines.get(data["rank"], ())))
        self._fail(
            event.node_rank, data["rank"], data["exit_code"], data["message"], lines, data["time_s"], data["oom_kills"]
        )

    def _take_gone(self, event: Event) -> None:
        if event.node_rank in self._ended:
            return
        self._ended[event.node_rank] = None
        link = self._nodes.links[event.node_rank]
        if link.ended:
            text = "the node agent ended before its ranks: it was killed, or told to stop by someone else"
        else:
            text = f"lost the node agent (exit code {event.data['exit_code']}): the host or its sshd went away"
        lines = tuple(event.data["stderr"].splitlines()[-LAST_LINES:])
        self._fail(event.node_rank, None, 1, text, lines, time.time(), host_lost=not link.ended)

    def _notice_silence(self) -> None:
        """A host gone without a word (no power, no link) is a failure too; a detached run goes on without us."""
        now_s = time.monotonic()
        asleep, self._looked_s = now_s - self._looked_s > ASLEEP_S, now_s
        for node, link in zip(self._plan.nodes, self._nodes.links, strict=True):
            if asleep:
                link.heard_s = now_s  # it was us who did not listen
            silent_s = now_s - link.heard_s
            if node.node_rank in self._ended or silent_s <= SILENCE_LIMIT_S:
                continue
            if self._detached and not self.failures:
                link.heard_s = now_s
                self._record(Notice(f"host {node.host}: no word for {silent_s:.0f} s; trying to reach it again"))
                link.drop()
                continue
            self._ended[node.node_rank] = None
            link.lost = True
            text = f"no word from the node agent for {silent_s:.0f} s: the host or its network is down"
            self._fail(node.node_rank, None, 1, text, (), time.time(), host_lost=True)

    def _notice_standstill(self) -> None:
        """Ranks that neither end nor take a step: find out who holds up the others."""
        if self.failures:
            return
        if self._standstill.asks_now():
            self._nodes.send(do="stacks")
        verdict = self._standstill.verdict(self._last_lines)
        if verdict is not None:
            rank, text = verdict
            host = self._plan.ranks[rank].host
            node_rank = next(node.node_rank for node in self._plan.nodes if node.host == host)
            self._fail(node_rank, rank, 1, text, tuple(self._last_lines.get(rank, ())), time.time())

    def _fail(
        self,
        node_rank: int,
        rank: int | None,
        exit_code: int,
        message: str,
        lines: tuple[str, ...],
        time_s: float,
        oom_kills: int = 0,
        host_lost: bool = False,
    ) -> None:
        node = self._plan.nodes[node_rank]
        self.failures.append(
            Failure(
                host=node.host,
                cluster=node.cluster,
                rank=rank,
                exit_code=exit_code,
                message=message,
                last_lines=lines,
                time_s=time_s,
                likely=likely_reason(exit_code, "\n".join((message, *lines)), oom_kills),
                host_lost=host_lost,
            )
        )
