"""One self-contained page of a run: loss, throughput and traffic as curves, then nodes, notices and failures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from holmes_cli.pages.render import render
from holmes_cli.screen.show_run import state_in_words
from holmes_core.records.plan import Plan
from holmes_core.units import format_bytes
from launcher.journal.run_store import StoredRun
from launcher.journal.step_metrics import StepMetrics

WIDTH, HEIGHT, MARGIN = 860, 220, 8
COLOURS = ("#0969da", "#1a7f37", "#bf3989", "#9a6700", "#cf222e", "#8250df", "#57606a", "#0a7ea4")
MOST_POINTS = 1000


@dataclass(frozen=True)
class Curve:
    """One line of a chart; `points` as SVG wants them."""

    label: str
    colour: str
    points: str


@dataclass(frozen=True)
class Chart:
    """Curves over steps on one scale."""

    title: str
    curves: tuple[Curve, ...]
    low_text: str
    high_text: str
    first: int
    last: int
    width: int = WIDTH
    height: int = HEIGHT


def status_page(
    stored: StoredRun, plan: Plan, steps: Sequence[StepMetrics], nodes: Mapping[str, str], notices: Sequence[str]
) -> str:
    """The page as HTML; needs nothing from the network to be shown."""
    return render(
        "status.html.j2",
        title=f"Run {stored.run.run_id}",
        summary=f"{state_in_words(stored)}; step {len(steps)} of {plan.job.steps}; "
        f"predicted {plan.prediction.step_s:.3g} s a step, {plan.prediction.tokens_per_s:.0f} tokens/s",
        charts=_charts(steps) if steps else [],
        nodes=[(node.node_rank, node.host, node.cluster, nodes.get(node.host, "")) for node in plan.nodes],
        notices=notices,
        failures=stored.run.failures,
    )


def _charts(steps: Sequence[StepMetrics]) -> list[Chart]:
    """Of a long run every n-th step."""
    shown = sorted(steps, key=lambda step: step.step)[:: -(-len(steps) // MOST_POINTS)]
    ports = sorted({(port.host, port.netdev) for step in shown for port in step.interfaces})
    sent = {
        f"{host} {netdev}": [
            sum(port.sent_bytes for port in step.interfaces if (port.host, port.netdev) == (host, netdev))
            for step in shown
        ]
        for host, netdev in ports
    }
    return [
        _chart("Loss", shown, {"loss": [step.loss for step in shown]}, lambda value: f"{value:.4f}"),
        _chart("Tokens/s", shown, {"tokens/s": [step.tokens_per_s for step in shown]}, lambda value: f"{value:.0f}"),
        _chart("Bytes sent a step", shown, sent or {"none": [0] * len(shown)}, format_bytes),
    ]


def _chart(
    title: str, steps: Sequence[StepMetrics], curves: Mapping[str, Sequence[float]], text: Callable[[float], str]
) -> Chart:
    low = min(min(values) for values in curves.values())
    high = max(max(values) for values in curves.values())
    first, last = steps[0].step, steps[-1].step

    def points(values: Sequence[float]) -> str:
        return " ".join(
            f"{_scaled(step.step, first, last, WIDTH):.1f},{HEIGHT - _scaled(value, low, high, HEIGHT):.1f}"
            for step, value in zip(steps, values, strict=True)
        )

    drawn = tuple(
        Curve(label, COLOURS[index % len(COLOURS)], points(values))
        for index, (label, values) in enumerate(curves.items())
    )
    return Chart(title, drawn, text(low), text(high), first, last)


def _scaled(value: float, low: float, high: float, size: int) -> float:
    """`value` of [low, high] in pixels of a side that long."""
    share = (value - low) / (high - low) if high > low else 0.5
    return MARGIN + share * (size - 2 * MARGIN)
