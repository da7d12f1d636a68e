"""Claims of runs on this host's GPUs, as socket names that the kernel releases with the process that holds them.

Only one process at a time can bind `holmes-gpu/UUID`: this is the claim. A second name identifies the run, in
/proc/net/unix, which every user of the host can read. Any user can bind such a name, so the kernel is asked for its
owner. No file can be left behind. Containers on the host's network, as ours are, see the same names. Free of torch.
"""

from __future__ import annotations

import errno
import os
import pwd
import re
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from holmes_runtime.config.messages import NodeGpu
from holmes_runtime.config.node_config import GpuClaim

_NAME = re.compile(r"@holmes-gpu/([\w-]+)/(\d+)/([\w.-]+)/([\w-]+)/(\d+)$", re.ASCII)
_MAX_USER = 16  # characters: the name of a socket has 107 bytes
NOT_KNOWN = "not known"
SOCKETS = Path("/proc/net/unix")


class GpuClaims:
    """The GPUs that this process holds until it ends or releases them."""

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def take(self, gpus: Sequence[int], known: Sequence[NodeGpu], run_id: str) -> tuple[GpuClaim, ...]:
        """Claim GPUs by index for a run, and return the conflicting claims of other runs.

        `known` are the GPUs that the host lists: the same GPU has a different index in another Slurm job. Several nodes
        of one run may share a machine, and so a GPU.
        """
        uuids = {gpu.gpu_index: gpu.uuid for gpu in known}
        taken = []
        for index in gpus:
            claim = GpuClaim(uuids.get(index, f"index-{index}"), index, _user(os.getuid()), run_id, int(time.time()))
            if self._bind(f"holmes-gpu/{claim.uuid}"):
                self._bind(_name(claim))
                continue
            holder = _holder(claim)
            if holder.run_id != run_id:
                taken.append(holder)
        return tuple(taken)

    def release(self) -> None:
        """Release all claims."""
        while self._held:
            self._held.pop().close()

    def _bind(self, name: str) -> bool:
        """Bind the name and keep it. Return False if it was taken."""
        held = socket.socket(socket.AF_UNIX)
        try:
            held.bind(f"\0{name}")
            held.listen(socket.SOMAXCONN)  # for `_owner`; nothing is accepted
        except OSError as error:
            held.close()
            if error.errno != errno.EADDRINUSE:
                raise
            return False
        self._held.append(held)
        return True


def _holder(wanted: GpuClaim) -> GpuClaim:
    """Return the claim on the GPU of `wanted`: the run as its process names it, the user as the kernel names it."""
    owner = _owner(f"holmes-gpu/{wanted.uuid}")
    if owner is None:
        return wanted._replace(user=NOT_KNOWN, run_id=NOT_KNOWN)
    held = read_claims(SOCKETS.read_text(errors="replace"))
    claims = (each for each in held if each.uuid == wanted.uuid and _owner(_name(each)) == owner)
    return next(claims, wanted._replace(run_id=NOT_KNOWN))._replace(user=_user(owner[1]))


def _owner(name: str) -> tuple[int, int] | None:
    """Return the process id and user id of the owner of `name`; None if the kernel cannot be asked."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.setblocking(False)
        try:
            asking.connect(f"\0{name}")
            pid, uid, _ = struct.unpack("3i", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        except OSError:
            return None
        return pid, uid


def _name(claim: GpuClaim) -> str:
    return f"holmes-gpu/{'/'.join(map(str, claim))}"


def _user(uid: int) -> str:
    """Return the name of a user, or the user's number without one, as in some containers."""
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = str(uid)
    return re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)[:_MAX_USER]


def read_claims(sockets: str) -> Iterator[GpuClaim]:
    """Yield the claims in the text of a host's /proc/net/unix, with the users and runs that the processes name.

    A name is listed once more for each connection that asked for its owner.
    """
    names = (found.groups() for line in sockets.splitlines() if (found := _NAME.search(line)) is not None)
    for uuid, index, user, run_id, since_s in dict.fromkeys(names):
        yield GpuClaim(uuid, int(index), user, run_id, int(since_s))
