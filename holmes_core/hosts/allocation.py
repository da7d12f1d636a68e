"""The nodes of the Slurm job in which this process runs, from Slurm's own variables.

Source: Slurm 22.05, sbatch(1) and srun(1), "OUTPUT ENVIRONMENT VARIABLES"; heterogeneous_jobs; checked on 22.05.8.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from holmes_core.errors import HolmesError
from holmes_core.hosts.host_pattern import expand_pattern
from holmes_core.hosts.hosts_file import HostEntry, HostsFile

NODES = "SLURM_JOB_NODELIST"
COMPONENTS = "SLURM_HET_SIZE"


def is_in_allocation(environ: Mapping[str, str]) -> bool:
    """Return True if this process runs inside a Slurm job."""
    return NODES in environ


def allocated_nodes(environ: Mapping[str, str]) -> dict[str, int | None]:
    """Return Slurm's names of the job's nodes, in order, with the component of a heterogeneous job, else None.

    Raises:
        HolmesError: This is not inside a job, or a component's list is missing.
    """
    if COMPONENTS not in environ:
        return dict.fromkeys(expand_pattern(_variable(NODES, environ)))
    return {
        name: component
        for component in range(int(_variable(COMPONENTS, environ)))
        for name in expand_pattern(_variable(f"{NODES}_HET_GROUP_{component}", environ))
    }


def allocation_hosts(environ: Mapping[str, str]) -> HostsFile:
    """Return the job's nodes as in hosts.yaml, reached by job steps that use this process's Python."""
    hosts = tuple(HostEntry(name=name) for name in allocated_nodes(environ))
    return HostsFile(hosts=hosts, transport="slurm", python=sys.executable)


def _variable(name: str, environ: Mapping[str, str]) -> str:
    if not environ.get(name):
        raise HolmesError(f"{name} is not set: this is not inside a Slurm job", "run it in `sbatch` or `salloc`")
    return environ[name]
