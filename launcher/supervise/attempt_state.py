"""The state of one attempt. It turns messages and clock ticks into events and orders; the time is passed in."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

from holmes_core.records.plan import Node, Plan
from holmes_core.records.run import Failure
from holmes_core.remote.slurm.slurm_word import SlurmWord
from holmes_runtime.config.checks import shown
from holmes_runtime.config.islands.rendezvous_messages import ToMeeting
from holmes_runtime.config.messages import (
    Command,
    Exited,
    HostCounters,
    Message,
    NotKept,
    RankFailed,
    RankFile,
    RankPosition,
    RankPrinted,
    RankStates,
    RanksUp,
    Refused,
    Stacks,
    Started,
    Stuck,
)
from holmes_runtime.config.rank_grid import NetName
from holmes_runtime.config.rank_metrics import GroupRecord, RankMetrics, RankNotice, RankOuterSync
from holmes_runtime.config.trainer_config import SHARED
from launcher.journal.rank_files import FilePart, file_part, misfit_of_part
from launcher.journal.run_events import LogLine, NodeState, Notice, RunEvent
from launcher.journal.step_metrics import FinishedStep, StepCollector
from launcher.nodes.node_link import LinkBroken, LinkClosed, LinkState, LinkWord, NodeMessage, Unreadable
from launcher.nodes.preflight import unreadable_fault
from launcher.prepare.prepare import SILENCE_LIMIT_S
from launcher.supervise.failure import failure_of, first_cause, is_consequence
from launcher.supervise.hang import HangDetector
from launcher.supervise.printed_steps import PrintedSteps
from launcher.supervise.silence import SilenceDetector
from launcher.supervise.trainer_groups import TrainerGroups

LAST_LINES = 20  # of a rank's output, shown with its failure
MAX_LINE_CHARACTERS = 2000  # per line, and per failure message
KEPT_LINES = 200  # per rank; room for its stacks: faulthandler prints at most 100 calls per thread
# TCP retransmits after 0.2, 0.6, 1.4, 3, 6.2 and 12.6 s: after an outage of 7 s, nothing arrives before 12.6 s.
# A new connection takes less than 2 s.
STALLED_S = 6.0
_NODE_FAILED = "Node failure on"  # printed by srun; the node may be up again by the time Slurm is asked
_NODE_WAS_DOWN = "Slurm marked the node as failed, as it does for a node that is set down or does not answer"
_STEP_CANCELLED = re.compile(r"STEP \S+ ON \S+ CANCELLED AT \S+ \*\*\*")  # printed by slurmstepd, passed on by srun
_DIGEST = re.compile("[0-9a-f]{1,16}")
_STEP_KILLED = re.compile(r"srun: error: \S+: task \S+: Killed")  # all that is printed if slurmstepd's line is lost
_NO_MESSAGE = "To enable traceback see"  # torchrun's text for a process without a message. Its last line says more.
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ")  # torch.distributed's prefix of traceback lines
# Peers of a dead rank fail within 0.2 s on Gloo (measured), and torchrun looks every 0.1 s. Wait a little longer than
# both. If only peers have reported, wait until a silent host is noticed: the cause's host may be gone, full or slow.
CAUSE_WINDOW_S = 1.5
ONLY_PEERS_WINDOW_S = SILENCE_LIMIT_S + CAUSE_WINDOW_S
NOT_JOINED = "it trains and has not joined the other islands: call `begin` of an `Island` (docs/engines.md, Islands)"
JOIN_S = 600.0  # a trainer may take minutes to load before its first step


@dataclass(frozen=True)
class NotifyAll:
    """An order: send the command to every agent."""

    command: Command


@dataclass(frozen=True)
class Reconnect:
    """An order: drop the connection to that node, so that a new one is made."""

    node_rank: int


@dataclass(frozen=True)
class GiveUp:
    """An order: treat that node as out of reach."""

    node_rank: int


@dataclass(frozen=True)
class ForMeeting:
    """An order: forward a rank's request to the rendezvous of all islands."""

    node_rank: int
    message: ToMeeting


