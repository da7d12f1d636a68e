"""The plan of one run on clusters that a hub joins: the hub relays between islands only, so the run has one cluster."""

from __future__ import annotations

from collections.abc import Callable

from holmes_core.errors import HolmesError
from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import Plan
from planner.cluster_subset import only_clusters


def fastest_alone(inventory: Inventory, make: Callable[[Inventory, float], Plan], time_limit_s: float) -> Plan:
    """Return the fastest of the plans that `make` gives for each cluster alone, in equal parts of the limit.

    Raises HolmesError where no cluster has one: why the first has none.
    """
    plans, faults = list[Plan](), list[HolmesError]()
    for cluster in inventory.clusters:
        try:
            plans.append(make(only_clusters(inventory, {cluster.name}), time_limit_s / len(inventory.clusters)))
        except HolmesError as error:
            faults.append(error)
    if not plans:
        raise faults[0]
    return min(plans, key=lambda plan: plan.prediction.step_s)
