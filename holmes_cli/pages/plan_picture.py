"""A plan in one picture: clusters below one another, a lane for each pipeline rank they hold, wires with their load.

A lane shows its hosts and, on one scale of time, the simulated step of one replica. Nothing is placed by pixels: the
page's style sheet lays lanes out, so that they fit a phone and paper alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from holmes_cli.pages.figures import FLOW_NAMES, OTHER_FLOWS, Heat, LaneName, Load, heat_of, lane_name
from holmes_cli.screen.plan_tables import count
from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import Plan, PlanRank
from holmes_core.units import format_bytes, format_memory, format_rate, format_seconds
from planner.advice.explain import (
    HostBlock,
    NicLoad,
    counted,
    host_blocks,
    nic_loads,
    ranges,
    stage_memories,
    tasklets,
)
from planner.layout.layout import Layout
from planner.layout.predict import predict_timeline
from planner.layout.reprice import layout_of
from planner.layout.traffic import ClusterFlow, cluster_flows
from planner.problem.networks import Networks, shared_network
from planner.problem.problem import Problem, read_problem
from planner.schedule.simulate import Span

NAMED_HOSTS = 64  # up to here every host has a mark of its own
MAX_MARKS, MAX_SQUARES = 32, 16  # marks of a lane, and ranks in one mark
MAX_LANES, MAX_BARS = 48, 4000
WARM_PERCENT, HOT_PERCENT = 50.0, 80.0  # of the step that a NIC or a wire is busy
WARM_MEMORY, HOT_MEMORY = 85.0, 95.0  # percent of a GPU's memory
BAR_CLASSES = {"forward": "f", "backward": "b", "backward input": "i", "backward weight": "w"}


@dataclass(frozen=True)
class Mark:
    """One host, or several alike, in a lane: its ranks as squares, and the number of those not drawn."""

    label: str
    hosts: int
    squares: int
    more: int
    tip: str


@dataclass(frozen=True)
class Bar:
    """An action of the timeline: `kind` is its class; its start and length in thousandths of the time drawn."""

    kind: str
    start: float
    length: float
    tip: str


@dataclass(frozen=True)
class StageLane:
    """A pipeline rank's hosts of one cluster: its layers, its share of a GPU's memory, and its timeline."""

    name: LaneName
    details: tuple[str, ...]
    memory_percent: float | None
    marks: tuple[Mark, ...]
    left_out: str
    bars: tuple[Bar, ...]

    @property
    def heat(self) -> str:
        """The class of the memory's colour; none where the memory is not known."""
        return heat_of(self.memory_percent, WARM_MEMORY, HOT_MEMORY) if self.memory_percent is not None else ""


@dataclass(frozen=True)
class Card:
    """A cluster: its NICs, its lanes, the traffic inside it, and the wires that leave it for clusters below."""

    name: str
    summary: str
    nics: tuple[Load, ...]
    lanes: tuple[StageLane, ...]
    inside: tuple[str, ...]
    wires: tuple[Load, ...]


@dataclass(frozen=True)
class PlanPicture:
    """Cards from the first stage's cluster on, labels along the time of lanes, and sentences on parts left out."""

    cards: tuple[Card, ...]
    ticks: tuple[str, ...]
    kinds: tuple[tuple[str, str], ...]  # of bars: class and name
    left_out: tuple[str, ...]


