"""A run in one picture: clusters below one another, the hosts of each stage by state, traffic measured and planned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from holmes_cli.pages.figures import FLOW_NAMES, OTHER_FLOWS, LaneName, Load, Tile, heat_of, lane_name
from holmes_cli.pages.run_traffic import LAST_STEPS, GroupTraffic, HostTraffic, mean
from holmes_cli.screen.plan_tables import count
from holmes_core.records.plan import Plan
from holmes_core.units import format_bytes, format_seconds
from launcher.journal.step_metrics import StepMetrics

CLUSTERS_OPEN = 2  # so few show their hosts at once
NOT_STARTED = "not started"
WARM_RATIO, HOT_RATIO = 1.25, 2.0  # of measured to planned bytes


@dataclass(frozen=True)
class Concern:
    """A host, or a trunk between clusters, that needs a look: `role` is its class in the page."""

    host: str
    cluster: str
    role: str
    why: str


@dataclass(frozen=True)
class HostRow:
    """A host of a cluster: `role` is its class in the picture and the table."""

    host: str
    role: str
    state: str
    traffic: tuple[str, ...]

    @property
    def words(self) -> str:
        """The state for a reader, after the fault of the host if there is one."""
        return self.state if self.role == "well" else f"{self.role}; last state: {self.state}"


@dataclass(frozen=True)
class RunLane:
    """The hosts of a cluster that hold the stages of one pipeline rank."""

    name: LaneName
    hosts: tuple[HostRow, ...]


@dataclass(frozen=True)
class ClusterPart:
    """A cluster: one sentence, its traffic, its lanes, the wires to clusters further down, and its hosts one by one."""

    name: str
    summary: str
    is_open: bool
    nics: tuple[Load, ...]
    lanes: tuple[RunLane, ...]
    wires: tuple[Load, ...]
    hosts: tuple[HostRow, ...]


def cluster_parts(
    plan: Plan,
    states: Mapping[str, str],
    looks: Sequence[Concern],
    groups: Sequence[GroupTraffic],
    traffic: Sequence[HostTraffic],
) -> list[ClusterPart]:
    """Return the clusters of the plan, with their hosts' last states and traffic."""
    roles = {look.host: look.role for look in looks}
    rows = _host_rows(plan, states, roles, traffic)
    clusters = list(dict.fromkeys(node.cluster for node in plan.nodes))
    wires = _wires(plan, roles)
    parts = []
    for name in clusters:
        hosts = [rows[node.host] for node in plan.nodes if node.cluster == name]
        parts.append(
            ClusterPart(
                name,
                _summary(hosts),
                len(clusters) <= CLUSTERS_OPEN and len(hosts) <= 8,
                tuple(_load(group) for group in groups if group.cluster == name),
                tuple(_lanes(plan, name, rows)),
                tuple(wire for (one, _), wire in wires.items() if one == name),
                tuple(hosts),
            )
        )
    return parts


def run_tiles(plan: Plan, state: str, steps: Sequence[StepMetrics]) -> list[Tile]:
    """Return the state of the run, and its newest figures once it has made a step."""
    head = [Tile(state, "", "failed" if state == "failed" else "")]
    if not steps:
        return head
    last, recent = steps[-1], steps[-LAST_STEPS:]
    step_s, tokens = mean([step.step_s for step in recent]) or 0.0, mean([step.tokens_per_s for step in recent]) or 0.0
    guess = plan.prediction
    tiles = [
        *head,
        Tile(f"{last.step + 1:,}", f"of {plan.job.steps:,} steps"),
        Tile(format_seconds(step_s), f"a step, planned {format_seconds(guess.step_s)}"),
        Tile(f"{tokens:,.0f}", f"tokens/s, planned {guess.tokens_per_s:,.0f}"),
    ]
    return tiles + ([Tile(f"{last.loss:.4g}", "loss")] if last.loss is not None else [])


def _host_rows(
    plan: Plan, states: Mapping[str, str], roles: Mapping[str, str], traffic: Sequence[HostTraffic]
) -> dict[str, HostRow]:
    sent: dict[str, list[str]] = {}
    for each in traffic:
        measured = "not known" if each.sent_bytes is None else format_bytes(each.sent_bytes)
        planned = "" if each.planned_bytes is None else f" (planned {format_bytes(each.planned_bytes)})"
        sent.setdefault(each.host, []).append(f"{each.network}: {measured}{planned}")
    rows = {}
    for node in plan.nodes:
        role, state = roles.get(node.host, "well"), states.get(node.host, NOT_STARTED)
        rows[node.host] = HostRow(node.host, role, state, tuple(sent.get(node.host, ())))
    return rows


def _summary(hosts: Sequence[HostRow]) -> str:
    """Return the numbers of hosts by last state, and among them of those that failed or are slow."""
    states = ", ".join(f"{number} {state}" for state, number in Counter(row.state for row in hosts).most_common())
    sick = Counter(row.role for row in hosts if row.role in ("failed", "slow"))
    of_these = f"; of these {', '.join(f'{number} {role}' for role, number in sick.items())}" if sick else ""
    return f"{count(len(hosts), 'host')}: {states}{of_these}"


def _lanes(plan: Plan, cluster: str, rows: Mapping[str, HostRow]) -> list[RunLane]:
    held: dict[int, dict[str, HostRow]] = {}
    for rank in plan.ranks:
        if rank.cluster == cluster:
            held.setdefault(rank.pp_rank, {})[rank.host] = rows[rank.host]
    return [RunLane(lane_name(plan, pp_rank), tuple(hosts.values())) for pp_rank, hosts in sorted(held.items())]


def _load(group: GroupTraffic) -> Load:
    """Return the newest traffic of the cluster's mean host on a network, against the plan's."""
    measured = mean([sent for sent in group.sent_bytes[-LAST_STEPS:] if sent is not None])
    label = f"sent over {group.network} by the mean host"
    words = "not known" if measured is None else f"{format_bytes(measured)} a step"
    if not group.planned_bytes or measured is None:
        return Load(label, None, words, "cool")
    ratio = measured / group.planned_bytes
    value = f"{words}, {ratio:.0%} of the planned {format_bytes(group.planned_bytes)}"
    return Load(label, round(100 * min(1.0, ratio), 1), value, heat_of(ratio, WARM_RATIO, HOT_RATIO))


def _wires(plan: Plan, roles: Mapping[str, str]) -> dict[tuple[str, str], Load]:
    """Return, by two clusters, upper one first, the kinds of traffic that the plan sends between them."""
    order = {name: at for at, name in enumerate(dict.fromkeys(node.cluster for node in plan.nodes))}
    kinds: dict[tuple[str, str], dict[str, str]] = {}
    for group in plan.groups:
        clusters = sorted({plan.ranks[rank].cluster for rank in group.ranks}, key=order.__getitem__)
        for one, other in pairwise(clusters):
            kinds.setdefault((one, other), {})[FLOW_NAMES.get(group.axis, OTHER_FLOWS)] = group.network
    wires = {}
    for (one, other), names in kinds.items():
        is_slow = roles.get(f"trunk {' - '.join(sorted((one, other)))}") == "slow"
        label = f"network {', '.join(sorted(set(names.values())))}{', slower than planned' * is_slow}"
        wires[one, other] = Load(label, None, f"{one} - {other}: {', '.join(names)}", "hot" if is_slow else "cool")
    return wires
