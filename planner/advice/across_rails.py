"""Groups with members on other rails on other hosts, in clusters whose rails do not reach one another."""

from __future__ import annotations

from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import Plan, PlanGroup
from planner.problem.rails import Rails, read_rails


def groups_across_rails(plan: Plan, inventory: Inventory) -> tuple[PlanGroup, ...]:
    """Return the groups of `plan` in such clusters whose hosts do not all use the same rails.

    A pipeline edge must have both ends on one rail. Replicas on different hosts must be on the same rails.
    """
    rails = read_rails(inventory, plan.job)
    shared = {group.name for group in plan.groups if group.net_name in (None, "Socket")}
    return tuple(group for group in plan.groups if group.name not in shared and _is_across(plan, group, rails))


def _is_across(plan: Plan, group: PlanGroup, rails: Rails) -> bool:
    on_host: dict[str, set[str]] = {}
    for rank in (plan.ranks[number] for number in group.ranks):
        if rank.host in rails.of_hosts:
            on_host.setdefault(rank.host, set()).update(rails.of_slots(rank.host, [rank.gpu]))
    return len({frozenset(each) for each in on_host.values()}) > 1


def rails_sentence(plan: Plan, inventory: Inventory) -> tuple[str, ...]:
    """Return a sentence about groups that cannot communicate on one rail, with the remedy; empty if all can."""
    found = groups_across_rails(plan, inventory)
    if not found:
        return ()
    networks = ", ".join(dict.fromkeys(group.network for group in found))
    named = ", ".join(group.name for group in found[:3]) + (", ..." if len(found) > 3 else "")
    return (
        f"Rails of cluster {networks} do not reach one another, and {len(found)} of {len(plan.groups)} groups have "
        f"ranks on different rails ({named}). NCCL passes their data by NVLink to a GPU on the right rail if the host "
        "has a rank there; otherwise it cannot connect them.",
    )
