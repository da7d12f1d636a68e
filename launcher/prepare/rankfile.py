"""A rankfile for mpirun: which host each rank runs on, and on which slot there."""

from __future__ import annotations

from holmes_core.records.plan import Plan


def rankfile(plan: Plan) -> str:
    """One line a rank. Grammar: PRRTE `--map-by rankfile:FILE=...`."""
    ranks = (f"rank {rank.rank}={rank.host} slot={rank.local_rank}" for rank in plan.ranks)
    return "\n".join([f"# plan {plan.digest()}", *ranks]) + "\n"
