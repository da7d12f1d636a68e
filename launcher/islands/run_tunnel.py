"""The encrypted tunnel of a run of islands: an end on each host, which an agent without ranks holds for the whole run.

Islands come and go inside it. An island that has lost an end gets new ones, with new keys, before it starts again. The
other islands' ends stay, and take the new peers for the old. A hub that is on no island is brought back meanwhile.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock, Thread

from holmes_core.errors import HolmesError
from holmes_core.records.islands import island_name
from holmes_core.records.plan import TUNNEL_NETDEV, IslandsPlan, Node, TunnelHub
from holmes_runtime.config.messages import Destination, Meet, Met, Ready, Refused, SocketAddress
from holmes_runtime.config.node_config import NodeConfig, TunnelConfig, TunnelEnd, TunnelFault
from launcher.nodes.interrupts import Interrupts
from launcher.nodes.node_checks import foreign_address
from launcher.nodes.node_link import LinkClosed, NodeMessage, Unreadable
from launcher.nodes.preflight import PROBE_AGAIN, Fault
from launcher.nodes.reach_checks import ReachCheck
from launcher.nodes.start import RunningNodes, await_answers, follow, introduce, open_all, try_to_reach
from launcher.nodes.stop import stop
from launcher.prepare.bundle import NODE_CONFIG_FILE, NodeBundle, Parcel
from launcher.prepare.prepare import SILENCE_LIMIT_S, runtime_files
from launcher.supervise.attempt_state import STALLED_S
from launcher.supervise.silence import SilenceDetector

HUB_RETRY_S = 5.0
POLL_S = 0.1
LOST_S = SILENCE_LIMIT_S + STALLED_S  # a host that is down is noticed before, by the agent of its ranks


def tunnel_bundles(plan: IslandsPlan, number: int, run_id: str, start: int = 0) -> tuple[NodeBundle, ...]:
    """Return the tunnel agents' files and commands, for the `start`th start of island `number`'s nodes or the hub's."""
    everyone = [node for nodes in plan.tunnel_nodes for node in nodes]
    own_id = f"{run_id}-{island_name(number) if number < len(plan.islands) else 'hub'}-tunnel"
    addresses = tuple(node.shared_address for node in everyone)
    runtime = Parcel(runtime_files())

    def bundle(node: Node) -> NodeBundle:
        config = NodeConfig(
            run_id=own_id,
            host=node.host,
            node_rank=addresses.index(node.shared_address),
            num_ranks=0,
            node_addresses=addresses,
            master_port=0,
            addresses={TUNNEL_NETDEV: node.shared_address},
            gpus=(),
            checkpoint_path=None,
            inputs=(),
            environment={},
            secrets=(),
            silence_limit_s=SILENCE_LIMIT_S,
            detached=False,
            tunnel=_tunnel_config(plan.tunnel_hub, node, everyone),
        )
        without_ranks = node.model_copy(update={"environment": ()})
        return NodeBundle(without_ranks, own_id, start, {NODE_CONFIG_FILE: config.to_json()}, frozenset(), (runtime,))

    return tuple(map(bundle, plan.tunnel_nodes[number]))


def _tunnel_config(hub: TunnelHub | None, node: Node, everyone: Sequence[Node]) -> TunnelConfig:
    """Return the tunnel as that node sees it."""
    if hub is None:
        return TunnelConfig(TUNNEL_NETDEV, tuple(map(_endpoint, everyone)))
    at = next(rank for rank, each in enumerate(everyone) if each.host == hub.node.host)
    endpoints = [_endpoint(each) for each in everyone]
    if node.cluster != hub.node.cluster:
        endpoints[at] = hub.address
    relayed = tuple(rank for rank, each in enumerate(everyone) if hub.lies_between(node, each))
    return TunnelConfig(TUNNEL_NETDEV, tuple(endpoints), at, relayed)


@dataclass
class _Ends:
    """The agents that hold the ends of one island, or of the hub, and what they have reported."""

    nodes: RunningNodes
    silence: SilenceDetector
    made: dict[int, TunnelEnd] = field(default_factory=dict)
    listeners: dict[int, SocketAddress] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)  # nodes to which a new connection is being made
    lost: tuple[int, str] | None = None  # the node, and why


