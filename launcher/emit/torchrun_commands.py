"""The torchrun command of every node, to be run on that node."""

from __future__ import annotations

import shlex

from holmes_core.records.plan import Node, Plan
from launcher.emit.start_script import START_SCRIPT

COMMANDS = "commands"


def bare_commands(plan: Plan) -> str:
    """Return one torchrun line per node, to which the user adds a program. torchrun numbers ranks as the plan does."""
    lines = _head(plan, "on each node, with the variables of its node-K.env; a program of yours comes last:")
    for node in plan.nodes:
        lines += [_title(node), _torchrun(plan, node)]
    return "\n".join(lines) + "\n"


def commands(plan: Plan) -> str:
    """Return one torchrun line per node. Each process finds its rank in the plan's table."""
    lines = _head(plan, "on each node, in this folder:")
    for node in plan.nodes:
        lines += [_title(node), f"HOLMES_HOST={shlex.quote(node.host)} ./{START_SCRIPT} {torchrun_line(plan, node)}"]
    return "\n".join(lines) + "\n"


def torchrun_line(plan: Plan, node: Node) -> str:
    """Return the command that starts the node's ranks in an emitted folder. HOLMES_HOST names the node there."""
    return f"{_torchrun(plan, node)} -m holmes_runtime.node.start_rank"


def _head(plan: Plan, where: str) -> list[str]:
    return [f"# plan {plan.digest()}", f"# {where}"]


def _title(node: Node) -> str:
    return f"# node {node.node_rank}: {node.host}, cluster {node.cluster}"


def _torchrun(plan: Plan, node: Node) -> str:
    words = [
        *("-m", "torch.distributed.run"),
        *(f"--nnodes={len(plan.nodes)}", f"--node-rank={node.node_rank}", f"--nproc-per-node={node.num_ranks}"),
        *(f"--master-addr={plan.nodes[0].shared_address}", f"--master-port={plan.job.master_port}"),
        "--max-restarts=0",
    ]
    return f"{node.access.python_word} {shlex.join(words)}"
