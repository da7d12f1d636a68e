"""One self-contained page of a run: what needs a look first, then curves against the plan, then hosts by cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from holmes_cli.pages.chart import COLOURS, Chart, Series, draw_chart
from holmes_cli.pages.figures import Stack, stacks
from holmes_cli.pages.render import render
from holmes_cli.pages.run_picture import Concern, cluster_parts, run_tiles
from holmes_cli.pages.run_traffic import LAST_STEPS, GroupTraffic, mean, traffic_of_run
from holmes_cli.screen.plan_tables import count
from holmes_cli.screen.show_run import run_sentences, state_in_words
from holmes_core.records.plan import Plan
from holmes_core.records.run import Failure
from holmes_core.units import format_bytes, format_seconds
from launcher.journal.run_store import StoredRun
from launcher.journal.step_metrics import StepMetrics
from launcher.supervise.failure import first_cause

REFRESH_S = 5
MAX_GROUPS = COLOURS  # drawn; the tables have all
OUT_OF_REACH = ("connection lost", "lost")  # states of a node


def status_page(
    stored: StoredRun,
    plan: Plan,
    steps: Sequence[StepMetrics],
    nodes: Mapping[str, str],
    notices: Sequence[str],
    followed: bool = False,
) -> str:
    """Return the page as HTML; it loads nothing from the network. `followed`: it reloads itself until the run has
    ended."""
    groups, traffic = traffic_of_run(plan, steps)
    looks = hosts_to_look_at(stored, plan, nodes, notices)
    done = steps[-1].step + 1 if steps else 0
    return render(
        "status.html.j2",
        title=f"Run {stored.run.run_id}",
        tiles=run_tiles(plan, stored.run.state, steps),
        stacks=_stacks(plan, steps),
        refresh_s=REFRESH_S if followed else None,
        summary=f"{state_in_words(stored)}; step {done} of {plan.job.steps}; predicted "
        f"{format_seconds(plan.prediction.step_s)} a step, {plan.prediction.tokens_per_s:.0f} tokens/s",
        sentences=[words for words in (stored.run.origin, *run_sentences(plan, stored.run)) if words],
        islands=(),
        headings=(),
        looks=looks,
        charts=_charts(plan, steps, groups) if steps else [],
        clusters=cluster_parts(plan, nodes, looks, groups, traffic),
        notices=notices,
        failures=cause_first(stored.run.failures),
    )


def hosts_to_look_at(
    stored: StoredRun, plan: Plan, nodes: Mapping[str, str], notices: Sequence[str]
) -> tuple[Concern, ...]:
    """Return hosts that failed, are out of reach or slow, and slow trunks, worst first, each once."""
    cluster_of = {node.host: node.cluster for node in plan.nodes}
    found: dict[str, Concern] = {}
    failures = cause_first(stored.run.failures)
    for failure in failures[:1]:
        if failure.host is not None:
            said = failure.message.strip().rpartition("\n")[2]
            found[failure.host] = Concern(failure.host, failure.cluster or "", "failed", f"failed first: {said}")
    for host, state in nodes.items():
        if state in OUT_OF_REACH and host in cluster_of:
            found.setdefault(host, Concern(host, cluster_of[host], "failed", state))
    for notice in notices:
        for slow in (*_hosts_of_verdict(notice, cluster_of), *_trunk_of_verdict(notice, plan)):
            found.setdefault(slow, Concern(slow, cluster_of.get(slow, ""), "slow", notice))
    for failure in failures:
        if failure.host is not None:
            found.setdefault(failure.host, Concern(failure.host, failure.cluster or "", "ended", "ended with the run"))
    return worst_first(found.values())


def worst_first(looks: Iterable[Concern]) -> tuple[Concern, ...]:
    """Sort failed ones first, then slow ones, then those that ended with the run."""
    return tuple(sorted(looks, key=lambda look: ("failed", "slow", "ended").index(look.role)))


def cause_first(failures: Sequence[Failure]) -> list[Failure]:
    """Return the failures in order of arrival, but with the first cause in front."""
    cause = first_cause(failures) if failures else None
    return sorted(failures, key=lambda failure: failure is not cause)


def _hosts_of_verdict(notice: str, hosts: Mapping[str, str]) -> list[str]:
    """Return the hosts that a verdict's sentence names."""
    what, name = notice.partition(":")[0].split(" ")[:2], notice.partition(":")[0].rpartition(" ")[2]
    if what in (["slow", "host"], ["slow", "data"]):
        return [name] if name in hosts else []
    if what == ["slow", "link"]:
        cuts = [index for index, letter in enumerate(name) if letter == "-"]
        pairs = [(name[:cut], name[cut + 1 :]) for cut in cuts]
        return [host for pair in pairs if all(each in hosts for each in pair) for host in pair]
    return []


