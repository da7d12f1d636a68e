"""From what each rank reports to one record a step: loss, tokens/s, and bytes of every interface."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from holmes_core.records.plan import InterfaceTraffic, Plan
from holmes_runtime.config.verdicts import Verdict, verdict_from_json

NETWORK_AXES = ("tp", "dp", "pp_forward", "pp_backward")  # of exposed_s; "sync" waits for the slowest rank


@dataclass(frozen=True)
class InterfaceBytes:
    """Increase of one interface's counters over one step."""

    host: str
    netdev: str
    sent_bytes: int
    received_bytes: int


@dataclass(frozen=True)
class StepMetrics:
    """One step of the whole job; `step_s` and `exposed_s`, waiting for the network, are the slowest rank's.

    `compute_s`, forward and backward without waits, is the busiest rank's.
    `grad_norm` is None for a step that fp16 skipped, `eval_loss` where nothing was evaluated. `tflops_per_s` and `mfu`
    are of one rank, at the pace of the whole; `mfu` is 0 where a GPU's peak is not known. `memory_bytes` is the fullest
    rank's. `verdicts` are sentences on hosts and links that are slower than planned.
    """

    step: int
    loss: float
    eval_loss: float | None
    grad_norm: float | None
    learning_rate: float
    step_s: float
    compute_s: float
    exposed_s: float
    tokens_per_s: float
    tflops_per_s: float
    mfu: float
    memory_bytes: int
    verdicts: tuple[str, ...]
    interfaces: tuple[InterfaceBytes, ...]

    def as_json(self) -> dict[str, Any]:
        """For metrics.jsonl."""
        return asdict(self)


class FinishedStep(NamedTuple):
    """A step that all ranks have finished, and what rank 0 found slow after it."""

    metrics: StepMetrics
    verdicts: tuple[Verdict, ...]


class StepCollector:
    """Holds the ranks' reports of a step until all have come."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._reports: dict[int, dict[int, dict[str, Any]]] = {}

    def add(self, report: dict[str, Any]) -> FinishedStep | None:
        """The step, once the last of its ranks has reported; None before."""
        reports = self._reports.setdefault(report["step"], {})
        reports[report["rank"]] = report
        if len(reports) < self._plan.world_size:
            return None
        del self._reports[report["step"]]
        verdicts = tuple(verdict_from_json(data) for report in reports.values() for data in report["verdicts"])
        return FinishedStep(self._merge(report["step"], reports, verdicts), verdicts)

    def _merge(self, step: int, reports: dict[int, dict[str, Any]], verdicts: tuple[Verdict, ...]) -> StepMetrics:
        losses = [report["loss"] for report in reports.values() if report["loss"] is not None]
        evaluated = [report["eval_loss"] for report in reports.values() if report["eval_loss"] is not None]
        exposed = [sum(report["exposed_s"][axis] for axis in NETWORK_AXES) for report in reports.values()]
        step_s = max(report["step_s"] for report in reports.values())
        tokens = self._plan.job.global_batch_size * self._plan.job.model.seq_length
        return StepMetrics(
            step=step,
            loss=statistics.fmean(losses),
            eval_loss=statistics.fmean(evaluated) if evaluated else None,
            grad_norm=reports[0]["grad_norm"],
            learning_rate=reports[0]["learning_rate"],
            step_s=step_s,
            compute_s=max(report["compute_s"] for report in reports.values()),
            exposed_s=max(exposed),
            tokens_per_s=tokens / step_s,
            tflops_per_s=min(report["tflops_per_s"] for report in reports.values()),
            mfu=min(report["mfu"] for report in reports.values()),
            memory_bytes=max(report["memory_bytes"] for report in reports.values()),
            verdicts=tuple(verdict.sentence for verdict in verdicts),
            interfaces=tuple(self._interfaces(reports)),
        )

    def _interfaces(self, reports: dict[int, dict[str, Any]]) -> Iterable[InterfaceBytes]:
        hosts = {rank.rank: rank.host for rank in self._plan.ranks}
        for rank in sorted(reports):
            for netdev, counted in sorted(reports[rank]["interfaces"].items()):
                yield InterfaceBytes(hosts[rank], netdev, counted["sent_bytes"], counted["received_bytes"])


def settled(steps: Sequence[StepMetrics]) -> Sequence[StepMetrics]:
    """The steps to judge speed by: all but the first, which sets up connections and caches, if there are others."""
    return steps[1:] if len(steps) > 1 else steps


def median_step_s(steps: Sequence[StepMetrics]) -> float:
    """Median seconds of the settled steps."""
    return statistics.median(step.step_s for step in settled(steps))


def by_interface(traffic: Iterable[InterfaceTraffic]) -> tuple[InterfaceTraffic, ...]:
    """One entry an interface, which is what counters count: where two networks share one, their bytes add up."""
    merged: dict[tuple[str, str], InterfaceTraffic] = {}
    for port in traffic:
        known = merged.get((port.host, port.netdev))
        merged[port.host, port.netdev] = port if known is None else _added(known, port)
    return tuple(merged.values())


def _added(one: InterfaceTraffic, other: InterfaceTraffic) -> InterfaceTraffic:
    return InterfaceTraffic(
        host=one.host,
        netdev=one.netdev,
        network=f"{one.network} + {other.network}",
        sent_bytes=one.sent_bytes + other.sent_bytes,
        received_bytes=one.received_bytes + other.received_bytes,
    )


def traffic_per_step(steps: Sequence[StepMetrics], planned: Iterable[InterfaceTraffic]) -> tuple[InterfaceTraffic, ...]:
    """Mean bytes a step moved over each interface the plan names, in the plan's order.

    Of all steps: weights that a step gathers travel into the next one, so the first counts too few, the last too many.
    """
    result = []
    for expected in by_interface(planned):
        place = (expected.host, expected.netdev)
        found = [port for step in steps for port in step.interfaces if (port.host, port.netdev) == place]
        sent = sum(port.sent_bytes for port in found) // len(steps)
        received = sum(port.received_bytes for port in found) // len(steps)
        result.append(expected.model_copy(update={"sent_bytes": sent, "received_bytes": received}))
    return tuple(result)
