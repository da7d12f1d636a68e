"""The traffic of a run's hosts by cluster and network: the mean host over the steps, and every host at the end."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from holmes_core.records.plan import Plan
from launcher.journal.step_metrics import StepMetrics, rdma_interfaces
from launcher.prepare.prepare import planned_rdma_ports

BY_RDMA = "RDMA"
LAST_STEPS = 50  # their mean is the current traffic of a host


@dataclass(frozen=True)
class HostTraffic:
    """Bytes per step that a host sends over a network, by all its interfaces there; None: not planned, or not known."""

    host: str
    network: str
    sent_bytes: float | None
    planned_bytes: float | None


@dataclass(frozen=True)
class GroupTraffic:
    """The hosts of a cluster on one network: bytes per step that the mean host sends, and the planned bytes."""

    cluster: str
    network: str
    sent_bytes: tuple[float | None, ...]
    planned_bytes: float | None

    @property
    def label(self) -> str:
        return f"{self.cluster} over {self.network}"


def network_of_interface(plan: Plan) -> dict[tuple[str, str], str]:
    """Return the network of each host and interface the plan names; planned RDMA ports are one network of their own."""
    found = {(port.host, port.netdev): port.network for port in plan.prediction.traffic}
    return found | {(node.host, port): BY_RDMA for node in plan.nodes for port in planned_rdma_ports(node)}


def planned_traffic(plan: Plan) -> dict[tuple[str, str], float]:
    """Return the planned bytes per step by host and network."""
    by_rdma, planned = rdma_interfaces(plan), dict[tuple[str, str], float]()
    for port in plan.prediction.traffic:
        network = BY_RDMA if (port.host, port.netdev) in by_rdma else port.network
        planned[port.host, network] = planned.get((port.host, network), 0.0) + port.sent_bytes
    return planned


def sent_in_step(step: StepMetrics, networks: Mapping[tuple[str, str], str]) -> dict[tuple[str, str], float]:
    """Return the bytes by host and network, without `lo` and interfaces the plan does not name."""
    sent = dict[tuple[str, str], float]()
    for port in step.interfaces:
        network = networks.get((port.host, port.netdev))
        if network is not None and port.netdev != "lo":
            sent[port.host, network] = sent.get((port.host, network), 0.0) + port.sent_bytes
    return sent


def traffic_of_run(plan: Plan, steps: Sequence[StepMetrics]) -> tuple[list[GroupTraffic], list[HostTraffic]]:
    """Return groups, busiest first, and hosts in the order of the plan; nothing if hosts share a loopback."""
    if any(node.access.transport == "local" for node in plan.nodes):
        return [], []
    networks, planned = network_of_interface(plan), planned_traffic(plan)
    by_step = [sent_in_step(step, networks) for step in steps]
    hosts = list(_hosts(plan, by_step[-LAST_STEPS:], planned))
    cluster_of = {node.host: node.cluster for node in plan.nodes}
    places = dict.fromkeys((cluster_of[each.host], each.network) for each in hosts)
    groups = []
    for cluster, network in places:
        keys = [(node.host, network) for node in plan.nodes if node.cluster == cluster]
        means = tuple(mean([sent[key] for key in keys if key in sent]) for sent in by_step)
        groups.append(GroupTraffic(cluster, network, means, mean([planned[key] for key in keys if key in planned])))
    return sorted(groups, key=lambda group: -max((sent or 0.0 for sent in group.sent_bytes), default=0.0)), hosts


def _hosts(
    plan: Plan, by_step: Sequence[Mapping[tuple[str, str], float]], planned: Mapping[tuple[str, str], float]
) -> Iterator[HostTraffic]:
    places = sorted({*planned, *(place for sent in by_step for place in sent)})
    rank_of = {node.host: node.node_rank for node in plan.nodes}
    for place in sorted(places, key=lambda place: rank_of[place[0]]):
        sent_bytes = mean([sent[place] for sent in by_step if place in sent])
        yield HostTraffic(*place, sent_bytes, planned.get(place))


def mean(values: Sequence[float]) -> float | None:
    """Return the mean; None without a value."""
    return statistics.fmean(values) if values else None