def _trunk_of_verdict(notice: str, plan: Plan) -> list[str]:
    """Return the trunk between two clusters that a verdict's sentence names."""
    clusters = sorted({node.cluster for node in plan.nodes})
    trunks = (f"trunk {one} - {other}" for one, other in combinations(clusters, 2))
    return [trunk for trunk in trunks if notice.startswith(f"the {trunk} carries ")]


def _charts(plan: Plan, steps: Sequence[StepMetrics], groups: Sequence[GroupTraffic]) -> list[Chart]:
    numbers, guess = [step.step for step in steps], plan.prediction

    def flat(label: str, value: float, colour: int = 0) -> Series:
        return Series(label, [value] * len(steps), colour, is_planned=True)

    losses = [Series("training", [step.loss for step in steps])]
    if any(step.eval_loss is not None for step in steps):
        losses.append(Series("validation", [step.eval_loss for step in steps], 1))
    speeds = [Series("measured", [step.tokens_per_s for step in steps]), flat("measured", guess.tokens_per_s)]
    seconds = [
        Series("step", [step.step_s for step in steps]),
        flat("step", guess.step_s),
        Series("waiting for the network, slowest rank", [step.exposed_s for step in steps], 1),
    ]
    charts = [
        draw_chart("Loss", numbers, losses, lambda value: f"{value:.4g}", from_zero=False),
        draw_chart("Tokens/s", numbers, speeds, lambda value: f"{value:,.0f}"),
        draw_chart("Seconds a step", numbers, seconds, lambda value: format_seconds(value) if value else "0"),
    ]
    sent = []
    for colour, group in enumerate(groups[:MAX_GROUPS]):
        sent.append(Series(group.label, group.sent_bytes, colour))
        if group.planned_bytes is not None:
            sent.append(flat(group.label, group.planned_bytes, colour))
    if any(value is not None for one in sent for value in one.values):
        more = f", the {MAX_GROUPS} busiest of {len(groups)} kinds" if len(groups) > MAX_GROUPS else ""
        title = f"Sent a step by the mean host of a cluster{more}"
        charts.append(draw_chart(title, numbers, sent, lambda value: format_bytes(value) if value else "0"))
    return charts


def _stacks(plan: Plan, steps: Sequence[StepMetrics]) -> list[Stack]:
    """Return the planned step and the mean of the last ones in parts; none before a step has been measured."""
    recent = steps[-LAST_STEPS:]
    measured = zip(*((step.compute_s, step.exposed_s, step.step_s) for step in recent), strict=True)
    means = [mean([part for part in parts if part is not None]) for parts in measured]
    if not means or None in means:
        return []
    guess = plan.prediction
    planned_s = guess.compute_s, guess.exposed_tp_s + guess.exposed_edge_s + guess.exposed_dp_s, guess.step_s
    measured_s = [seconds or 0.0 for seconds in means]
    label = f"measured, mean of the last {count(len(recent), 'step')}"
    return stacks([("planned", _parts(*planned_s)), (label, _parts(*measured_s))])


def _parts(compute_s: float, waited_s: float, step_s: float) -> list[tuple[str, float]]:
    """Return the parts of a step: the busiest rank's compute, what the slowest rank waits beyond it, and the rest."""
    compute_s = min(compute_s, step_s)
    waited_s = min(waited_s, step_s - compute_s)
    return [
        ("compute", compute_s),
        ("waiting for networks", waited_s),
        ("pipeline bubble, optimizer and the rest", step_s - compute_s - waited_s),
    ]
