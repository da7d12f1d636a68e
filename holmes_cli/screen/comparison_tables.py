"""Two plans side by side, as tables: degrees, stages, parts of the step, memory, traffic, networks, and what moved."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

from holmes_cli.screen.plan_tables import AXES, Sheet, count, describe
from holmes_core.records.plan import IslandsPlan, Plan
from holmes_core.units import format_bytes, format_duration, format_memory, format_seconds
from holmes_runtime.config.rank_grid import Axis
from planner.advice.explain import ranges, step_parts, tasklets

AnyPlan = Plan | IslandsPlan
MAX_MOVED = 12  # hosts named one by one


def comparison_sheets(plan: AnyPlan, other: AnyPlan, name: str) -> tuple[Sheet, ...]:
    """Return the figures side by side, then the hosts that hold other tasklets; `name` is the other plan's file.

    If either plan has islands, only the figures that all modes have are compared.
    """
    title, headings = f"This plan and {name}", ("", "this plan", name, "ratio")
    if isinstance(plan, Plan) and isinstance(other, Plan):
        shape = (("degrees", describe(plan), describe(other), ""), ("stages", _stages(plan), _stages(other), ""))
        figures = (*_speed(plan, other), *_sizes(plan, other), *_networks(plan, other))
        rows = (*_inputs(plan, other), *shape, *figures)
        return Sheet(title, headings, rows), _moved(plan, other, name)
    return (Sheet(title, headings, (*_inputs(plan, other), *_whole_run(plan, other))),)


def _whole_run(plan: AnyPlan, other: AnyPlan) -> tuple[tuple[str, ...], ...]:
    sides = (plan, other)
    speeds = [each.prediction.tokens_per_s for each in sides]
    runs = [each.job.steps * each.prediction.step_s if isinstance(each, Plan) else each.run_s for each in sides]
    fullest = [max(max(part.prediction.memory_bytes) for part in _parts(each)) for each in sides]
    return (
        ("mode", *map(_mode, sides), ""),
        ("degrees", *("\n".join(map(describe, _parts(each))) for each in sides), ""),
        ("tokens/s", *(f"{speed:.0f}" for speed in speeds), _ratio(*speeds)),
        ("all steps", *map(format_duration, runs), _ratio(*runs)),
        ("fullest rank", *map(format_memory, fullest), _ratio(*fullest)),
    )


def _mode(plan: AnyPlan) -> str:
    if isinstance(plan, Plan):
        return f"as one: {_clusters(plan)}"
    assert plan.job.islands is not None
    chosen = plan.job.islands.chosen()
    return (
        f"islands: {', '.join(map(_clusters, plan.islands))}\n{chosen.inner_steps} inner steps, codec {chosen.codec}, "
        f"{count(chosen.fragments, 'fragment')}, {chosen.delay_steps} late"
    )


def _clusters(plan: Plan) -> str:
    return " and ".join(dict.fromkeys(rank.cluster for rank in plan.ranks))


def _parts(plan: AnyPlan) -> tuple[Plan, ...]:
    return (plan,) if isinstance(plan, Plan) else plan.islands


def _inputs(plan: AnyPlan, other: AnyPlan) -> list[tuple[str, ...]]:
    return [
        (what, "", "another one", "")
        for what, ours, theirs in (
            ("inventory", plan.inventory, other.inventory),
            ("job", plan.job_source, other.job_source),
        )
        if ours.digest != theirs.digest
    ]


def _stages(plan: Plan) -> str:
    """Return layers and clusters of each stage, one line per run of equal stages."""
    lines = []
    for (layers, clusters), alike in groupby(plan.stages, key=lambda stage: (stage.num_layers, stage.clusters)):
        stages = ranges([stage.index for stage in alike])
        lines.append(f"{stages}: {count(layers, 'layer')} on {' + '.join(clusters)}")
    return "\n".join(lines)


def _speed(plan: Plan, other: Plan) -> list[tuple[str, ...]]:
    ours, theirs = plan.prediction, other.prediction
    parts = zip(step_parts(ours), step_parts(theirs), strict=True)
    seconds = [("step", ours.step_s, theirs.step_s), *((f"  {a.name}", a.seconds, b.seconds) for a, b in parts)]
    tokens = (f"{ours.tokens_per_s:.0f}", f"{theirs.tokens_per_s:.0f}", _ratio(ours.tokens_per_s, theirs.tokens_per_s))
    return [
        ("tokens/s", *tokens),
        *((name, format_seconds(a), format_seconds(b), _ratio(a, b)) for name, a, b in seconds),
    ]


def _sizes(plan: Plan, other: Plan) -> list[tuple[str, ...]]:
    """Return rows for the memory of the fullest rank, and the bytes on each network."""
    ours, theirs = plan.prediction, other.prediction
    fullest = max(ours.memory_bytes), max(theirs.memory_bytes)
    rows = [("fullest rank", *(format_memory(size) for size in fullest), _ratio(*fullest))]
    for network in sorted({seen.network for seen in (*ours.traffic, *theirs.traffic)}):
        sent = [sum(seen.sent_bytes for seen in guess.traffic if seen.network == network) for guess in (ours, theirs)]
        rows.append((f"sent a step on {network}", *(format_bytes(size) for size in sent), _ratio(*sent)))
    return rows


def _networks(plan: Plan, other: Plan) -> list[tuple[str, ...]]:
    rows = []
    for axis, word in AXES.items():
        used = _used(plan, axis), _used(other, axis)
        if any(used):
            rows.append((f"{word} groups use", *(text or "none" for text in used), ""))
    return rows


def _used(plan: Plan, axis: Axis) -> str:
    """Return the networks of the groups of `axis`, with the number of groups on each."""
    networks = Counter(group.network for group in plan.groups if group.axis == axis)
    return ", ".join(f"{network} ({number})" for network, number in sorted(networks.items()))


def _ratio(ours: float, theirs: float) -> str:
    return f"{ours / theirs:.2f}x" if theirs else ""


def _moved(plan: Plan, other: Plan, name: str) -> Sheet:
    now, then = _by_host(plan), _by_host(other)
    moved = [host for host in dict.fromkeys((*now, *then)) if now.get(host) != then.get(host)]
    rows = [(host, now.get(host, "nothing"), then.get(host, "nothing")) for host in moved[:MAX_MOVED]]
    if not moved:
        rows.append(("none", "", ""))
    if len(moved) > MAX_MOVED:
        rows.append((f"and {count(len(moved) - MAX_MOVED, 'more host')}", "", ""))
    title = f"Hosts that hold other tasklets: {len(moved)} of {len({*now, *then})}"
    return Sheet(title, ("host", "this plan", name), tuple(rows))


def _by_host(plan: Plan) -> dict[str, str]:
    """Return each host's tasklets in words; a host's ranks follow one another."""
    return {host: tasklets(plan, list(held)) for host, held in groupby(plan.ranks, key=lambda rank: rank.host)}
