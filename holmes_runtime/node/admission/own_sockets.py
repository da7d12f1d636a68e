"""TCP connections of this host and the sockets of this process, as Linux lists them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from holmes_runtime.config.messages import SocketAddress

PROC = Path("/proc/self")
TCP_FILES = ("net/tcp", "net/tcp6")
ESTABLISHED, LISTENS = 1, 10  # include/net/tcp_states.h
SIOCOUTQNSD = 0x894B  # include/uapi/linux/sockios.h
# include/uapi/linux/tcp.h: offsets of tcpi_last_data_sent and _recv, tcpi_min_rtt and tcpi_delivery_rate.
TCP_INFO_BYTES, LAST_DATA, ROUND_TRIP, RATE = 168, (44, 52), 148, 160
JUST_MS = 6  # a NIC of 400 Mbit/s sends a queue of 256 KiB in that time
_MAPPED = "::ffff:"


class OwnSocket(NamedTuple):
    """One end of a TCP connection of this host, or a listening socket.

    `uid` owns it. `inode` is 0 until a process accepts it.
    """

    state: int
    local: SocketAddress
    remote: SocketAddress
    uid: int
    inode: int


def parse_tcp(text: str) -> list[OwnSocket]:
    """Parse /proc/net/tcp or tcp6, with hexadecimal addresses of 32-bit words in the machine's byte order.

    Source: Documentation/networking/proc_net_tcp.rst.
    """
    found = []
    for line in text.splitlines()[1:]:
        columns = line.split()
        ends = _address(columns[1]), _address(columns[2])
        found.append(OwnSocket(int(columns[3], 16), *ends, int(columns[7]), int(columns[9])))
    return found


@lru_cache(4096)  # a host may have thousands of connections, all read again for every group
def _address(text: str) -> SocketAddress:
    words, _, port = text.partition(":")
    packed = b"".join(struct.pack("=I", int(words[at : at + 8], 16)) for at in range(0, len(words), 8))
    address = socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)
    return SocketAddress(address.removeprefix(_MAPPED) if "." in address else address, int(port, 16))


def all_connections() -> list[OwnSocket]:
    """Return the TCP connections of this host or network namespace; none without /proc."""
    texts = [(PROC / name).read_text() for name in TCP_FILES if (PROC / name).exists()]
    return [connection for text in texts for connection in parse_tcp(text)]


def own_sockets() -> dict[int, int]:
    """Return the descriptor of every socket of this process, by inode."""
    found = {}
    for descriptor in (PROC / "fd").iterdir() if (PROC / "fd").is_dir() else ():
        with contextlib.suppress(OSError):  # the folder's own descriptor is already closed
            target = str(descriptor.readlink())
            if target.startswith("socket:["):
                found[int(target[len("socket:[") : -1])] = int(descriptor.name)
    return found


def own_connections() -> set[OwnSocket]:
    """Return the established TCP connections of this process."""
    mine = own_sockets()
    return {each for each in all_connections() if each.state == ESTABLISHED and each.inode in mine}


def beside_newer(connections: Iterable[OwnSocket]) -> list[socket.socket]:
    """Return duplicates of `connections` of this process whose local address its newer connections use too."""
    older = set(connections)
    addresses = {each.local.address for each in own_connections() - older}
    sockets = own_sockets()
    found = (sockets.get(each.inode) for each in older if each.local.address in addresses)
    return [socket.socket(fileno=os.dup(descriptor)) for descriptor in found if descriptor is not None]


def is_moving(connection: socket.socket) -> bool:
    """Return True if a TCP connection has unsent data, or has just sent or received; False if the system cannot say.

    Data that left the socket waits for the interface, and received data needs acknowledgements through it.
    """
    with contextlib.suppress(OSError):
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
        sent_ms_ago, received_ms_ago = (value for (value,) in (struct.unpack_from("=I", info, at) for at in LAST_DATA))
        return min(sent_ms_ago, received_ms_ago) < JUST_MS or any(fcntl.ioctl(connection, SIOCOUTQNSD, bytes(4)))
    return False


def bytes_on_way(connection: socket.socket) -> int:
    """Return the bytes in flight that fill a TCP connection: its delivery rate times its shortest round trip.

    Return 0 if the system cannot say.
    """
    with contextlib.suppress(OSError, struct.error):
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
        (round_trip_us,) = struct.unpack_from("=I", info, ROUND_TRIP)
        (bytes_per_s,) = struct.unpack_from("=Q", info, RATE)
        return int(bytes_per_s * round_trip_us / 1e6)
    return 0
