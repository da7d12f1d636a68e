"""The plan of one run on clusters that a hub joins. The hub relays between islands only, so one cluster trains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from holmes_core.errors import HolmesError
from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import Plan
from planner.cluster_subset import only_clusters, training_clusters

Planned = TypeVar("Planned")


def fastest_alone(
    inventory: Inventory,
    make: Callable[[Inventory, float], Planned],
    step_s: Callable[[Planned], float],
    time_limit_s: float,
) -> Planned:
    """Return the result of `make` for the cluster with the shortest step; each cluster gets an equal part of the limit.

    Raises:
        HolmesError: No cluster has a plan. It is the error of the first one.
    """
    found, faults = list[Planned](), list[HolmesError]()
    names = training_clusters(inventory) or [cluster.name for cluster in inventory.clusters]
    for name in names:
        try:
            found.append(make(only_clusters(inventory, {name}), time_limit_s / len(names)))
        except HolmesError as error:
            faults.append(error)
    if not found:
        raise faults[0]
    return min(found, key=step_s)


def plan_alone(
    make: Callable[[Inventory, float, Path | None], Plan], inventory: Inventory, time_limit_s: float, lp: Path | None
) -> Plan:
    """Return the fastest plan in a single cluster. If `lp` names a file for its integer program, it is made again."""
    best = fastest_alone(
        inventory, lambda one, part_s: make(one, part_s, None), lambda plan: plan.prediction.step_s, time_limit_s
    )
    alone = only_clusters(inventory, {rank.cluster for rank in best.ranks})
    return best if lp is None else make(alone, time_limit_s, lp)
