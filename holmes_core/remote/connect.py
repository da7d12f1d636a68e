"""Log in to a host, open a shell on this one, or start steps of a Slurm job: all give a `Connection`."""

from __future__ import annotations

from holmes_core.records.access import Access
from holmes_core.remote.local_shell import LocalConnection
from holmes_core.remote.slurm.slurm_step import connect_by_slurm
from holmes_core.remote.ssh_client import SshConnection
from holmes_core.remote.transport import Connection


def connect(host: str, access: Access) -> Connection:
    """An open connection to `host`. Raises HostError naming the remedy."""
    if access.transport == "slurm":
        return connect_by_slurm(host, access)
    return LocalConnection(host) if access.transport == "local" else SshConnection(host, access)