_Numbered = RankMetrics | RankNotice | RankOuterSync | GroupRecord | RankFile | RankPosition  # each names its rank
RankMessage = _Numbered | RankPrinted | RankFailed | RankStates
Order = NotifyAll | Reconnect | GiveUp | ForMeeting
Effect = RunEvent | FinishedStep | FilePart | Order


class AttemptState:
    """Everything known about an attempt. `now_s` is the time on any clock that never goes back, from `started_s` on.

    Adding `unix_offset_s` gives Unix time, in which nodes date failures. `seen` counts the messages of each node, for a
    controller that takes over.
    """

    def __init__(self, plan: Plan, detached: bool, started_s: float, unix_offset_s: float) -> None:
        self.failures: list[Failure] = []
        self.seen: dict[int, int] = {}
        self.has_stepped = False
        self.cannot_start_again = False  # no host is left, or the same failure would recur
        self._plan, self._detached, self._unix_offset_s = plan, detached, unix_offset_s
        self._silence = SilenceDetector(len(plan.nodes), started_s)
        self._hang = HangDetector(plan, started_s)
        self._collector = StepCollector(plan)
        self._printed = None if plan.job.is_bundled else PrintedSteps(plan, started_s)
        self._rank_at = {(rank.host, rank.local_rank): rank.rank for rank in plan.ranks}
        self._groups = TrainerGroups(plan)
        self._networks = {None, SHARED, *(node.fabric.network for node in plan.nodes if node.fabric is not None)}
        self._join_by_s = started_s + JOIN_S
        self._last_lines: dict[int, deque[str]] = {}
        self._states: dict[int, str] = {}
        self._stderr_of_broken: dict[int, str] = {}
        self._stalled: set[int] = set()  # nodes being reconnected, because nothing arrives over the old connection
        self._ended: set[int] = set()
        self._failed_s: float | None = None
        self._has_cause = False  # cached: it is read after every message, and thousands of ranks may fail

    @property
    def cause(self) -> Failure | None:
        """The failure to show first."""
        return first_cause(self.failures) if self.failures else None

    @property
    def lost_hosts(self) -> tuple[str, ...]:
        """Hosts that went down themselves, not only their agents."""
        return tuple(dict.fromkeys(each.host for each in self.failures if each.host_lost and each.host is not None))

    def unheard_s(self, now_s: float) -> float:
        """Return the longest silence among the nodes that have not ended."""
        return self._silence.longest_s(set(range(len(self._plan.nodes))) - self._ended, now_s)

    def take_slurm_word(self, word: SlurmWord) -> None:
        """Record Slurm's report as the first cause, dated like its first effect. A job that ended leaves no hosts."""
        if not self.failures:
            return
        first_s = min(failure.time_s for failure in self.failures)
        failed = {failure.host for failure in self.failures}
        down = {node.host: _NODE_WAS_DOWN for node in self._plan.nodes if _NODE_FAILED in self._last_stderr(node)}
        down |= {host: why for host, why in word.down.items() if word.job_end is not None or host in failed}
        causes: list[tuple[Node | None, str]] = [
            (node, down[node.host]) for node in self._plan.nodes if node.host in down
        ]
        if word.job_end is not None:
            causes = [(node, f"{why}; {word.job_end}") for node, why in causes] or [(None, word.job_end)]
        self.failures[:0] = [
            failure_of(node, RankFailed(None, 1, text, first_s, ()), host_lost=node is not None)
            for node, text in causes
        ]
        self.cannot_start_again = word.job_end is not None

    def is_over(self, now_s: float) -> bool:
        """Return True once every node has ended, or long enough after the first failure to learn its cause."""
        if len(self._ended) == len(self._plan.nodes):
            return True
        window_s = CAUSE_WINDOW_S if self._has_cause else ONLY_PEERS_WINDOW_S
        return self._failed_s is not None and now_s > self._failed_s + window_s

    def take(self, heard: NodeMessage, now_s: float) -> list[Effect]:
        """Return the effects of a message from a node."""
        node = self._plan.nodes[heard.node_rank]
        if heard.number is not None:
            self.seen[heard.node_rank] = heard.number
            self._silence.take_word(heard.node_rank, now_s)
            self._stalled.discard(heard.node_rank)
        if isinstance(heard.message, ToMeeting):
            return [ForMeeting(heard.node_rank, heard.message)]
        reason = self._misfit(node, heard.message)
        message = heard.message if reason is None else Unreadable(reason)
        if isinstance(message, HostCounters) and self._printed is not None:
            self._printed.take_counters(node, message)
            return []
        if isinstance(message, RankMessage):
            return list(self._take_of_ranks(node, message, now_s))
        return list(self._take_of_node(node, message, now_s))

    def take_refusal(self, node_rank: int, why: str, now_s: float) -> list[Effect]:
        """Return the effects of an invalid request that a rank of that node sent to the islands' rendezvous."""
        text = f"one of its ranks sent the rendezvous of islands an invalid request: {why}"
        return list(self._lose(self._plan.nodes[node_rank], text, now_s))

    def require_island(self, has_begun: bool, now_s: float) -> Iterator[Notice]:
        """Fail an island that takes steps, or has ended, without joining. Yield a notice if it does neither in time."""
        if has_begun or self.failures:
            return
        if self.has_stepped or len(self._ended) == len(self._plan.nodes):
            self.cannot_start_again = True
            self._fail(self._plan.nodes[0], RankFailed(None, 1, NOT_JOINED, self._unix_s(now_s), ()), now_s)
        elif now_s > self._join_by_s and self._printed is not None:
            self._join_by_s = math.inf
            yield Notice(f"after {JOIN_S / 60:.0f} min it has neither printed a step nor joined the other islands")

    def tick(self, now_s: float) -> list[Effect]:
        """Return the effects of silence up to `now_s`."""
        return [*self._notice_silence(now_s), *self._notice_hang(now_s)]

    def _misfit(self, node: Node, message: Message | LinkWord) -> str | None:
        """Return why that message cannot come from that node; None if it can."""
        ranks: tuple[int | None, ...] = ()
        if isinstance(message, RankPrinted):
            ranks = (self._rank_at.get((node.host, message.local_rank)),)
        elif isinstance(message, RankStates):
            ranks = tuple(self._rank_at.get((node.host, one.local_rank)) for one in message.states)
        elif isinstance(message, _Numbered) or (isinstance(message, RankFailed) and message.rank is not None):
            ranks = (message.rank if self._has_rank(node, message.rank) else None,)
        if None in ranks:
            return f"{type(message).__name__} of a rank that is not on this host"
        if isinstance(message, GroupRecord):
            planned = message.network in self._networks and message.net_name in (None, *get_args(NetName))
            return None if planned else f"GroupRecord on {message.network} by {message.net_name}, which no plan has"
        if isinstance(message, RankFile):
            return misfit_of_part(message)
        outer = message.outer if isinstance(message, RankMetrics | RankOuterSync) else None
        if outer is not None and not _DIGEST.fullmatch(outer.digest):
            return f"{type(message).__name__} of an outer sync with digest {shown(outer.digest)}"
        if isinstance(message, RankMetrics):
            is_last = self._plan.ranks[message.rank].pp_rank == self._plan.pp - 1
            if message.step_s <= 0 or (is_last and message.loss is None):
                return f"RankMetrics of a step of {message.step_s} s with a loss of {message.loss}"
        return None

    def _has_rank(self, node: Node, rank: int | None) -> bool:
        return rank is not None and 0 <= rank < self._plan.world_size and self._plan.ranks[rank].host == node.host

    def _take_of_ranks(self, node: Node, message: RankMessage, now_s: float) -> Iterator[Effect]:
        if isinstance(message, RankPrinted):
            yield from self._take_line(node, self._rank_at[node.host, message.local_rank], message.line, now_s)
        elif isinstance(message, RankMetrics):
            yield from self._take_metrics(node, message, now_s)
        elif isinstance(message, RankFile):
            yield file_part(message)
        elif isinstance(message, RankNotice):
            yield from (message,) if self._plan.job.is_bundled else self._groups.take_notice(message)
        elif isinstance(message, RankOuterSync):
            yield from self._collector.add_outer_sync(message)
        elif isinstance(message, GroupRecord):
            self._hang.take_group(message)
            yield from self._groups.take_group(message)
        elif isinstance(message, RankFailed):
            lines = message.last_lines or self._lines_of(message.rank)
            if message.message.startswith(_NO_MESSAGE) and lines:
                errors = [line for line in lines if _RANK_PREFIX.match(line)] or lines  # stdout may come after stderr
                message = message._replace(message=_RANK_PREFIX.sub("", errors[-1]))
            self._fail(node, message._replace(last_lines=lines), now_s)
        else:
            self._take_position_or_states(node, message)

    def _take_position_or_states(self, node: Node, message: RankPosition | RankStates) -> None:
        if isinstance(message, RankPosition):
            self._hang.take_position(message)
        else:
            self._hang.take_states({self._rank_at[node.host, one.local_rank]: one.state for one in message.states})

    def _take_of_node(self, node: Node, message: Message | LinkWord, now_s: float) -> Iterator[Effect]:
        if isinstance(message, LinkState):
            yield from self._set_state(node, message.state)
        elif isinstance(message, LinkBroken):
            self._stderr_of_broken[node.node_rank] = message.stderr
            yield from self._set_state(node, "connection lost")
        elif isinstance(message, Started):
            yield from self._set_state(node, "starting ranks")
        elif isinstance(message, RanksUp):
            yield from self._set_state(node, "ranks up")
        elif isinstance(message, NotKept):
            dropped = f"{message.messages} messages (lines and steps) were dropped for newer ones, unread"
            yield Notice(f"host {node.host}: {dropped}")
        elif isinstance(message, Stuck):
            yield Notice(f"host {node.host}: cannot be ended: {', '.join(message.processes)}")
        elif isinstance(message, Exited):
            self._ended.add(node.node_rank)
            yield from self._set_state(node, "ended")
            yield from self._groups.missing() if message.exit_code == 0 else ()
        elif isinstance(message, Unreadable | Refused):
            yield from self._lose(node, unreadable_fault(node.host, message.reason).evidence, now_s)
        elif isinstance(message, LinkClosed):
            yield from self._take_closed(node, message, now_s)

    def _take_line(self, node: Node, rank: int, line: str, now_s: float) -> Iterator[Effect]:
        self._last_lines.setdefault(rank, deque(maxlen=KEPT_LINES)).append(line[:MAX_LINE_CHARACTERS])
        yield LogLine(node.host, node.cluster, rank, line)
        step = self._printed.take(line, now_s) if self._printed is not None else None
        if step is not None:
            yield from self._take_printed(step, now_s)
        if self._states.get(node.node_rank) == "ranks up" and line.startswith(f"rank {rank} on "):
            yield from self._set_state(node, "rendezvous")

    def _take_printed(self, step: FinishedStep, now_s: float) -> Iterator[Effect]:
        """Take a step that a trainer printed. Its ranks step together, so the rank that prints speaks for all."""
        for rank in self._plan.ranks:
            self._hang.take_progress(rank.rank, step.metrics.step, now_s)
        for node in self._plan.nodes:
            yield from self._set_state(node, "stepping")
        yield from self._groups.missing()
        if self.has_stepped:  # the first step's time may include the start of the run
            self._hang.take_step(step.metrics.step_s)
        self.has_stepped = True
        yield step

    def _take_metrics(self, node: Node, metrics: RankMetrics, now_s: float) -> Iterator[Effect]:
        self._hang.take_progress(metrics.rank, metrics.step, now_s)
        yield from self._set_state(node, "stepping")
        step = self._collector.add(metrics)
        if step is not None:
            self.has_stepped = True
            self._hang.take_step(step.metrics.step_s)
            yield step

    def _set_state(self, node: Node, state: str) -> Iterator[Effect]:
        if self._states.get(node.node_rank) != state:
            self._states[node.node_rank] = state
            yield NodeState(node.host, node.cluster, state)

    def _take_closed(self, node: Node, closed: LinkClosed, now_s: float) -> Iterator[Effect]:
        lines = tuple((closed.stderr or self._last_stderr(node)).splitlines()[-LAST_LINES:])
        if any(_STEP_CANCELLED.search(line) for line in lines):
            text = "the node agent ended before its ranks: its step of the Slurm job was cancelled (`scancel`)"
        elif closed.agent_ended and any(_STEP_KILLED.search(line) for line in lines):
            text = "the node agent ended before its ranks: its step of the Slurm job was killed, as `scancel` does"
        elif closed.agent_ended:
            text = "the node agent ended before its ranks: it was killed, or asked to stop by someone else"
        else:
            server = "node daemon of Slurm" if node.access.transport == "slurm" else "sshd"
            text = f"lost the node agent (exit code {closed.exit_code}): the host or its {server} went away"
        yield from self._lose(node, text, now_s, lines, host_lost=not closed.agent_ended)

    def _last_stderr(self, node: Node) -> str:
        """Return the stderr of the node's last broken connection."""
        return self._stderr_of_broken.get(node.node_rank, "")

    def _notice_silence(self, now_s: float) -> Iterator[Effect]:
        """Treat a silent host (no power, no link) as a failure. A detached run continues without a controller."""
        for node_rank, silent_s in self._silence.silent(now_s, STALLED_S).items():
            node = self._plan.nodes[node_rank]
            if node_rank in self._ended:
                continue
            if silent_s <= SILENCE_LIMIT_S:
                if node_rank not in self._stalled and node.access.transport == "ssh":
                    self._stalled.add(node_rank)
                    yield Reconnect(node_rank)
                continue
            if self._detached and not self.failures:
                self._silence.take_word(node_rank, now_s)
                yield Notice(f"host {node.host}: silent for {silent_s:.0f} s; reconnecting")
                yield Reconnect(node_rank)
                continue
            yield GiveUp(node_rank)
            text = f"the node agent has been silent for {silent_s:.0f} s: the host or its network is down"
            yield from self._lose(node, text, now_s, host_lost=True)

    def _notice_hang(self, now_s: float) -> Iterator[Effect]:
        """If ranks neither end nor finish a step, find the rank that holds up the others."""
        if self.failures:
            return
        if self._hang.asks_now(now_s):
            yield NotifyAll(Stacks())
        hung = self._hang.verdict({rank: tuple(lines) for rank, lines in self._last_lines.items()}, now_s)
        if hung is not None:
            host = None if hung.rank is None else self._plan.ranks[hung.rank].host
            node = next((node for node in self._plan.nodes if node.host == host), None)
            lines = hung.stack or self._lines_of(hung.rank)
            self._fail(node, RankFailed(hung.rank, 1, hung.text, self._unix_s(now_s), lines), now_s)

    def _lose(
        self, node: Node, text: str, now_s: float, lines: tuple[str, ...] = (), host_lost: bool = False
    ) -> Iterator[Effect]:
        """Record that the node failed, unless it has already ended. Expect nothing more from it."""
        if node.node_rank not in self._ended:
            self._ended.add(node.node_rank)
            if host_lost:
                yield from self._set_state(node, "lost")
            self._fail(node, RankFailed(None, 1, text, self._unix_s(now_s), lines), now_s, host_lost)

    def _fail(self, node: Node | None, failed: RankFailed, now_s: float, host_lost: bool = False) -> None:
        lines = tuple(line[:MAX_LINE_CHARACTERS] for line in failed.last_lines[-KEPT_LINES:])
        failed = failed._replace(message=failed.message[:MAX_LINE_CHARACTERS], last_lines=lines)
        failure = failure_of(node, failed, host_lost)
        self.failures.append(failure)
        self._has_cause = self._has_cause or not is_consequence(failure)
        self._failed_s = now_s if self._failed_s is None else self._failed_s

    def _lines_of(self, rank: int | None) -> tuple[str, ...]:
        return () if rank is None else tuple(self._last_lines.get(rank, ()))[-LAST_LINES:]

    def _unix_s(self, now_s: float) -> float:
        return now_s + self._unix_offset_s
