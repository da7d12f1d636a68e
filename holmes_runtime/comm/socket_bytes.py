"""Bytes that this process's TCP connections have carried, as counted by the kernel for each connection.

Traffic that bypasses TCP, such as RDMA and shared memory, is not counted.
"""

from __future__ import annotations

import ctypes
import socket
from collections.abc import Mapping
from pathlib import Path
from struct import Struct

OPEN_FILES = Path("/proc/self/fd")
# tcpi_bytes_acked and tcpi_bytes_received of struct tcp_info. Source: Linux, include/uapi/linux/tcp.h, since 4.1.
_COUNTERS = Struct("=120xQQ")
_LIBC = ctypes.CDLL(None)


def read_socket_bytes() -> dict[int, int]:
    """Return the bytes sent and received over each TCP connection, by its file descriptor."""
    found = {}
    for name in OPEN_FILES.iterdir() if OPEN_FILES.exists() else ():
        buffer, size = ctypes.create_string_buffer(_COUNTERS.size), ctypes.c_uint(_COUNTERS.size)
        failed = _LIBC.getsockopt(int(name.name), socket.IPPROTO_TCP, socket.TCP_INFO, buffer, ctypes.byref(size))
        if not failed and size.value == _COUNTERS.size:
            found[int(name.name)] = sum(_COUNTERS.unpack(buffer.raw))
    return found


def bytes_between(before: Mapping[int, int], after: Mapping[int, int]) -> int:
    """Return the bytes that were moved over connections present in both readings."""
    return sum(max(0, count - before[number]) for number, count in after.items() if number in before)
