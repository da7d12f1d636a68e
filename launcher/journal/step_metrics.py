"""Merge the reports of all ranks into one record per step: loss, tokens/s, and bytes of every interface."""

from __future__ import annotations

import statistics
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from holmes_core.records.plan import InterfaceTraffic, Plan
from holmes_core.records.run import MeasuredTraffic
from holmes_runtime.config.rank_metrics import AppliedOuterSync, ByteCounters, RankMetrics, RankOuterSync
from holmes_runtime.config.verdicts import Verdict
from launcher.prepare.prepare import planned_rdma_ports

MAX_OPEN = 8  # outer syncs not yet reported by all ranks; ranks are at most one apart


@dataclass(frozen=True)
class StepTraffic:
    """Bytes that one interface, or one RDMA port such as `mlx5_0:1`, of one host moved in one step."""

    host: str
    netdev: str
    sent_bytes: int
    received_bytes: int


@dataclass(frozen=True)
class StepMetrics:
    """One step of the whole job.

    `step_s` and `exposed_s`, the wait for the network, are the slowest rank's. `compute_s`, the forward and backward
    without waits, is that of the busiest rank. `memory_bytes` is that of the fullest rank. `grad_norm` is None for a
    step that fp16 skipped, and `eval_loss` where nothing was evaluated. `tflops_per_s` and `mfu` are per rank, at the
    pace of the whole job; `mfu` is 0 if the peak of a GPU is unknown. A trainer's own command reports only its loss,
    None if not finite, and other fields that may be None are; its first step has no `interfaces`, as it begins with
    the run. `verdicts` are sentences on hosts and links that are slower than planned, and on edges that were adapted.
    """

    step: int
    loss: float | None
    eval_loss: float | None
    grad_norm: float | None
    learning_rate: float | None
    step_s: float
    compute_s: float | None
    exposed_s: float | None
    tokens_per_s: float
    tflops_per_s: float
    mfu: float
    memory_bytes: int | None
    verdicts: tuple[str, ...]
    interfaces: tuple[StepTraffic, ...]


class FinishedStep(NamedTuple):
    """A step that all ranks have finished, with the verdicts of rank 0 and an island's outer sync, if any.

    `gradients_s` is the longest time that a rank waited for gradients and weights.
    """

    metrics: StepMetrics
    verdicts: tuple[Verdict, ...]
    exchange: AppliedOuterSync | None = None
    gradients_s: float = 0.0


class StepCollector:
    """Collects the metrics of a step until all ranks have reported."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._waiting: dict[int, dict[int, RankMetrics]] = {}
        self._outer_syncs: dict[int, dict[int, AppliedOuterSync]] = {}

    def add(self, metrics: RankMetrics) -> FinishedStep | None:
        """Return the step once its last rank has finished it; None before."""
        by_rank = self._waiting.setdefault(metrics.step, {})
        by_rank[metrics.rank] = metrics
        if len(by_rank) < self._plan.world_size:
            return None
        # A rank's steps come in order: an earlier step that is still open has lost messages and never completes.
        self._waiting = {step: ranks for step, ranks in self._waiting.items() if step > metrics.step}
        return self._merge([by_rank[rank] for rank in sorted(by_rank)])

    def add_outer_sync(self, applied: RankOuterSync) -> Iterator[AppliedOuterSync]:
        """Yield an outer sync of a trainer's own command once its last rank has applied it."""
        by_rank = self._outer_syncs.setdefault(applied.outer.exchange, {})
        by_rank[applied.rank] = applied.outer
        if len(by_rank) == self._plan.world_size and (exchange := _exchange([*by_rank.values()])) is not None:
            self._outer_syncs.clear()  # an earlier one that is still open has lost messages
            yield exchange
        elif len(self._outer_syncs) > MAX_OPEN:
            del self._outer_syncs[next(iter(self._outer_syncs))]

    def _merge(self, ranks: Sequence[RankMetrics]) -> FinishedStep:
        """Merge the metrics of all `ranks`, in order, into one step."""
        step_s = max(rank.step_s for rank in ranks)
        evaluated = [rank.eval_loss for rank in ranks if rank.eval_loss is not None]
        verdicts = tuple(verdict for rank in ranks for verdict in rank.verdicts)
        metrics = StepMetrics(
            step=ranks[0].step,
            loss=statistics.fmean(rank.loss for rank in ranks if rank.loss is not None),
            eval_loss=statistics.fmean(evaluated) if evaluated else None,
            grad_norm=ranks[0].grad_norm,
            learning_rate=ranks[0].learning_rate,
            step_s=step_s,
            compute_s=max(rank.compute_s for rank in ranks),
            exposed_s=max(rank.exposed_s.network_s for rank in ranks),
            tokens_per_s=self._plan.job.global_batch_size * self._plan.job.model.seq_length / step_s,
            tflops_per_s=min(rank.tflops_per_s for rank in ranks),
            mfu=min(rank.mfu for rank in ranks),
            memory_bytes=max(rank.memory_bytes for rank in ranks),
            verdicts=tuple(verdict.sentence for verdict in verdicts),
            interfaces=tuple(self._traffic(ranks)),
        )
        exchange = _exchange([rank.outer for rank in ranks if rank.outer is not None])
        return FinishedStep(metrics, verdicts, exchange, max(rank.exposed_s.dp for rank in ranks))

    def _traffic(self, ranks: Sequence[RankMetrics]) -> Iterator[StepTraffic]:
        for metrics in ranks:
            for netdev, moved in sorted(metrics.interfaces.items()):
                yield StepTraffic(self._plan.ranks[metrics.rank].host, netdev, moved.sent_bytes, moved.received_bytes)


