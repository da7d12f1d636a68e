"""Commands as steps of the Slurm job this process runs in, for hosts with `transport: slurm`.

When a step's `srun` ends, Slurm ends all of its processes, even daemons. An agent thus lives as long as its controller,
which therefore runs inside the job. Source: Slurm 22.05, srun(1); seen on Slurm 22.05.8.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from holmes_core.errors import HolmesError, HostError
from holmes_core.hosts.allocation import allocated_nodes
from holmes_core.records.access import Access
from holmes_core.remote.local_shell import LocalConnection
from holmes_core.remote.transport import last_lines

ANSWER_S = 60.0  # a node that boots or drains takes its time
GPUS = "SLURM_GPUS_ON_NODE"  # for the node where the batch script runs
# The job's options per task would divide the node among tasks that a step here does not have.
OF_A_TASK = ("SLURM_NTASKS_PER_NODE", "SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_GPUS_PER_TASK")


def slurm_name(host: str, access: Access) -> str:
    """Return Slurm's name of the host."""
    return access.address or host


def connect_by_slurm(host: str, access: Access, environ: Mapping[str, str] = os.environ) -> LocalConnection:
    """Return a connection to `host`, one of the job's nodes; `address` is Slurm's name for it where that differs.

    Raises:
        HostError: There is no job, the host is not one of its nodes, or Slurm starts no step on it.
    """
    node = slurm_name(host, access)
    try:
        nodes = allocated_nodes(environ)
    except HolmesError as error:
        raise HostError(host, "unreachable", error.what, error.hint) from None
    if node not in nodes:
        what = f"node {node} is not in this Slurm job, which has {', '.join(nodes)}"
        raise HostError(host, "unreachable", what, "plan on the job's own nodes: `holmes probe --allocation`")
    variables = {name: value for name, value in environ.items() if name not in OF_A_TASK}
    connection = LocalConnection(host, step_words(node, nodes[node], environ.get(GPUS)), variables)
    _try(host, connection)
    return connection


def step_words(node: str, component: int | None, gpus: str | None) -> tuple[str, ...]:
    """Return the words before a command that start it on `node` with all the job's resources, next to other steps."""
    words = ["srun", "--quiet", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}", "--unbuffered"]
    words += ["--chdir=/", "--export=ALL", "--cpu-bind=none", "--mem=0"]
    if component is not None:
        words.append(f"--het-group={component}")
    elif gpus is not None:  # in an exclusive job a step has no GPUs unless it asks
        words += [f"--gpus-per-node={gpus}", "--gpu-bind=none"]
    return tuple(words)


def _try(host: str, connection: LocalConnection) -> None:
    """Raise HostError if no step starts."""
    try:
        done = connection.run("exit 0", b"", ANSWER_S)
    except FileNotFoundError:
        raise HostError(host, "unreachable", "no `srun` here", "run this on a node with Slurm's commands") from None
    if done.exit_code:
        said = last_lines(done.stderr, 1)
        what = f"no step starts: {said[-1] if said else f'srun ends with {done.exit_code}'}"
        raise HostError(host, "unreachable", what, f"`scontrol show node` and `scontrol show job` say more of {host}")
