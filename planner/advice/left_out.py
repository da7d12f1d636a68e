"""Hosts and GPUs that a plan does not use, and the reasons, in sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from holmes_core.measured_networks import relayed_pairs
from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import Plan
from holmes_core.units import format_names
from planner.problem.fleet import slots_of

MAX_NAMED = 8  # hosts in a sentence


def left_out_sentences(plan: Plan, inventory: Inventory) -> tuple[str, ...]:
    """Return a sentence for each reason: no answer to the probe, refused by it, no GPU, no use to the fastest plan."""
    silent = [host.name for host in inventory.hosts if not host.reachable]
    refused = {name: finding for name, finding in inventory.refusals.items() if name not in silent}
    slots = {
        host.name: len(slots_of(host.for_job(), plan.job))
        for host in inventory.hosts
        if host.name not in silent and host.name not in refused and host.gpus_stated != ()
    }
    return (
        *_sentence(silent, "did not answer the probe; see its findings"),
        *(
            sentence
            for rule in dict.fromkeys(finding.rule for finding in refused.values())
            for sentence in _sentence(
                [name for name, finding in refused.items() if finding.rule == rule],
                f"the probe refuses to launch there ({rule}); fix it and probe again",
            )
        ),
        *_sentence([name for name, count in slots.items() if not count], "no GPU was found"),
        *_behind_hub(plan, inventory, slots),
        *_unused(plan, slots),
    )


def _behind_hub(plan: Plan, inventory: Inventory, slots: dict[str, int]) -> tuple[str, ...]:
    """Return a sentence about the hosts of other clusters that only the tunnel's hub joins; take these from `slots`."""
    used = {rank.cluster for rank in plan.ranks}
    joined = {name for pair in relayed_pairs(inventory) for name in pair}
    others = [
        host for each in inventory.clusters if each.name in joined - used for host in each.hosts if slots.pop(host, 0)
    ]
    hub = inventory.security.tunnel_hub
    return _sentence(
        others, f"{hub} relays the tunnel between islands only, and {', '.join(used)} alone is the fastest"
    )


def _unused(plan: Plan, slots: Mapping[str, int]) -> tuple[str, ...]:
    """Return sentences about hosts with none of the plan's ranks, or with fewer than would fit."""
    used = Counter(rank.host for rank in plan.ranks)
    free = {name: count - used[name] for name, count in slots.items() if count > used[name]}
    if not free:
        return ()
    kind = "GPUs" if plan.job.device == "cuda" else "slots"
    before = f"{sum(free.values())} of {sum(slots.values())} {kind}, on "
    return _sentence(free, _reason(plan, sum(count // plan.tp for count in slots.values())), before)


def _reason(plan: Plan, group_slots: int) -> str:
    """Return the reason why more would not help, if the plan's degrees show it."""
    fixed = plan.job.parallel
    if fixed.pp and fixed.dp:
        return f"job.yaml fixes pp {fixed.pp} and dp {fixed.dp}"
    total, most = sum(plan.microbatches), group_slots // plan.pp
    busiest = -(-total // plan.dp)
    most, now = most // plan.job.cp, plan.engine_dp
    if most > now and -(-total // (most * plan.job.cp)) == busiest:
        replicas = f"{most} replicas" if most == now + 1 else f"{now + 1} to {most} replicas"
        return (
            f"with {replicas}, the busiest would also run {busiest} of a step's {total} micro-batches, and no other "
            "degrees were found to be faster"
        )
    if group_slots < (plan.dp + plan.job.cp) * plan.pp:
        return f"too few for another replica of {plan.pp} pipeline ranks, and no other degrees were faster"
    return "the search found no faster step with them"


def _sentence(hosts: Iterable[str], reason: str, before: str = "") -> tuple[str, ...]:
    names = list(hosts)
    if not names:
        return ()
    return (f"Left out: {before}{format_names(names, MAX_NAMED)}: {reason}.",)