def _exchange(ranks: Sequence[AppliedOuterSync]) -> AppliedOuterSync | None:
    """Merge the outer sync of an island's ranks; None if there was none."""
    if not ranks:
        return None
    return ranks[0]._replace(
        sent_bytes=sum(rank.sent_bytes for rank in ranks),
        received_bytes=sum(rank.received_bytes for rank in ranks),
        duration_s=max(rank.duration_s for rank in ranks),
        waited_s=max(rank.waited_s for rank in ranks),
        digest=f"{sum(int(rank.digest, 16) for rank in ranks) % (1 << 64):016x}",
    )


class StepTotals:
    """Running totals over the steps of an attempt, which may be millions."""

    def __init__(self) -> None:
        self.count = self._counted = 0
        self._seconds = array("d")
        self._moved: dict[tuple[str, str], tuple[int, ByteCounters]] = {}

    def add(self, step: StepMetrics) -> None:
        """Add one step."""
        self.count += 1
        self._seconds.append(step.step_s)
        self._counted += bool(step.interfaces)
        for port in step.interfaces:
            known, moved = self._moved.get((port.host, port.netdev), (0, ByteCounters(0, 0)))
            more = ByteCounters(port.sent_bytes, port.received_bytes)
            self._moved[port.host, port.netdev] = known + 1, moved.plus(more)

    @property
    def median_step_s(self) -> float | None:
        """Median seconds of a step; None if there are no steps."""
        return median_s(self._seconds) if self.count else None

    def mean_bytes(self, host: str, counters: Sequence[str]) -> ByteCounters | None:
        """Return the mean bytes per step that some counters of a host moved together, over all steps with traffic.

        None unless every counter is known in all of these steps.
        """
        found = [self._moved.get((host, counter), (0, ByteCounters(0, 0))) for counter in counters]
        if not self._counted or not found or any(known < self._counted for known, _ in found):
            return None
        sent, received = sum(each.sent_bytes for _, each in found), sum(each.received_bytes for _, each in found)
        return ByteCounters(sent // self._counted, received // self._counted)


def median_s(steps_s: Sequence[float]) -> float:
    """Return the steps' median seconds. If there are several, omit the first: it sets up connections and caches."""
    return statistics.median(steps_s[1:] if len(steps_s) > 1 else steps_s)


def by_interface(traffic: Iterable[InterfaceTraffic]) -> tuple[InterfaceTraffic, ...]:
    """Return one entry per interface, as counters do: the traffic of two networks on one interface adds up."""
    merged: dict[tuple[str, str], InterfaceTraffic] = {}
    for port in traffic:
        if (known := merged.get((port.host, port.netdev))) is not None:
            added = {
                "network": f"{known.network} + {port.network}",
                "sent_bytes": known.sent_bytes + port.sent_bytes,
                "received_bytes": known.received_bytes + port.received_bytes,
            }
            port = known.model_copy(update=added)
        merged[port.host, port.netdev] = port
    return tuple(merged.values())


def traffic_per_step(steps: StepTotals, plan: Plan) -> tuple[MeasuredTraffic, ...]:
    """Return the mean bytes per step over each interface that the plan names, in plan order.

    Where a group uses RDMA on an interface's network, the entry also has the bytes of the host's planned RDMA ports.
    The mean is over all steps: weights that a step gathers are partly sent during the next step, so the first step
    counts too few and the last too many.
    """
    ports = {node.host: planned_rdma_ports(node) for node in plan.nodes}
    by_rdma = rdma_interfaces(plan)
    result = []
    for expected in by_interface(plan.prediction.traffic):
        place = expected.host, expected.netdev
        moved = steps.mean_bytes(expected.host, (expected.netdev,))
        rdma = steps.mean_bytes(expected.host, ports[expected.host]) if place in by_rdma else None
        result.append(
            MeasuredTraffic(
                host=expected.host,
                netdev=expected.netdev,
                network=expected.network,
                sent_bytes=moved.sent_bytes if moved else None,
                received_bytes=moved.received_bytes if moved else None,
                rdma_sent_bytes=rdma.sent_bytes if rdma else None,
                rdma_received_bytes=rdma.received_bytes if rdma else None,
            )
        )
    return tuple(result)


def rdma_interfaces(plan: Plan) -> frozenset[tuple[str, str]]:
    """Return the host and interface of each member of a group that uses RDMA; the interface does not count RDMA."""
    return frozenset(
        (plan.ranks[rank].host, interface)
        for group in plan.groups
        if group.net_name not in (None, "Socket")
        for rank, interface in zip(group.ranks, group.interfaces, strict=True)
    )
