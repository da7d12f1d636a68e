"""Start every node's agent, all at once, and hold back the ranks until every check has passed."""

from __future__ import annotations

import contextlib
import queue
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from typing import Protocol, TypeVar

from holmes_core.errors import HolmesError, HostError
from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import Node, Plan
from holmes_core.remote.transport import last_lines
from holmes_runtime.config.islands.rendezvous_messages import FromMeeting, ToMeeting
from holmes_runtime.config.messages import (
    Command,
    Go,
    Meet,
    Message,
    Met,
    Reach,
    Reached,
    Ready,
    Refused,
    Save,
)
from holmes_runtime.config.node_config import TunnelEnd
from launcher.nodes.interrupts import Interrupts
from launcher.nodes.node_checks import check_facts
from launcher.nodes.node_link import LinkClosed, LinkState, NodeLink, NodeMessage, Unreadable
from launcher.nodes.preflight import Fault, Preflight, host_fault, unreadable_fault
from launcher.nodes.reach_checks import ReachCheck, rounds_of, tries_of
from launcher.prepare.bundle import NodeBundle
from launcher.prepare.prepare import Attempt

READY_TIMEOUT_S = 60.0
POLL_S = 0.1
AT_ONCE = 32  # hosts handled in parallel
SHOWN_LINES = 3  # of a shell's stderr; docker's last line is often "See 'docker run --help'"
PREPARED = "make `activate:` and `container:` of hosts.yaml work there in a shell without a terminal; then launch again"
SECRET_BYTES = 32

OnState = Callable[[str, str], None]
Reply = Callable[[FromMeeting], None]
Answer = TypeVar("Answer", bound=Message)
Result = TypeVar("Result")


class RankRendezvous(Protocol):
    """A rendezvous that ranks of several launches share."""

    def take(self, reply: Reply, message: ToMeeting) -> str | None:
        """Answer through `reply`, now or later. Return the reason if the request is refused."""


class RunningNodes:
    """One attempt's agents and a queue of all their messages. `meeting` is the rendezvous of an island's ranks."""

    def __init__(
        self,
        bundles: Sequence[NodeBundle],
        detached: bool,
        interrupts: Interrupts,
        meeting: RankRendezvous | None = None,
    ) -> None:
        self.interrupts = interrupts
        self.heard: queue.Queue[NodeMessage] = queue.Queue()
        self.master_port: int | None = None  # for the rendezvous, once the first node has found a free one
        self.links = tuple(NodeLink(bundle, self.heard, detached) for bundle in bundles)
        self._meeting = meeting
        self._asked_to_save = False

    def host(self, node_rank: int) -> str:
        return self.links[node_rank].bundle.node.host

    def hear(self, within_s: float) -> NodeMessage | None:
        """Return the next message, or None if there is none within `within_s`. Raises KeyboardInterrupt."""
        until_s = time.monotonic() + within_s
        while True:
            self.interrupts.heed()
            left_s = max(until_s - time.monotonic(), 0.0)
            with contextlib.suppress(queue.Empty):
                return self.heard.get(timeout=min(left_s, POLL_S))
            if left_s == 0.0:
                return None

    def send(self, command: Command) -> None:
        """Send the same command to every agent."""
        for link in self.links:
            if link.opened:
                link.send(command)

    def meet(self, node_rank: int, message: ToMeeting) -> str | None:
        """Forward a rank's request to the rendezvous of islands; return the reason if it is refused."""
        return None if self._meeting is None else self._meeting.take(self.links[node_rank].send, message)

    def go(self) -> None:
        """Start the ranks. Call only after every check has passed."""
        assert self.master_port is not None  # its absence is a fault that cannot be forced
        self.send(Go(self.master_port, secrets.token_hex(SECRET_BYTES)))

    def save(self) -> None:
        """Have the ranks finish the step, save and end. It is sent once: ranks take a second one to mean "at once"."""
        if not self._asked_to_save:
            self._asked_to_save = True
            self.send(Save())

    def each(self, act: Callable[[NodeLink], Result]) -> list[Result]:
        """Call `act` for all links in parallel, and return the results in order of the links."""
        with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
            return list(pool.map(act, self.links))

    def close(self) -> None:
        for link in self.links:
            link.close()


def start(
    nodes: RunningNodes,
    plan: Plan,
    attempt: Attempt,
    inventory: Inventory | None,
    forced: frozenset[str],
    on_state: OnState,
) -> Preflight:
    """Start every agent and check the nodes. If all pass, `nodes.go()` starts the ranks. Raises KeyboardInterrupt."""
    faults = open_all(nodes, on_state)
    answers, silent = await_answers(nodes, Ready, on_state)
    faults += silent
    if not faults:
        faults = [*check_facts(plan, attempt, inventory, answers), *_introduce(nodes, answers, on_state)]
        if not any(fault.check == "encryption" for fault in faults):
            faults += _check_network(nodes, plan, answers, on_state)
    if 0 in answers:
        nodes.master_port = answers[0].master_port
    folders = (answer.facts.checkpoint for answer in answers.values())
    return Preflight(tuple(faults), forced, frozenset(step for each in folders if each for step in each.steps))


