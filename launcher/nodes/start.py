"""Start every node's agent, all at once, and hold back the ranks until every check has passed."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from itertools import pairwise
from typing import Any

from holmes_core.errors import HolmesError, HostError
from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import Plan
from launcher.nodes.node_link import Event, NodeLink
from launcher.nodes.preflight import Fault, Preflight, check_facts, host_fault
from launcher.prepare.bundle import NodeBundle

READY_TIMEOUT_S = 60.0
AT_ONCE = 32

OnState = Callable[[str, str], None]


class RunningNodes:
    """The agents of one attempt, and their events in one queue."""

    def __init__(self, bundles: Sequence[NodeBundle], detached: bool) -> None:
        self.events: queue.Queue[Event] = queue.Queue()
        self.links = tuple(NodeLink(bundle, self.events, detached) for bundle in bundles)
        self._asked_to_save = False

    def host(self, node_rank: int) -> str:
        return self.links[node_rank].bundle.node.host

    def send(self, **command: Any) -> None:
        """The same command to every agent."""
        for link in self.links:
            if link.opened:
                link.send(**command)

    def save(self) -> None:
        """Have the ranks finish the step, save and end. Asked once: ranks take a second time for "at once"."""
        if not self._asked_to_save:
            self._asked_to_save = True
            self.send(do="save")

    def each(self, act: Callable[[NodeLink], Any], links: Sequence[NodeLink] | None = None) -> list[Any]:
        """What `act` gives for every link, many at a time, in order."""
        with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
            return list(pool.map(act, self.links if links is None else links))

    def close(self) -> None:
        """Drop all connections."""
        for link in self.links:
            link.close()


def start(
    nodes: RunningNodes, plan: Plan, inventory: Inventory | None, forced: frozenset[str], on_state: OnState
) -> Preflight:
    """Bring every node to ready, check, and let the ranks go; the checks, of which a failed one lets none go."""
    faults = _open_all(nodes, on_state)
    answers: dict[int, dict[str, Any]] = {}
    if not faults:
        answers, faults = _await(nodes, "ready", on_state)
    if not faults:
        faults = list(check_facts(plan, inventory, answers))
        master_port = answers[0]["master_port"]
        if master_port is not None:
            _ask_to_reach(nodes, plan, answers)
            reached, more = _await(nodes, "reached", on_state)
            faults += more
            faults += [
                Fault("network", nodes.host(rank), text) for rank, data in reached.items() for text in data["faults"]
            ]
    preflight = Preflight(tuple(faults), forced, answers[0].get("master_port") if 0 in answers else None)
    if preflight.passed:
        nodes.send(do="go", master_port=preflight.master_port)
    return preflight


def _open_all(nodes: RunningNodes, on_state: OnState) -> list[Fault]:
    """Start all agents; a fault for each host where that failed. One failure hides no other."""
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        jobs: list[Future[None]] = [pool.submit(link.start) for link in nodes.links]
        while wait_for(jobs, timeout=0.1).not_done:
            _show_states(nodes, on_state)
    errors = [job.exception() for job in jobs]
    for error in errors:
        if error is not None and not isinstance(error, HostError):
            raise error
    return [host_fault(error) for error in errors if isinstance(error, HostError)]


def _show_states(nodes: RunningNodes, on_state: OnState) -> None:
    """Show states that have come; what else has come stays in the queue."""
    for _ in range(nodes.events.qsize()):
        event = nodes.events.get()
        if event.kind == "state":
            on_state(nodes.host(event.node_rank), event.data["state"])
        else:
            nodes.events.put(event)


def _await(nodes: RunningNodes, kind: str, on_state: OnState) -> tuple[dict[int, dict[str, Any]], list[Fault]]:
    """Every node's event of that kind, and a fault for each node that sends none."""
    answers: dict[int, dict[str, Any]] = {}
    faults: dict[int, Fault] = {}
    while waiting := set(range(len(nodes.links))) - set(answers) - set(faults):
        try:
            event = nodes.events.get(timeout=READY_TIMEOUT_S)
        except queue.Empty:
            late = f"not ready after {READY_TIMEOUT_S:g} s"
            return answers, [*faults.values(), *(Fault("agent", nodes.host(rank), late) for rank in sorted(waiting))]
        if event.kind == "state":
            on_state(nodes.host(event.node_rank), event.data["state"])
        elif event.kind == kind:
            answers[event.node_rank] = event.data
        elif event.kind == "gone":
            faults[event.node_rank] = Fault("agent", nodes.host(event.node_rank), _why_gone(nodes, event))
    return answers, list(faults.values())


def _why_gone(nodes: RunningNodes, event: Event) -> str:
    python = nodes.links[event.node_rank].bundle.node.access.python
    lines = event.data["stderr"].strip().splitlines()
    last = lines[-1] if lines else "no message"
    return f"`{python}` could not start the node agent (exit code {event.data['exit_code']}): {last}"


def _ask_to_reach(nodes: RunningNodes, plan: Plan, answers: Mapping[int, Mapping[str, Any]]) -> None:
    """Every node tries the rendezvous, and the next member of each of its groups on the group's interfaces."""
    first = plan.nodes[0]
    places: dict[int, list[list[Any]]] = {}
    for node in plan.nodes:
        port = answers[0]["master_port"]
        places[node.node_rank] = [["the rendezvous", node.shared_address, first.shared_address, port]]
    for here, interface, there, other in sorted(set(_neighbours(plan))):
        source, target = answers[here]["doors"].get(interface), answers[there]["doors"].get(other)
        if source and target:
            what = f"{nodes.host(there)} over {interface} to {other}"
            places[here].append([what, source[0], target[0], target[1]])
    for link in nodes.links:
        link.send(do="reach", places=places[link.bundle.node.node_rank])


def _neighbours(plan: Plan) -> Iterator[tuple[int, str, int, str]]:
    """(node, interface, next node, its interface) for members of a group that follow one another, as on a ring."""
    node_of = {node.host: node.node_rank for node in plan.nodes}
    nodes = [node_of[rank.host] for rank in plan.ranks]
    for group in plan.groups:
        members = list(zip((nodes[rank] for rank in group.ranks), group.interfaces, strict=True))
        for (here, interface), (there, other) in pairwise([*members, members[0]]):
            if here != there:
                yield here, interface, there, other


def follow(nodes: RunningNodes, events_seen: Mapping[int, int]) -> None:
    """Come back to agents that run. Raises HolmesError when none of them is reached."""

    def come_back(link: NodeLink) -> HostError | None:
        try:
            link.follow(events_seen.get(link.bundle.node.node_rank, 0))
        except HostError as error:
            return error
        return None

    errors = [error for error in nodes.each(come_back) if error is not None]
    if len(errors) == len(nodes.links):
        raise HolmesError(errors[0].what, errors[0].hint, errors[0].exit_code)