def draw_plan(plan: Plan, inventory: Inventory) -> PlanPicture:
    """Draw the plan on the inventory that it was made for."""
    held: dict[tuple[str, int], list[PlanRank]] = {}
    for rank in plan.ranks:
        held.setdefault((rank.cluster, rank.pp_rank), []).append(rank)
    drawn = list(held) if len(held) <= MAX_LANES else [*list(held)[: MAX_LANES // 2], *list(held)[-MAX_LANES // 2 :]]
    problem = read_problem(inventory, plan.job)
    layout = layout_of(problem, plan)
    timelines = _timelines(problem, layout, {key: min(rank.dp_rank for rank in held[key]) for key in drawn})
    starts = sorted(span.start_s for spans in timelines.values() for span in spans)
    is_cut = len(starts) > MAX_BARS
    window_s = starts[MAX_BARS] if is_cut else plan.prediction.step_s
    traffic = _Traffic(plan, inventory, problem.networks, nic_loads(inventory, plan), cluster_flows(plan.job, layout))
    lanes = _lanes(plan, inventory, held, {key: _bars(spans, window_s) for key, spans in timelines.items()})
    clusters = list(dict.fromkeys(cluster for cluster, _ in held))
    cards = tuple(
        Card(
            cluster,
            _summary(plan, inventory, cluster),
            tuple(traffic.nics(cluster)),
            tuple(lane for key, lane in lanes.items() if key[0] == cluster),
            tuple(traffic.inside(cluster)),
            tuple(wire for other in clusters[at + 1 :] for wire in traffic.wires(cluster, other)),
        )
        for at, cluster in enumerate(clusters)
    )
    left_out = [f"{len(held) - len(drawn)} lanes in the middle are not drawn."] if len(drawn) < len(held) else []
    if is_cut:
        left_out.append(f"Only the first {format_seconds(window_s)} of the step are drawn.")
    used = {span.kind.value for spans in timelines.values() for span in spans}
    kinds = tuple((name, kind) for kind, name in BAR_CLASSES.items() if kind in used)
    ticks = ["0", *(format_seconds(window_s * part / 4) for part in range(1, 5))]
    if is_cut:
        ticks[-1] += f" of {format_seconds(plan.prediction.step_s)}"
    return PlanPicture(cards, tuple(ticks), kinds, tuple(left_out))


def _timelines(
    problem: Problem, layout: Layout, replicas: Mapping[tuple[str, int], int]
) -> dict[tuple[str, int], list[Span]]:
    """Return, by lane, the actions of its pipeline rank in the given replica."""
    spans = {replica: predict_timeline(problem, layout, replica) for replica in sorted(set(replicas.values()))}
    return {key: [span for span in spans[replica] if span.rank == key[1]] for key, replica in replicas.items()}


def _bars(spans: Sequence[Span], window_s: float) -> tuple[Bar, ...]:
    """Return the spans that begin before `window_s` as bars."""
    return tuple(
        Bar(
            BAR_CLASSES[span.kind.value],
            round(1000 * span.start_s / window_s, 2),
            round(max(0.2, 1000 * (min(span.end_s, window_s) - span.start_s) / window_s - 0.4), 2),
            f"{span.kind.value} {span.microbatch}, stage {span.stage}, from {format_seconds(span.start_s)} to "
            f"{format_seconds(span.end_s)}",
        )
        for span in spans
        if span.start_s < window_s
    )


def _lanes(
    plan: Plan,
    inventory: Inventory,
    held: Mapping[tuple[str, int], Sequence[PlanRank]],
    bars: Mapping[tuple[str, int], tuple[Bar, ...]],
) -> dict[tuple[str, int], StageLane]:
    """Return the lanes that have bars, by cluster and pipeline rank."""
    memories, blocks = stage_memories(inventory, plan), host_blocks(plan, NAMED_HOSTS)
    lanes = {}
    for cluster, pp_rank in bars:
        name = lane_name(plan, pp_rank)
        replicas = [rank.dp_rank for rank in held[cluster, pp_rank]]
        memory = memories[pp_rank]
        room = f" of {format_memory(memory.available_bytes)}" if memory.available_bytes else ""
        needed = f"{format_memory(memory.needed_bytes)}{room} a rank"
        marks = list(_marks(plan, [block for block in blocks if block.cluster == cluster], pp_rank))
        lanes[cluster, pp_rank] = StageLane(
            name,
            (counted("replica", replicas), needed),
            round(100 * min(1.0, memory.fullness), 1) if memory.available_bytes else None,
            tuple(marks[:MAX_MARKS]),
            f"and {len(marks) - MAX_MARKS} more" if len(marks) > MAX_MARKS else "",
            bars[cluster, pp_rank],
        )
    return lanes


def _marks(plan: Plan, blocks: Sequence[HostBlock], pp_rank: int) -> Iterator[Mark]:
    """Yield a mark for each block that has ranks of the pipeline rank."""
    for block in blocks:
        ranks = [rank for rank in block.ranks if rank.pp_rank == pp_rank]
        if ranks:
            many = len(block.hosts)
            name = block.hosts[0] if many == 1 else f"{many} hosts like this, {block.hosts[0]} to {block.hosts[-1]}"
            squares = sum(rank.host == block.hosts[0] for rank in ranks)
            tip = f"{name}: {tasklets(plan, ranks)}; ranks {ranges(sorted(rank.rank for rank in ranks))}"
            yield Mark(name, many, min(squares, MAX_SQUARES), max(0, squares - MAX_SQUARES), tip)


def _summary(plan: Plan, inventory: Inventory, cluster: str) -> str:
    """Return the numbers of the cluster's hosts and ranks in the plan, and the names of their GPUs."""
    ranks = [rank for rank in plan.ranks if rank.cluster == cluster]
    hosts = {rank.host for rank in ranks}
    models = sorted({gpu.name for host in inventory.hosts if host.name in hosts for gpu in host.gpus if gpu.name})
    return ", ".join([count(len(hosts), "host"), count(len(ranks), "rank"), *models])


@dataclass(frozen=True)
class _Traffic:
    """The bytes of a step on NICs and between clusters, against what carries them."""

    plan: Plan
    inventory: Inventory
    networks: Networks
    loads: Sequence[NicLoad]
    flows: Sequence[ClusterFlow]

    def nics(self, cluster: str) -> Iterator[Load]:
        """Yield the busiest NIC of the cluster on each network."""
        networks = dict.fromkeys(load.network for load in self.loads if load.cluster == cluster)
        for network in sorted(networks, key=lambda network: network != cluster):
            most = self._busiest([load for load in self.loads if (load.cluster, load.network) == (cluster, network)])
            size = format_bytes(max(most.sent_bytes, most.received_bytes))
            is_nvlink = network == cluster and self.networks.nvlink_bytes_per_s(most.host)
            carrier = "NVLink" if is_nvlink else most.netdev
            label = f"busiest on {network}: {carrier} of {most.host}, {format_rate(most.bandwidth_bytes_per_s)}"
            percent, busy, heat = self._busy(most.busy_s)
            yield Load(label, percent, f"{size}{busy}", heat)

    def inside(self, cluster: str) -> Iterator[str]:
        """Yield what hosts of the cluster send one another."""
        yield from _told([flow for flow in self.flows if flow.sender == flow.receiver == cluster])

    def wires(self, one: str, other: str) -> Iterator[Load]:
        """Yield the wire between two clusters, if hosts of one send to hosts of the other."""
        there = [flow for flow in self.flows if (flow.sender, flow.receiver) == (one, other)]
        back = [flow for flow in self.flows if (flow.sender, flow.receiver) == (other, one)]
        if there or back:
            label, busy_s = max(
                self._carriers(one, other, there, back),
                key=lambda carrier: carrier[1] or 0.0,
                default=(f"{one} - {other}", None),
            )
            said = [f"{one} to {other}: {words}" for words in _told(there)]
            said += [f"{other} to {one}: {words}" for words in _told(back)]
            percent, busy, heat = self._busy(busy_s)
            yield Load(f"{label}{busy}{' of the step' if busy else ''}", percent, "; ".join(said), heat)

    def _carriers(
        self, one: str, other: str, there: Sequence[ClusterFlow], back: Sequence[ClusterFlow]
    ) -> Iterator[tuple[str, float | None]]:
        """Yield all that may hold the wire up, and the seconds it takes: the busiest NIC, the trunk, the uplinks."""
        shared = shared_network(self.inventory).name
        ends = [load for load in self.loads if load.cluster in (one, other) and load.network == shared]
        if ends:
            most = self._busiest(ends)
            yield f"{most.netdev} of {most.host}, {format_rate(most.bandwidth_bytes_per_s)}", most.busy_s
        connection = self.networks.connection(one, other)
        for flows in filter(None, (there, back)):
            busiest = max(flows, key=lambda flow: flow.host_bytes).busiest_host
            rate_bytes_per_s = connection.host_bytes_per_s(
                busiest, self.networks.shared_port(busiest).bandwidth_bytes_per_s
            )
            if rate_bytes_per_s:
                busy_s = sum(flow.host_bytes for flow in flows) / rate_bytes_per_s
                yield f"{busiest} by the wire {one} - {other}, {format_rate(rate_bytes_per_s)} a host", busy_s
        for trunk in self.inventory.trunks:
            rate = format_rate(trunk.bandwidth_bytes_per_s)
            if set(trunk.clusters) == {one, other}:
                size = max(_total(there), _total(back))
                yield f"the trunk {one} - {other}, {rate}", size / trunk.bandwidth_bytes_per_s
            elif len(trunk.clusters) == 1 and trunk.clusters[0] in (one, other):
                (name,) = trunk.clusters
                out = _total([flow for flow in self.flows if flow.sender == name != flow.receiver])
                into = _total([flow for flow in self.flows if flow.receiver == name != flow.sender])
                yield f"the uplink of {name}, {rate}", max(out, into) / trunk.bandwidth_bytes_per_s

    def _busiest(self, loads: Sequence[NicLoad]) -> NicLoad:
        return max(loads, key=lambda load: (load.busy_s or 0.0, load.sent_bytes + load.received_bytes))

    def _busy(self, busy_s: float | None) -> tuple[float | None, str, Heat]:
        """Return the part of the step in percent and in words, and its colour; None and nothing if it is not known."""
        step_s = self.plan.prediction.step_s
        if busy_s is None or not step_s:
            return None, "", "cool"
        percent = round(100 * min(1.0, busy_s / step_s), 1)
        return percent, f", busy {percent:.0f}%", heat_of(percent, WARM_PERCENT, HOT_PERCENT)


def _total(flows: Sequence[ClusterFlow]) -> float:
    return sum(flow.size_bytes for flow in flows)


def _told(flows: Sequence[ClusterFlow]) -> Iterator[str]:
    """Yield the sum of each kind of traffic in words: `activations 8.59 GB`."""
    sizes: dict[str, float] = {}
    for flow in flows:
        name = FLOW_NAMES.get(flow.axis, OTHER_FLOWS)
        sizes[name] = sizes.get(name, 0) + flow.size_bytes
    yield from (f"{name} {format_bytes(size)}" for name, size in sizes.items())