def open_all(nodes: RunningNodes, on_state: OnState) -> list[Fault]:
    """Start all agents, and return a fault for each host that failed. One failure hides no other."""
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        jobs: list[Future[None]] = [pool.submit(link.start) for link in nodes.links]
        while wait_for(jobs, timeout=POLL_S).not_done:
            nodes.interrupts.heed()
            _show_states(nodes, on_state)
    errors = [job.exception() for job in jobs]
    for error in errors:
        if error is not None and not isinstance(error, HostError):
            raise error
    return [host_fault(error) for error in errors if isinstance(error, HostError)]


def _show_states(nodes: RunningNodes, on_state: OnState) -> None:
    """Show the connection states in the queue, and leave other messages there."""
    for _ in range(nodes.heard.qsize()):
        heard = nodes.heard.get()
        if isinstance(heard.message, LinkState):
            on_state(nodes.host(heard.node_rank), heard.message.state)
        else:
            nodes.heard.put(heard)


def await_answers(nodes: RunningNodes, kind: type[Answer], on_state: OnState) -> tuple[dict[int, Answer], list[Fault]]:
    """Return the message of that kind from each started node, and a fault for each node that sends none."""
    opened = {rank for rank, link in enumerate(nodes.links) if link.opened}
    answers: dict[int, Answer] = {}
    faults: dict[int, Fault] = {}
    deadline = time.monotonic() + READY_TIMEOUT_S
    while waiting := opened - set(answers) - set(faults):
        heard = nodes.hear(max(deadline - time.monotonic(), 0.0))
        if heard is None:
            late = f"not ready after {READY_TIMEOUT_S:g} s"
            return answers, [*faults.values(), *(Fault("agent", nodes.host(rank), late) for rank in sorted(waiting))]
        rank, message, host = heard.node_rank, heard.message, nodes.host(heard.node_rank)
        if isinstance(message, LinkState):
            on_state(host, message.state)
        elif isinstance(message, kind):
            answers[rank] = message
            deadline = time.monotonic() + READY_TIMEOUT_S
        elif isinstance(message, Unreadable | Refused):
            faults[rank] = unreadable_fault(host, message.reason)
        elif isinstance(message, LinkClosed):
            faults[rank] = _not_started(nodes.links[rank].bundle.node, message)
    return answers, [faults[rank] for rank in sorted(faults)]


def _not_started(node: Node, closed: LinkClosed) -> Fault:
    """Return the fault of a node whose agent did not start, with the last lines of its shell, wrapper or container."""
    output = " | ".join(last_lines(closed.stderr, SHOWN_LINES)) or "no message"
    text = f"{node.access.python_in_words} could not start the node agent (exit code {closed.exit_code}): {output}"
    plain = node.access.activate is None and node.access.container is None
    return Fault("agent", node.host, text, None if plain else PREPARED)


def _introduce(nodes: RunningNodes, answers: Mapping[int, Ready], on_state: OnState) -> Iterator[Fault]:
    """Send every node the tunnel ends of the others, if each node has one."""
    ends = tuple(answers[rank].tunnel for rank in range(len(nodes.links)))
    made = tuple(end for end in ends if isinstance(end, TunnelEnd))
    if made and len(made) == len(ends):
        yield from introduce(nodes, made, on_state)


def introduce(nodes: RunningNodes, ends: Sequence[TunnelEnd | None], on_state: OnState) -> Iterator[Fault]:
    """Send every node the ends of the tunnel, and yield a fault for each node that cannot use them."""
    nodes.send(Meet(tuple(ends)))
    met, faults = await_answers(nodes, Met, on_state)
    yield from faults
    for rank, answer in met.items():
        if answer.fault is not None:
            yield Fault("encryption", nodes.host(rank), answer.fault.evidence, answer.fault.remedy)


def _check_network(nodes: RunningNodes, plan: Plan, answers: Mapping[int, Ready], on_state: OnState) -> Iterator[Fault]:
    """Have every node connect to the rendezvous and, on each group's interfaces, to the group's next member."""
    if answers[0].master_port is None:
        return
    for tries in rounds_of(plan, tries_of(plan, answers, answers[0].master_port)):
        yield from try_to_reach(nodes, tries, on_state)


def try_to_reach(nodes: RunningNodes, tries: Sequence[ReachCheck], on_state: OnState) -> Iterator[Fault]:
    """Have all nodes try these connections at once, and yield a fault for each that fails."""
    for rank in range(len(nodes.links)):
        nodes.links[rank].send(Reach(tuple(each.destination for each in tries if each.here == rank)))
    reached, faults = await_answers(nodes, Reached, on_state)
    yield from faults
    for rank, answer in reached.items():
        yield from (Fault("network", nodes.host(rank), text) for text in answer.faults)


def follow(nodes: RunningNodes, messages_seen: Mapping[int, int]) -> None:
    """Reconnect to running agents. Raises HolmesError if none can be reached."""

    def reconnect(link: NodeLink) -> HolmesError | None:
        try:
            link.follow(messages_seen.get(link.bundle.node.node_rank, 0))
        except HolmesError as error:
            return error
        return None

    errors = [error for error in nodes.each(reconnect) if error is not None]
    if len(errors) == len(nodes.links):
        raise HolmesError(errors[0].what, errors[0].hint, errors[0].exit_code)
