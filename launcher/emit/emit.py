"""Convert a plan to the format of another launcher, or refuse what that format cannot express."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping

from holmes_core.errors import HolmesError
from holmes_core.hosts.host_pattern import NAME_PATTERN
from holmes_core.records.plan import Plan
from launcher.emit.folder_files import plain_files, start_files
from launcher.emit.kubernetes_objects import kubernetes_files
from launcher.emit.mpi_job import mpi_files
from launcher.emit.pod_script import NODE_SCRIPT, node_script
from launcher.emit.slurm_job import slurm_files
from launcher.emit.start_script import START_SCRIPT, slurm_name, start_script
from launcher.emit.torchrun_commands import COMMANDS, bare_commands, commands
from launcher.prepare.prepare import secret_files
from launcher.prepare.user_variables import UserVariables


def check_format(form: str) -> str:
    """Return `form`. Raises HolmesError with the list of formats if it is unknown."""
    if form not in FORMATS:
        raise HolmesError(f"--to {form}: no format of that name", f"one of {', '.join(FORMATS)}")
    return form


def emit(plan: Plan, form: str, variables: UserVariables) -> dict[str, str]:
    """Return the files of format `form` by name. Raises HolmesError if the format cannot express the plan."""
    check_format(form)
    if any(node.tunnel_endpoint is not None for node in plan.nodes):
        raise HolmesError(
            f"--to {form}: hosts.yaml asks for encryption between clusters, which agents set up, and none run there",
            "start it by `holmes launch`; or take `security:` out of hosts.yaml, probe and plan again",
        )
    _check_names(plan, form)
    _check_ranks(plan, form)
    files = {**plain_files(plan, variables), **FORMATS[form](plan)}
    if form == "files":
        return files
    started, secrets = start_files(plan, variables), secret_files(variables)
    if form == "kubernetes":
        return {**files, **kubernetes_files(plan, {**files, **started}, secrets)}
    return {**files, START_SCRIPT: start_script(plan), **started, **secrets}


FORMATS: Mapping[str, Callable[[Plan], dict[str, str]]] = {
    "files": lambda plan: {COMMANDS: bare_commands(plan)},
    "torchrun": lambda plan: {COMMANDS: commands(plan)},
    "slurm": slurm_files,
    "mpi": mpi_files,
    "kubernetes": lambda plan: {NODE_SCRIPT: node_script(plan)},
}
START = {
    "files": "read them; docs/integrations.md says what each means",
    "torchrun": "copy the folder to every node, and start there its line of `commands`",
    "slurm": "where all nodes see the folder, in it: sbatch job.sbatch, or het.sbatch over partitions",
    "mpi": "where all nodes see the folder, in it: ./mpirun.sh",
    "kubernetes": "in the folder: kubectl create -f files.yaml -f jobset.yaml, or trainjob.yaml for Kubeflow Trainer",
}
"""The next step of a user with the files of each format."""


def _check_names(plan: Plan, form: str) -> None:
    """Refuse host and cluster names that need quoting: tables and hostfiles have no quotes."""
    for node in plan.nodes:
        for what, name in (("host", node.host), ("cluster", node.cluster), ("Slurm's name", slurm_name(node))):
            if re.fullmatch(NAME_PATTERN, name) is None:
                raise HolmesError(
                    f"--to {form}: {what} {name!r} of the plan cannot be written in this format",
                    "name it in hosts.yaml with letters, digits, `.`, `_` and `-`, then probe and plan again",
                )


def _check_ranks(plan: Plan, form: str) -> None:
    """Refuse rank orders that the format cannot reproduce.

    Launchers number the ranks of a host from 0, in order. In the format `files`, plain torchrun lines number all ranks
    host by host. In all other formats, each rank takes its number from the plan's table.
    """
    places = [(rank.host, rank.local_rank) for rank in plan.ranks]
    by_node = [(node.host, local_rank) for node in plan.nodes for local_rank in range(node.num_ranks)]
    seen = Counter[str]()
    counted = []
    for host, _ in places:
        counted.append((host, seen[host]))
        seen[host] += 1
    if places != counted or sorted(places) != sorted(by_node):
        raise HolmesError(f"--to {form}: the ranks of the plan are not those of its nodes", f"`{Plan.RENEW}` makes one")
    for rank, (place, its_own) in enumerate(zip(places, by_node, strict=True)):
        if form == "files" and place != its_own:
            what = f"rank {rank} is local rank {place[1]} of {place[0]}, torchrun would start it as {its_own[1]} of"
            raise HolmesError(f"--to {form}: {what} {its_own[0]}", "emit it for torchrun, which then takes its own")
