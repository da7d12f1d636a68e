"""A `Connection` to a host: an SSH login, a shell on this machine, or steps of a Slurm job."""

from __future__ import annotations

from holmes_core.records.access import Access
from holmes_core.remote.local_shell import LocalConnection
from holmes_core.remote.slurm.slurm_step import connect_by_slurm
from holmes_core.remote.ssh_client import SshConnection
from holmes_core.remote.transport import Connection


def connect(host: str, access: Access) -> Connection:
    """Return an open connection to `host`.

    Raises:
        HostError: The host cannot be reached or entered. It names the remedy.
    """
    if access.transport == "slurm":
        return connect_by_slurm(host, access)
    return LocalConnection(host) if access.transport == "local" else SshConnection(host, access)
