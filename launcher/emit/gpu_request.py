"""The number of GPUs to request from a scheduler on a node."""

from __future__ import annotations

from holmes_core.records.plan import Node, Plan


def gpus_to_request(plan: Plan, node: Node) -> int | None:
    """Return the highest GPU index in the plan plus one, or None on CPUs. A job numbers its GPUs from 0.

    The plan's indices hold only if the job gets all GPUs of the node. Of a larger number, the scheduler chooses some.
    """
    found = [rank.gpu for rank in plan.ranks if rank.host == node.host and rank.gpu is not None]
    return max(found) + 1 if found else None