class RunTunnel:
    """The tunnel of all islands, whose threads use it one at a time; none where their plan does not encrypt."""

    def __init__(self, plan: IslandsPlan, run_id: str) -> None:
        self._plan, self._run_id = plan, run_id
        self._ends: dict[int, _Ends] = {}  # by number in `plan.tunnel_nodes`: of each island, then of the hub
        self._starts = [0] * len(plan.tunnel_nodes)
        self._hub = len(plan.islands) if len(plan.tunnel_nodes) > len(plan.islands) else None
        self._return_of_hub: Thread | None = None
        self._for_hub, self._notices = Interrupts(), list[str]()
        self._lock = Lock()

    def enter(self, island: int, interrupts: Interrupts) -> list[Fault]:
        """Make the island's ends unless all of them stand, and introduce them to all others; return the faults.

        The first time the island's hosts try to reach all others, which takes the hub. Raises KeyboardInterrupt.
        """
        if not self._plan.encrypts:
            return []
        while not self._lock.acquire(timeout=POLL_S):  # the hub may be coming back
            interrupts.heed()
        try:
            faults = []
            if self._hub is not None and not self._starts[self._hub]:
                faults = self._enter(self._hub, interrupts)
            return faults or self._enter(island, interrupts)
        finally:
            self._lock.release()

    def _enter(self, number: int, interrupts: Interrupts) -> list[Fault]:
        if number in self._ends:
            self._take_messages(self._ends[number], STALLED_S, time.monotonic())
            if self._ends[number].lost is None:
                return []
            stop(self._ends[number].nodes)
        bundles = tunnel_bundles(self._plan, number, self._run_id, self._starts[number])
        self._starts[number] += 1
        ends = self._ends[number] = _new(bundles, interrupts)
        ends.lost = (0, "is not there")  # until all of them are
        faults = [*open_all(ends.nodes, _unseen), *self._take_ends(number)]
        if not faults:
            self._introduce_to_others(number)
            faults += introduce(ends.nodes, self._made(), _unseen)
        ends.lost = (0, faults[0].evidence) if faults else None
        if not faults and self._starts[number] == 1:
            faults += try_to_reach(ends.nodes, list(self._tries(number)), _unseen)
        return faults

    def lost(self, island: int) -> tuple[int, str] | None:
        """Return the node of the island whose end is lost, and why; None while all stand."""
        return self._ends[island].lost if island in self._ends else None

    def look(self, now_s: float) -> list[str]:
        """Take what the agents have reported, unless an island is entering. Call this regularly.

        Return sentences for the user about the hub; while it is lost, islands do without those behind it.
        """
        if not self._lock.acquire(blocking=False):
            return []
        try:
            for ends in self._ends.values():
                self._take_messages(ends, LOST_S, now_s)
            self._look_after_hub()
            notices, self._notices = self._notices, []
            return notices
        finally:
            self._lock.release()

    def _look_after_hub(self) -> None:
        """Start to bring the hub back, once it is lost."""
        if self._hub is None or self._return_of_hub is not None or (lost := self.lost(self._hub)) is None:
            return
        self._notices.append(f"tunnel hub {self._ends[self._hub].nodes.host(0)} {lost[1]}; it is started again")
        self._return_of_hub = Thread(target=self._bring_back, args=(self._hub,), daemon=True)
        self._return_of_hub.start()

    def _bring_back(self, hub: int) -> None:
        """Try until the hub has a new end that all others know, or the run ends."""
        with contextlib.suppress(KeyboardInterrupt):
            while not self._is_back(hub):
                self._for_hub.pause(HUB_RETRY_S)

    def _is_back(self, hub: int) -> bool:
        """Try once."""
        with self._lock:
            try:
                if self._enter(hub, self._for_hub):
                    return False
            except (HolmesError, OSError):  # such as too many open files here
                return False
            self._notices.append(f"tunnel hub {self._ends[hub].nodes.host(0)} relays again")
            self._return_of_hub = None
            return True

    def leave(self) -> None:
        """Drop all connections; the agents hold their ends until `take_over` comes soon."""
        for ends in self._ends.values():
            ends.nodes.close()

    def take_over(self, interrupts: Sequence[Interrupts]) -> None:
        """Reconnect to the agents of a run just left. Raises HolmesError if none of an island's is reached."""
        groups = [*interrupts, self._for_hub][: len(self._plan.tunnel_nodes)]
        for number, each in enumerate(groups if self._plan.encrypts else ()):
            self._ends[number] = _new(tunnel_bundles(self._plan, number, self._run_id), each)
            self._starts[number] = 1
            try:
                follow(self._ends[number].nodes, {})
            except HolmesError as error:
                if number != self._hub:
                    raise
                self._ends[number].lost = (0, f"is lost: {error.what}")  # and is brought back
            for fault in self._take_ends(number):
                self._ends[number].lost = (0, fault.evidence)

    def stop(self) -> tuple[str, ...]:
        """Take the tunnel down on all hosts; return a line for each that has a process left."""
        self._for_hub.tell()
        if (returning := self._return_of_hub) is not None:
            returning.join()
        with ThreadPoolExecutor(max(len(self._ends), 1)) as pool:
            return tuple(
                line for lines in pool.map(lambda ends: stop(ends.nodes), self._ends.values()) for line in lines
            )

    def _take_ends(self, number: int) -> Iterator[Fault]:
        """Wait for the ends of an island or the hub, and yield why there is none on a host."""
        ends = self._ends[number]
        answers, faults = await_answers(ends.nodes, Ready, _unseen)
        yield from faults
        for rank, answer in answers.items():
            node = ends.nodes.links[rank].bundle.node
            for why in foreign_address(_endpoint(node), answer.facts):
                yield Fault("encryption", node.host, why, PROBE_AGAIN)
            if isinstance(answer.tunnel, TunnelEnd):
                ends.made[rank] = answer.tunnel
                ends.listeners.update((rank, each) for each in answer.listeners.values())
            elif isinstance(answer.tunnel, TunnelFault):
                yield Fault("encryption", node.host, answer.tunnel.evidence, answer.tunnel.remedy)

    def _made(self) -> list[TunnelEnd | None]:
        """Return the ends of all hosts, in the order of their addresses."""
        made = {number: ends.made for number, ends in self._ends.items()}
        groups = enumerate(self._plan.tunnel_nodes)
        return [made.get(number, {}).get(rank) for number, nodes in groups for rank in range(len(nodes))]

    def _introduce_to_others(self, number: int) -> None:
        """Send all ends to the hosts of the others, whose answers `look` takes."""
        made = Meet(tuple(self._made()))
        for other, ends in self._ends.items():
            if other != number:
                ends.nodes.send(made)

    def _tries(self, number: int) -> Iterator[ReachCheck]:
        """Yield a connection from each host of an island to each of the others that have entered."""
        others = [ends for other, ends in self._ends.items() if other != number]
        for link in self._ends[number].nodes.links:
            here = link.bundle.node
            for there, (address, port) in (
                (ends.nodes.host(rank), at) for ends in others for rank, at in ends.listeners.items()
            ):
                destination = Destination(f"{there} in the tunnel", here.shared_address, address, port)
                yield ReachCheck(here.node_rank, 0, destination)

    def _take_messages(self, ends: _Ends, limit_s: float, now_s: float) -> None:
        """Take all messages of an island's agents; note an end that is lost, or silent for longer than `limit_s`."""
        while not ends.nodes.heard.empty():
            heard = ends.nodes.heard.get()
            if heard.number is not None:
                ends.silence.take_word(heard.node_rank, heard.heard_s)
                ends.dropped.discard(heard.node_rank)
            if (why := _loss(heard)) is not None:
                ends.lost = ends.lost or (heard.node_rank, why)
        for rank, silent_s in ends.silence.silent(now_s, STALLED_S).items():
            if silent_s > limit_s:
                ends.lost = ends.lost or (rank, f"no word from its end of the tunnel for {silent_s:.0f} s")
            elif rank not in ends.dropped:
                ends.dropped.add(rank)
                ends.nodes.links[rank].drop()


def _new(bundles: Sequence[NodeBundle], interrupts: Interrupts) -> _Ends:
    return _Ends(RunningNodes(bundles, False, interrupts), SilenceDetector(len(bundles), time.monotonic()))


def _endpoint(node: Node) -> str:
    assert node.tunnel_endpoint is not None  # the plan holds it
    return node.tunnel_endpoint


def _loss(heard: NodeMessage) -> str | None:
    """Return the reason if that message shows that a node has lost its end of the tunnel."""
    message, reason = heard.message, None
    if isinstance(message, LinkClosed):
        reason = "the agent that holds it is gone"
    elif isinstance(message, Unreadable | Refused):
        reason = message.reason
    elif isinstance(message, Met) and message.fault is not None:
        reason = message.fault.evidence
    return reason and f"lost its end of the tunnel: {reason}"


def _unseen(_host: str, _state: str) -> None:
    """Show nothing: the agents of the ranks show how their hosts come up."""
