"""Which run has which GPU of this host: names of sockets, which the kernel forgets with the process that holds them.

`holmes-gpu/UUID` is bound by one process at a time: that is the claim. A second name says whose it is, in
/proc/net/unix, which every user of the host reads. There is no file to own, to leave behind or to find too old; and
containers on the host's network, as ours are, see the same names. Free of torch.
"""

from __future__ import annotations

import errno
import os
import pwd
import re
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from holmes_runtime.config.messages import NodeGpu
from holmes_runtime.config.node_config import GpuClaim

_NAME = re.compile(r"@holmes-gpu/([\w-]+)/(\d+)/([\w.-]+)/([\w-]+)/(\d+)$", re.ASCII)
_MOST_USER = 16  # characters: a name of a socket has 107 bytes
SOCKETS = Path("/proc/net/unix")


class GpuClaims:
    """The GPUs that this process holds, until it ends or lets go."""

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def take(self, gpus: Sequence[int], known: Sequence[NodeGpu], run_id: str) -> tuple[GpuClaim, ...]:
        """Claim GPUs by index for a run; returns the claims of other runs that are in the way.

        `known` are the GPUs that the host lists: the same GPU has another index in another job of Slurm. Several nodes
        of one run may share a machine, and with it a GPU.
        """
        uuids = {gpu.gpu_index: gpu.uuid for gpu in known}
        taken = []
        for index in gpus:
            claim = GpuClaim(uuids.get(index, f"index-{index}"), index, _user(), run_id, int(time.time()))
            if self._bind(f"holmes-gpu/{claim.uuid}"):
                self._bind(f"holmes-gpu/{'/'.join(map(str, claim))}")
                continue
            held = read_claims(SOCKETS.read_text(errors="replace"))
            holder = next((each for each in held if each.uuid == claim.uuid), None)
            if holder is None:
                taken.append(claim._replace(user="not known", run_id="not known"))
            elif holder.run_id != run_id:
                taken.append(holder)
        return tuple(taken)

    def let_go(self) -> None:
        """Give all back."""
        while self._held:
            self._held.pop().close()

    def _bind(self, name: str) -> bool:
        """Whether the name was free; it is held then."""
        held = socket.socket(socket.AF_UNIX)
        try:
            held.bind(f"\0{name}")
        except OSError as error:
            held.close()
            if error.errno != errno.EADDRINUSE:
                raise
            return False
        self._held.append(held)
        return True


def _user() -> str:
    """The name of this process's user; the number where it has none, as in some containers."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = str(os.getuid())
    return re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)[:_MOST_USER]


def read_claims(sockets: str) -> Iterator[GpuClaim]:
    """The claims in the text of a host's /proc/net/unix."""
    for line in sockets.splitlines():
        found = _NAME.search(line)
        if found is not None:
            uuid, index, user, run_id, since_s = found.groups()
            yield GpuClaim(uuid, int(index), user, run_id, int(since_s))
