"""Wait for an attempt to end: write down what the nodes report, notice the first failure, and say how it ended."""

from __future__ import annotations

import contextlib
import queue
import time
from collections import deque
from collections.abc import Callable

from holmes_core.records.plan import Plan
from holmes_core.records.run import Failure
from holmes_runtime.config.messages import (
    Exited,
    RankFailed,
    RankPrinted,
    RankStates,
    RanksUp,
    Refused,
    Stacks,
    Started,
    Stuck,
)
from holmes_runtime.config.rank_metrics import RankMetrics
from holmes_runtime.config.verdicts import Verdict
from launcher.journal.run_events import LogLine, NodeState, Notice, RunEvent
from launcher.journal.step_metrics import StepCollector, StepMetrics
from launcher.nodes.node_link import Heard, LinkClosed, LinkState, Unreadable
from launcher.nodes.preflight import unreadable_fault
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
                self._take(self._nodes.heard.get(timeout=0.1))
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

    def _take(self, heard: Heard) -> None:
        node, message = self._plan.nodes[heard.node_rank], heard.message
        if heard.number is not None:
            self.seen[heard.node_rank] = heard.number
        if isinstance(message, RankPrinted):
            self._take_line(heard.node_rank, self._rank_at[node.host, message.local_rank], message.line)
        elif isinstance(message, RankMetrics):
            self._take_metrics(heard.node_rank, message)
        elif isinstance(message, RankFailed):
            self._take_failure(heard.node_rank, message)
        elif isinstance(message, RankStates):
            states = {self._rank_at[node.host, one.local_rank]: one.state for one in message.states}
            self._standstill.take_states(states)
        elif isinstance(message, Stuck):
            self._record(Notice(f"host {node.host}: cannot be ended: {', '.join(message.processes)}"))
        elif isinstance(message, Exited):
            self._ended.setdefault(heard.node_rank, None)
            self._ended[heard.node_rank] = message.exit_code
            self._set_state(heard.node_rank, "ended")
        elif isinstance(message, Unreadable | Refused):
            self._ended.setdefault(heard.node_rank, None)
            self._fail(heard.node_rank, None, 1, unreadable_fault(node.host, message.reason).evidence, (), time.time())
        elif isinstance(message, LinkClosed):
            self._take_closed(heard.node_rank, message)
        elif isinstance(message, Started):
            self._set_state(heard.node_rank, "starting ranks")
        elif isinstance(message, RanksUp):
            self._set_state(heard.node_rank, "ranks up")
        elif isinstance(message, LinkState):
            self._set_state(heard.node_rank, message.state)

    def _take_line(self, node_rank: int, rank: int, line: str) -> None:
        node = self._plan.nodes[node_rank]
        self._last_lines.setdefault(rank, deque(maxlen=LAST_LINES)).append(line)
        self._record(LogLine(node.host, node.cluster, rank, line))
        if self._states.get(node.host) == "ranks up" and line.startswith(f"rank {rank} on "):
            self._set_state(node_rank, "rendezvous")

    def _take_metrics(self, node_rank: int, metrics: RankMetrics) -> None:
        self._standstill.take_progress(metrics.rank, metrics.step)
        if not self._states.get(self._nodes.host(node_rank), "").startswith("step"):
            self._set_state(node_rank, "stepping")
        step = self._collector.add(metrics)
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

    def _take_failure(self, node_rank: int, failed: RankFailed) -> None:
        lines = failed.last_lines or tuple(self._last_lines.get(failed.rank, ()) if failed.rank is not None else ())
        self._fail(
            node_rank, failed.rank, failed.exit_code, failed.message, lines, failed.time_s, oom_kills=failed.oom_kills
        )

    def _take_closed(self, node_rank: int, closed: LinkClosed) -> None:
        if node_rank in self._ended:
            return
        self._ended[node_rank] = None
        if closed.agent_ended:
            text = "the node agent ended before its ranks: it was killed, or told to stop by someone else"
        else:
            text = f"lost the node agent (exit code {closed.exit_code}): the host or its sshd went away"
        lines = tuple(closed.stderr.splitlines()[-LAST_LINES:])
        self._fail(node_rank, None, 1, text, lines, time.time(), host_lost=not closed.agent_ended)

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
            self._nodes.send(Stacks())
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
