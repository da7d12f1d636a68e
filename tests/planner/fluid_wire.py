"""A plan's pipelines on the wire as the inventory has it, by a fluid simulation that shares no code with the planner's.

Each message under way gets a max-min fair share of the sender's NIC, the receiver's NIC, the path that was measured
between their two hosts, the trunk between their clusters, and the uplinks of both. A rank runs the actions of its
schedule in order and sends without waiting; messages between two ranks leave one after another. Gradients and the
update are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from math import inf

from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import Plan
from holmes_runtime.config.schedule import Action, ActionKind, make_schedule

PAYLOAD = 1448 / 1538  # of an Ethernet frame of 1500 bytes
VALUE_BYTES = 4  # fp32, as on CPUs


@dataclass
class Wire:
    """The rates of an inventory, in bytes/s by resource, and the latency by pair of hosts."""

    rates: dict[Hashable, float] = field(default_factory=dict)
    latency_s: dict[frozenset[str], float] = field(default_factory=dict)


def wire_of(inventory: Inventory) -> Wire:
    """NICs at what their speed leaves for payload, pairs of hosts at their median, trunks as stated or measured."""
    wire = Wire()
    for host in inventory.hosts:
        for netdev in host.netdevs:
            for way in ("out", "in"):
                wire.rates[host.name, netdev.name, way] = PAYLOAD * (netdev.speed_bytes_per_s or inf)
    best: dict[tuple[str, str], float] = {}
    for link in inventory.links:
        ends = link.hosts if link.direction == "forward" else link.hosts[::-1]
        best[ends] = max(best.get(ends, 0.0), link.bandwidth_bytes_per_s.median)
        if link.latency_s is not None:
            wire.latency_s[frozenset(ends)] = link.latency_s.median
    wire.rates.update({("path", *ends): rate for ends, rate in best.items()})
    for trunk in inventory.trunks:
        rate = trunk.bandwidth_bytes_per_s * (PAYLOAD if trunk.source == "hosts.yaml" else 1.0)
        first, last = trunk.clusters[0], trunk.clusters[-1]
        ways = [(first, last), (last, first)] if first != last else [(first, "out"), ("in", first)]
        wire.rates.update({("trunk", *way): rate for way in ways})
    return wire


@dataclass
class Message:
    """One message: whom it is for, what it uses, and the bytes still to be sent."""

    receiver: tuple[int, int]
    input: tuple[str, int, int]
    uses: tuple[Hashable, ...]
    latency_s: float
    left_bytes: float


class FluidRun:
    """All replicas of a plan at once; `step_s` runs them."""

    def __init__(self, inventory: Inventory, plan: Plan) -> None:
        self.plan, self.wire = plan, wire_of(inventory)
        self.at = {(rank.dp_rank, rank.pp_rank): rank for rank in plan.ranks}
        assert plan.tp == 1
        assert plan.job.compute.emulate is not None
        self.forward_s = plan.job.compute.emulate.forward_s_per_layer * plan.micro_batch_size
        self.backward_s = plan.job.compute.emulate.backward_s_per_layer * plan.micro_batch_size
        self.layers = [stage.stop_layer - stage.first_layer for stage in plan.stages]
        model = plan.job.model
        self.size = float(VALUE_BYTES * plan.micro_batch_size * model.seq_length * model.hidden_size)
        self.todo: dict[tuple[int, int], list[Action]] = {}
        for replica, count in enumerate(plan.microbatches):
            made = make_schedule(plan.schedule, plan.pp, count, plan.chunks, plan.extra_in_flight)
            self.todo.update({(replica, rank): list(actions) for rank, actions in made.items()})
        self.acting: dict[tuple[int, int], float] = {}
        self.there: dict[tuple[int, tuple[str, int, int]], float] = {}  # when an input arrives
        self.queues: defaultdict[tuple[tuple[int, int], tuple[int, int]], list[Message]] = defaultdict(list)

    def step_s(self) -> float:
        """Seconds until every rank has run its last action."""
        now_s = 0.0
        while any(self.todo.values()):
            self._begin(now_s)
            rates = self._rates()
            ends = [*self.acting.values(), *(s for s in self.there.values() if s > now_s)]
            ends += [now_s + self.queues[link][0].left_bytes / rate for link, rate in rates.items()]
            next_s = min(ends)
            for link, rate in rates.items():
                self.queues[link][0].left_bytes -= rate * (next_s - now_s)
            now_s = next_s
            for link in rates:
                if self.queues[link][0].left_bytes <= 1e-6 * self.size:
                    sent = self.queues[link].pop(0)
                    self.there[sent.receiver[0], sent.input] = now_s + sent.latency_s
            for rank in [rank for rank, end_s in self.acting.items() if end_s <= now_s]:
                del self.acting[rank]
                self._send(rank, self.todo[rank].pop(0), now_s)
        return now_s

    def _begin(self, now_s: float) -> None:
        last = len(self.layers) - 1
        for rank, actions in self.todo.items():
            if rank in self.acting or not actions:
                continue
            stage, kind, microbatch = actions[0]
            needed = None
            if kind is ActionKind.FORWARD and stage > 0:
                needed = ("forward", stage, microbatch)
            elif kind in (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT) and stage < last:
                needed = ("backward", stage, microbatch)
            if needed is None or self.there.get((rank[0], needed), inf) <= now_s:
                self.acting[rank] = now_s + self._layer_s(kind, stage) * self.layers[stage]

    def _layer_s(self, kind: ActionKind, stage: int) -> float:
        """Seconds of one layer. The first stage has no backward of its input, and runs its backwards whole."""
        if kind is ActionKind.FORWARD:
            return self.forward_s
        if kind is ActionKind.BACKWARD:
            return self.backward_s
        if stage == 0:
            return self.backward_s if kind is ActionKind.BACKWARD_WEIGHT else 0.0
        return self.backward_s / 2  # a sleep is halved exactly

    def _send(self, rank: tuple[int, int], done: Action, now_s: float) -> None:
        stage, kind, microbatch = done
        forward = kind is ActionKind.FORWARD
        if kind is ActionKind.BACKWARD_WEIGHT:
            return
        following = stage + 1 if forward else stage - 1
        if not 0 <= following < len(self.layers):
            return
        receiver = rank[0], following % self.plan.pp
        here, there = self.at[rank].host, self.at[receiver].host
        what = "forward" if forward else "backward", following, microbatch
        if here == there:
            self.there[rank[0], what] = now_s
            return
        interfaces = self._interfaces(rank, receiver, forward)
        clusters = self.at[rank].cluster, self.at[receiver].cluster
        uses = [(here, interfaces[0], "out"), (there, interfaces[1], "in"), ("path", here, there), ("trunk", *clusters)]
        if clusters[0] != clusters[1]:
            uses += [("trunk", clusters[0], "out"), ("trunk", "in", clusters[1])]
        known = tuple(use for use in uses if use in self.wire.rates)
        latency_s = self.wire.latency_s.get(frozenset((here, there)), 0.0)
        self.queues[rank, receiver].append(Message(receiver, what, known, latency_s, self.size))

    def _interfaces(self, rank: tuple[int, int], receiver: tuple[int, int], forward: bool) -> tuple[str, str]:
        """The netdevs of the sender and the receiver, by the plan's groups."""
        ends = tuple(self.at[each].rank for each in (rank, receiver))
        axis, members = ("pp_forward", ends) if forward else ("pp_backward", ends[::-1])
        group = next(group for group in self.plan.groups if group.axis == axis and group.ranks == members)
        assert group.codec == "none"
        first, second = group.interfaces
        return (first, second) if forward else (second, first)

    def _rates(self) -> Mapping[tuple[tuple[int, int], tuple[int, int]], float]:
        """The max-min fair rates of the messages that are first on their links, by water filling."""
        left = {link: queue[0] for link, queue in self.queues.items() if queue}
        room = dict(self.wire.rates)
        rates: dict[tuple[tuple[int, int], tuple[int, int]], float] = {}
        while left:
            users: defaultdict[Hashable, int] = defaultdict(int)
            for message in left.values():
                for use in message.uses:
                    users[use] += 1
            tightest = min(users, key=lambda use: room[use] / users[use])
            fair = room[tightest] / users[tightest]
            for link in [link for link, message in left.items() if tightest in message.uses]:
                for use in left.pop(link).uses:
                    room[use] -= fair
                rates[link] = fair
        return rates
