"""NCCL's report on its communicators, from the log it writes if NCCL_DEBUG is INFO.

Communicators are made one after another, so the lines logged while one is made are about that one. NCCL logs the
network module for each communicator (`Using network IB`), the ports of a module once per process (`NET/IB : Using
[0]mlx5_0:1/IB`), and the path of a channel when it connects (`via NET/IB/0/GDRDMA`). Source: NCCL 2.18 to 2.29,
src/init.cc, src/transport/net.cc, net_ib.cc and net_socket.cc.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_NETWORK = re.compile(r"NCCL INFO Using network (.*\S)", re.MULTILINE)
_COMMUNICATOR = re.compile(
    r"(?P<thread>\S+:\d+:\d+) \[\d+\] NCCL INFO "
    r"(?:Using network (?P<network>.*\S)|.*\bnranks (?P<size>\d+) .*- Init START)"
)
_NICS = re.compile(r"NCCL INFO NET/\S+ : Using (\[0\][^;\n]*)")
_RDMA_PORT = re.compile(r"([\w.-]+:\d+)/(?:IB|RoCE)")
_NETDEV = re.compile(r"\[\d+\]([\w.-]+):")
_PATH = re.compile(r"NCCL INFO Channel .* via (NET/.+?)(?: comm .*)?$", re.MULTILINE)
_WARNING = re.compile(r"NCCL WARN (.*\S)", re.MULTILINE)
_GPU_DIRECT = "/GDRDMA"


@dataclass(frozen=True)
class NcclSays:
    """The contents of a section of the log. `network` is the module, None if no communicator was made.

    `nics` are ports and interfaces of the modules that were set up. `paths` are the paths of channels, such as
    `NET/IB/0/GDRDMA`. `communicators` has the number of ranks and the module of each one that was begun.
    """

    network: str | None
    nics: tuple[str, ...]
    paths: tuple[str, ...]
    warnings: tuple[str, ...]
    communicators: tuple[tuple[int, str], ...]

    @property
    def gpu_direct(self) -> bool | None:
        """True if all network channels go from GPU memory to the NIC; None if no channel is known."""
        return all(_GPU_DIRECT in path for path in self.paths) if self.paths else None


def parse_nccl_log(text: str) -> NcclSays:
    """Return the contents of the lines of `text`. If there are several communicators, the last one's network counts."""
    networks = _NETWORK.findall(text)
    nics = [nic for line in _NICS.findall(text) for nic in _RDMA_PORT.findall(line) or _NETDEV.findall(line)]
    return NcclSays(
        network=networks[-1] if networks else None,
        nics=tuple(dict.fromkeys(nics)),
        paths=tuple(dict.fromkeys(_PATH.findall(text))),
        warnings=tuple(dict.fromkeys(_WARNING.findall(text))),
        communicators=tuple(_communicators(text)),
    )


def _communicators(text: str) -> Iterator[tuple[int, str]]:
    """Yield the size and module of each communicator. A thread logs the module first, and then that it begins."""
    networks: dict[str, str] = {}
    for line in _COMMUNICATOR.finditer(text):
        if line["network"] is not None:
            networks[line["thread"]] = line["network"]
        elif line["thread"] in networks:
            yield int(line["size"]), networks.pop(line["thread"])


class NcclLog:
    """The log of this process, read section by section; empty if none is written."""

    def __init__(self, environ: Mapping[str, str], host: str | None = None, pid: int | None = None) -> None:
        """Find the file from NCCL_DEBUG_FILE in `environ`, where %h is the host and %p the process."""
        name = environ.get("NCCL_DEBUG_FILE", "")
        host = (socket.gethostname() if host is None else host).partition(".")[0]
        name = name.replace("%h", host).replace("%p", str(os.getpid() if pid is None else pid))
        self._file = Path(name) if name else None
        self._offset = 0

    def read_more(self) -> NcclSays:
        """Return the contents logged since the last call."""
        if self._file is None or not self._file.is_file():
            return parse_nccl_log("")
        with self._file.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        self._offset += len(data)
        return parse_nccl_log(data.decode(errors="replace"))
