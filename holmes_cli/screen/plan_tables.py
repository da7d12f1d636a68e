"""A plan as tables of text, for the screen and the page alike; stages, groups and interfaces alike are one row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import Plan, PlanGroup, PlanStage
from holmes_core.units import format_bytes, format_memory, format_rate, format_seconds
from holmes_runtime.config.rank_grid import Axis
from planner.advice.explain import NicLoad, StageMemory, leave_hosts, nic_loads, ranges, stage_memories, step_parts

MAX_ROWS = 16  # a longer table is folded
BAR_WIDTH = 24
AXES: dict[Axis, str] = {
    "dp": "dp",
    "dp_across": "dp across",
    "ep": "experts",
    "expert_dp": "dp of experts",
    "expert_dp_across": "dp of experts across",
    "tied": "tied table",
    "pp_forward": "forward",
    "pp_backward": "backward",
    "tp": "tp",
    "cp": "cp",
}


@dataclass(frozen=True)
class Sheet:
    """A table: a title, one heading per column, and rows of as many cells."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def plan_sheets(plan: Plan, inventory: Inventory) -> tuple[Sheet, ...]:
    """Return tables of stages, groups, traffic, the predicted step in parts, and the runners-up if the search kept
    any."""
    return (
        _stages(plan, stage_memories(inventory, plan)),
        _groups(plan),
        _traffic(plan, nic_loads(inventory, plan)),
        _step(plan),
        *([_runners_up(plan)] if plan.solve.alternatives else []),
    )


def describe(plan: Plan) -> str:
    """Return degrees, micro-batches, schedule and order in a line."""
    order = "usual rank order" if plan.order == "usual" else "placed by Holmes"
    return f"{describe_degrees(plan)}; {order}"


def describe_degrees(plan: Plan) -> str:
    """Return degrees, micro-batches and schedule in a line."""
    counts = "-".join(str(number) for number in sorted({min(plan.microbatches), max(plan.microbatches)}))
    batches = f"micro-batch {plan.micro_batch_size} x {counts}"
    states = ", optimizer states in host memory" if plan.optimizer_offload else ""
    if plan.optimizer_instances > 1:
        states = f", {plan.optimizer_instances} optimizer instances"
    schedule = plan.schedule + (f" ({plan.chunks} stages a rank)" if plan.chunks > 1 else "")
    method = _method(schedule, plan.recompute, plan.zero)
    experts = f" ep={plan.job.parallel.ep or 1}" if plan.job.model.experts is not None else ""
    experts += f" etp={plan.job.etp}" if plan.job.etp > 1 else ""
    context = f" cp={plan.job.cp}" if plan.job.cp > 1 else ""
    return f"tp={plan.tp} pp={plan.pp} dp={plan.engine_dp}{context}{experts}, {batches}, {method}{states}"


def count(number: int, noun: str) -> str:
    """Return `1 host`, `2 hosts`."""
    return f"{number} {noun}{'s' if number != 1 else ''}"


def bar(part: float, whole: float, width: int = BAR_WIDTH) -> str:
    """Return `part` of `whole` as blocks, at most `width` of them; any positive part shows."""
    if not part or not whole:
        return ""
    full, rest = divmod(max(1, round(8 * width * min(1.0, part / whole))), 8)
    return "█" * full + ("▏▎▍▌▋▊▉"[rest - 1] if rest else "")


def _stages(plan: Plan, memories: Sequence[StageMemory]) -> Sheet:
    ranks: dict[int, list[int]] = {}
    for rank in plan.ranks:
        ranks.setdefault(rank.pp_rank, []).append(rank.rank)
    fold = len(plan.stages) > MAX_ROWS
    alike = groupby(plan.stages, key=lambda stage: (stage.num_layers, stage.clusters) if fold else stage.index)
    headings = ("stage", "layers", "cluster", "ranks", "memory a rank", "of the GPU's")
    return Sheet("Stages", headings, tuple(_stage_row(plan, list(stages), ranks, memories) for _, stages in alike))


def _stage_row(
    plan: Plan, stages: Sequence[PlanStage], ranks: Mapping[int, Sequence[int]], memories: Sequence[StageMemory]
) -> tuple[str, ...]:
    """Return the row of one stage, or of several alike with the memory of the fullest."""
    first, last = stages[0], stages[-1]
    held = sorted({rank for stage in stages for rank in ranks[stage.index % plan.pp]})
    fullest = max((memories[stage.index % plan.pp] for stage in stages), key=lambda memory: memory.fullness)
    need, room = fullest.needed_bytes, fullest.available_bytes
    return (
        ranges([stage.index for stage in stages]),
        f"{first.first_layer}-{last.stop_layer - 1} ({first.num_layers}{' each' if len(stages) > 1 else ''})",
        " + ".join(first.clusters),
        ranges(held),
        format_memory(need),
        f"{format_memory(room)} {bar(need, room, 12)} {need / room:.0%}" if room else "not known",
    )


