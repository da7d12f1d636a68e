"""Reasons for stages that span clusters, in sentences, from the plan and the tensor groups that fit on its hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import Plan
from planner.advice.explain import ranges
from planner.problem.problem import read_problem


def cluster_spans(inventory: Inventory, plan: Plan) -> tuple[str, ...]:
    """Return a sentence for each way that pipeline ranks span clusters; none if every stage is in one."""
    held = _replicas_held(plan)
    spanning = [pp_rank for pp_rank, counts in enumerate(held) if len(counts) > 1]
    if not spanning:
        return ()
    group_slots = _group_slots(inventory, plan)
    alike: dict[tuple[str, str], list[int]] = {}
    for pp_rank in spanning:
        reason = _reason(plan, held[pp_rank], _room(group_slots, held, pp_rank))
        alike.setdefault((_joined(sorted(held[pp_rank])), reason), []).append(pp_rank)
    return tuple(_sentence(plan, pp_ranks, clusters, reason) for (clusters, reason), pp_ranks in alike.items())


def _replicas_held(plan: Plan) -> list[Counter[str]]:
    """Return, by pipeline rank, the number of its replicas in each cluster."""
    held: list[Counter[str]] = [Counter() for _ in range(plan.pp)]
    for rank in plan.ranks:
        held[rank.pp_rank][rank.cluster] += rank.tp_rank == 0
    return held


def _group_slots(inventory: Inventory, plan: Plan) -> Counter[str]:
    """Return, by cluster, the number of replicas of a stage that fit on all its hosts."""
    group_slots: Counter[str] = Counter()
    for each in read_problem(inventory, plan.job).fleet.classes:
        group_slots[each.cluster] += each.num_group_slots(plan.tp)
    return group_slots


def _room(group_slots: Mapping[str, int], held: Sequence[Mapping[str, int]], pp_rank: int) -> dict[str, int]:
    """Return, by cluster, the number of replicas of the pipeline rank for which the others leave room."""
    others = [counts for each, counts in enumerate(held) if each != pp_rank]
    return {name: count - sum(counts.get(name, 0) for counts in others) for name, count in group_slots.items()}


def _reason(plan: Plan, held: Mapping[str, int], room: Mapping[str, int]) -> str:
    if plan.order == "usual":
        return "the usual order numbers hosts without regard to clusters"
    if plan.solve.crossing == "data" and plan.pp > 1:
        return "each replica is entirely in one cluster, so no activations cross"
    roomiest = max(room, key=room.__getitem__)
    if room[roomiest] >= plan.dp:
        return f"{roomiest} alone has room, but the search found no faster step that way"
    counts = [f"{name} {'' if index else 'has room '}for {room[name]}" for index, name in enumerate(sorted(held))]
    placed = "with the other stages placed, " if plan.pp > 1 else ""
    return f"{placed}{_joined(counts)} of {plan.dp} replicas"


def _sentence(plan: Plan, pp_ranks: Sequence[int], clusters: str, reason: str) -> str:
    stages = [stage.index for stage in plan.stages if stage.index % plan.pp in pp_ranks]
    who, whose = (f"Stages {ranges(stages)} span", "their") if len(stages) > 1 else (f"Stage {stages[0]} spans", "its")
    return f"{who} clusters {clusters}: {reason}; {whose} gradients cross on the shared network."


def _joined(words: Sequence[str]) -> str:
    """Join words as `a`, `a and b`, `a, b and c`."""
    return " and ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)
