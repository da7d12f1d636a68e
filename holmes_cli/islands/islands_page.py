"""One self-contained page of a run of islands (DiLoCo replicas): their states, curves in one chart, and all hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from holmes_cli.islands.islands_view import exchange_in_words
from holmes_cli.islands.show_islands import HEADINGS
from holmes_cli.pages.chart import Chart, Series, draw_chart
from holmes_cli.pages.render import render
from holmes_cli.pages.run_picture import ClusterPart, Concern, cluster_parts
from holmes_cli.pages.run_traffic import traffic_of_run
from holmes_cli.pages.status_page import REFRESH_S, cause_first, hosts_to_look_at, worst_first
from holmes_cli.screen.plan_tables import count
from holmes_cli.screen.show_run import safe_in_words, state_in_words
from holmes_core.records.plan import Plan
from holmes_core.records.run import Failure
from holmes_runtime.config.rank_metrics import AppliedOuterSync
from launcher.journal.run_store import StoredRun
from launcher.journal.step_metrics import StepMetrics


@dataclass(frozen=True)
class IslandState:
    """An island as its run folder shows it. `row` is its line under HEADINGS; `nodes` are states by host."""

    row: tuple[str, ...]
    stored: StoredRun
    plan: Plan
    steps: Sequence[StepMetrics]
    nodes: Mapping[str, str]
    notices: Sequence[str]
    exchanges: Sequence[AppliedOuterSync]

    @property
    def name(self) -> str:
        return self.row[0]

    @property
    def sentences(self) -> tuple[str, ...]:
        """The sentences on its weights, its newest whole checkpoint, its last outer sync, and its own page."""
        run = self.stored.run
        joined = sum(exchange.has_joined for exchange in self.exchanges)
        texts = (
            run.origin,
            safe_in_words(self.plan, run),
            exchange_in_words(self.exchanges[-1]) if self.exchanges else "no outer sync yet",
            f"joined late in {count(joined, 'outer sync')}" if joined else None,
            f"its own page: `holmes status {run.run_id} --html {self.name}.html`",
        )
        return tuple(text for text in texts if text)


def islands_status_page(
    stored: StoredRun,
    islands: Sequence[IslandState],
    sentences: Sequence[str],
    notices: Sequence[str],
    followed: bool = False,
) -> str:
    """Return the page as HTML; `sentences` and `notices` are of the whole run. `followed`: it refreshes itself."""
    concerns, clusters = list[Concern](), list[ClusterPart]()
    failures, texts = list[Failure](), list(notices)
    for island in islands:
        looked = hosts_to_look_at(island.stored, island.plan, island.nodes, island.notices)
        concerns += looked
        groups, traffic = traffic_of_run(island.plan, island.steps)
        clusters += cluster_parts(island.plan, island.nodes, looked, groups, traffic)
        failures += cause_first(island.stored.run.failures)
        own = (f"{island.name.replace('-', ' ')}: {notice}" for notice in island.notices)
        texts += [notice for notice in own if notice not in notices]
    return render(
        "status.html.j2",
        title=f"Run {stored.run.run_id}",
        tiles=(),
        stacks=(),
        refresh_s=REFRESH_S if followed else None,
        summary=f"{state_in_words(stored)}; {count(len(islands), 'island')}",
        sentences=sentences,
        islands=islands,
        headings=HEADINGS,
        looks=worst_first(concerns),
        charts=_charts(islands),
        clusters=clusters,
        notices=texts,
        failures=failures,
    )


def _charts(islands: Sequence[IslandState]) -> list[Chart]:
    """Return one chart per quantity, with a curve per island over that island's own steps."""
    numbers = sorted({step.step for island in islands for step in island.steps})

    def series(value: Callable[[StepMetrics], float | None]) -> list[Series]:
        found = []
        for colour, island in enumerate(islands):
            by_step = {step.step: value(step) for step in island.steps}
            found.append(Series(island.name, [by_step.get(number) for number in numbers], colour))
        return found

    def planned(colour: int, island: IslandState) -> Series:
        return Series(island.name, [island.plan.prediction.tokens_per_s] * len(numbers), colour, is_planned=True)

    speeds = series(lambda step: step.tokens_per_s)
    speeds += [planned(colour, island) for colour, island in enumerate(islands)]
    drawn = (
        ("Loss, by each island's own steps", series(lambda step: step.loss), "{:.4g}", False),
        ("Validation loss", series(lambda step: step.eval_loss), "{:.4g}", False),
        ("Tokens/s", speeds, "{:,.0f}", True),
    )
    return [
        draw_chart(title, numbers, curves, words.format, from_zero)
        for title, curves, words, from_zero in drawn
        if numbers and any(value is not None for curve in curves for value in curve.values)
    ]