def _groups(plan: Plan) -> Sheet:
    fold = len(plan.groups) > MAX_ROWS
    kinds: dict[object, tuple[bool, list[PlanGroup]]] = {}
    for group, leaves in zip(plan.groups, leave_hosts(plan), strict=True):
        carrier = (group.network, group.rate_bytes_per_s, group.codec) if leaves else None
        kind = (group.axis, len(group.ranks), carrier) if fold else group.name
        kinds.setdefault(kind, (leaves, []))[1].append(group)
    headings = ("group", "ranks", "network", "interfaces", "rate")
    return Sheet("Process groups", headings, tuple(_group_row(groups, leaves) for leaves, groups in kinds.values()))


def _group_row(groups: Sequence[PlanGroup], leaves: bool) -> tuple[str, ...]:
    """Return the row of one group, or of several that differ only in their members; `leaves`: a network carries
    them."""
    first, many = groups[0], len(groups) > 1
    name = f"{len(groups)} x {AXES[first.axis]}" if many else first.name
    members = f"{len(first.ranks)} each" if many else ranges(sorted(first.ranks))
    if not leaves:
        return (name, members, "inside the host", "", "")
    transports = [*(["NVLink"] if first.nvlink else []), *([first.net_name] if first.net_name else [])]
    network = first.network + (f" ({', '.join(transports)})" if transports else "")
    network += "".join(f", {codec}" for codec in sorted({group.codec for group in groups}) if codec != "none")
    interfaces = ", ".join(sorted({name for group in groups for name in group.interfaces}))
    return (name, members, network, interfaces, format_rate(first.rate_bytes_per_s))


def _traffic(plan: Plan, loads: Sequence[NicLoad]) -> Sheet:
    fold = len(loads) > MAX_ROWS
    kinds: dict[object, list[NicLoad]] = {}
    for load in loads:
        kinds.setdefault((load.cluster, load.netdev, load.network) if fold else load, []).append(load)
    headings = ("cluster", "host", "interface", "network", "rate", "sent", "received", "busy")
    return Sheet("Traffic a step", headings, tuple(_traffic_row(plan, alike) for alike in kinds.values()))


def _traffic_row(plan: Plan, loads: Sequence[NicLoad]) -> tuple[str, ...]:
    """Return the row of one interface, or of the busiest with that name in a cluster."""
    most = max(loads, key=lambda load: (load.busy_s or 0.0, load.sent_bytes + load.received_bytes))
    host = most.host if len(loads) == 1 else f"{most.host}, busiest of {len(loads)}"
    busy = "not known"
    if most.busy_s is not None and plan.prediction.step_s:
        busy = f"{format_seconds(most.busy_s)} ({most.busy_s / plan.prediction.step_s:.0%})"
    rate = format_rate(most.bandwidth_bytes_per_s)
    sent, received = format_bytes(most.sent_bytes), format_bytes(most.received_bytes)
    return (most.cluster, host, most.netdev, most.network, rate, sent, received, busy)


def _step(plan: Plan) -> Sheet:
    guess, usual = plan.prediction, plan.usual_order
    others = [format_seconds(part.seconds) for part in step_parts(usual)] if usual else []
    rows = []
    for index, part in enumerate(step_parts(guess, plan.job)):
        share = part.seconds / guess.step_s if guess.step_s else 0.0
        cells = (part.name, format_seconds(part.seconds), f"{share:.0%}", bar(part.seconds, guess.step_s))
        rows.append((*cells, *others[index : index + 1]))
    title = f"Predicted step: {format_seconds(guess.step_s)}, {guess.tokens_per_s:.0f} tokens/s"
    return Sheet(title, ("part", "seconds", "share", "", *(["usual order"] if usual else [])), tuple(rows))


def _runners_up(plan: Plan) -> Sheet:
    """Return the next candidates, with how much slower each is and why it lost."""
    rows = tuple(
        (
            f"tp={other.tp} pp={other.pp} dp={other.dp // plan.job.cp}, micro-batch {other.micro_batch_size}, "
            f"{_method(other.schedule, other.recompute, other.zero)}",
            other.crossing,
            format_seconds(other.step_s),
            f"{other.step_s / plan.prediction.step_s - 1:+.1%}" if plan.prediction.step_s else "",
            other.why,
        )
        for other in plan.solve.alternatives
    )
    return Sheet("Runners-up", ("degrees", "crosses", "step", "", "why it lost"), rows)


def _method(schedule: str, recompute: str, zero: int) -> str:
    return schedule + (f", {recompute} recomputation" if recompute != "none" else "") + ", ZeRO-3" * (zero == 3)
