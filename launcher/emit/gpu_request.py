"""The number of GPUs that a scheduler is asked for on a node."""

from __future__ import annotations

from holmes_core.records.plan import Node, Plan


def gpus_to_request(plan: Plan, node: Node) -> int | None:
    """Return one more than the highest index in the plan, as a job's GPUs are numbered from 0; None on CPUs.

    The plan's indices hold where a job gets all GPUs of the node. Of more GPUs the scheduler chooses.
    """
    found = [rank.gpu for rank in plan.ranks if rank.host == node.host and rank.gpu is not None]
    return max(found) + 1 if found else None
