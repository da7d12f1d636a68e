"""A hostfile that MPI and DeepSpeed both read: `host slots=n`, in the order of the ranks."""

from __future__ import annotations

from holmes_core.records.plan import Plan


def hostfile(plan: Plan) -> str:
    """One line a node. Grammar: mpirun(1) `--hostfile`; DeepSpeed's `^(\\S+)\\s+slots=(\\d+)`."""
    lines = [f"# plan {plan.digest()}", *(f"{node.host} slots={node.num_ranks}" for node in plan.nodes)]
    return "\n".join(lines) + "\n"
