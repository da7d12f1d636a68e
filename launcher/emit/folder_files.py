"""The files that all formats share: the table of ranks, each node's variables, and the files that start a rank."""

from __future__ import annotations

from holmes_core.records.plan import Node, Plan
from launcher.prepare.prepare import (
    Attempt,
    code_files,
    env_file,
    node_environment,
    plan_files,
    reasons_of,
    runtime_files,
)
from launcher.prepare.user_variables import UserVariables

RANK_TABLE = "ranks"
COLUMNS = ("rank", "host", "local", "node", "gpu", "cpus", "cluster", "pipeline", "replica", "shard")


def plain_files(plan: Plan, variables: UserVariables) -> dict[str, str]:
    """Return the plan as files by name: the table of ranks, the hostfile, and each node's variables with reasons."""
    environments = {f"node-{node.node_rank}.env": _environment(plan, node, variables) for node in plan.nodes}
    return {RANK_TABLE: rank_table(plan), "hostfile": _hostfile(plan), **environments}


def start_files(plan: Plan, variables: UserVariables) -> dict[str, str]:
    """Return the files from which ranks start: the runtime, the job, and the model's file or code.

    A job that is submitted again continues from its last checkpoint.
    """
    return {
        **runtime_files(),
        **variables.files,
        **code_files(variables),
        **plan_files(plan, Attempt("emitted", resume=plan.job.checkpoint is not None, from_scratch=True)),
    }


def rank_table(plan: Plan) -> str:
    """Return one line per rank, its columns separated by spaces; `-` stands for an unknown or absent value."""
    nodes = {node.host: node.node_rank for node in plan.nodes}
    lines = [f"# plan {plan.digest()}", f"# {' '.join(COLUMNS)}"]
    for rank in plan.ranks:
        where = (rank.rank, rank.host, rank.local_rank, nodes[rank.host], rank.gpu, rank.cpus, rank.cluster)
        columns = (*where, rank.pp_rank, rank.dp_rank, rank.tp_rank)
        lines.append(" ".join("-" if value is None else str(value) for value in columns))
    return "\n".join(lines) + "\n"


def _hostfile(plan: Plan) -> str:
    """Return one line per node. Grammar: mpirun(1) `--hostfile`; DeepSpeed's `^(\\S+)\\s+slots=(\\d+)`."""
    lines = [f"# plan {plan.digest()}", *(f"{node.host} slots={node.num_ranks}" for node in plan.nodes)]
    return "\n".join(lines) + "\n"


def _environment(plan: Plan, node: Node, variables: UserVariables) -> str:
    first, port = plan.nodes[0], str(plan.job.master_port)
    address = f"where {first.host} is on the network all nodes share: ranks meet there"
    environment = node_environment(node, variables) | {"MASTER_ADDR": first.shared_address, "MASTER_PORT": port}
    reasons = reasons_of(node, variables) | {"MASTER_ADDR": address, "MASTER_PORT": "master_port in job.yaml"}
    return env_file(environment, reasons, plan.digest())
