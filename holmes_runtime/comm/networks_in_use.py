"""What each group of this rank really uses, against the plan: a run on the wrong network is no run of that plan.

A Gloo group's connections are this process's sockets, and a socket's local address says which interface it is bound to,
on one host as across hosts. Of an NCCL group the fields its communicator was made with are compared.
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROC = Path("/proc/self")
TCP_FILES = ("net/tcp", "net/tcp6")
IF_INET6 = Path("/proc/net/if_inet6")
SIOCGIFADDR = 0x8915  # linux/sockios.h
ESTABLISHED = 1  # include/net/tcp_states.h


@dataclass(frozen=True)
class Connection:
    """A TCP connection of this process."""

    inode: int
    local_address: str


def parse_tcp(text: str) -> list[Connection]:
    """The established connections in the text of /proc/net/tcp or tcp6: addresses in hexadecimal, 32-bit words each in
    the machine's order (Documentation/networking/proc_net_tcp.rst)."""
    found = []
    for line in text.splitlines()[1:]:
        columns = line.split()
        if int(columns[3], 16) == ESTABLISHED:
            found.append(Connection(int(columns[9]), _address(columns[1].partition(":")[0])))
    return found


def _address(words: str) -> str:
    packed = b"".join(struct.pack("=I", int(words[at : at + 8], 16)) for at in range(0, len(words), 8))
    address = ipaddress.ip_address(packed)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def own_connections() -> set[Connection]:
    """The established TCP connections of this process; none where the system has no /proc."""
    if not (PROC / "net").is_dir():
        return set()
    inodes = set()
    for descriptor in (PROC / "fd").iterdir():
        try:
            target = str(descriptor.readlink())
        except OSError:
            continue  # the descriptor of the folder itself, closed by now
        if target.startswith("socket:["):
            inodes.add(int(target[len("socket:[") : -1]))
    texts = [(PROC / name).read_text() for name in TCP_FILES if (PROC / name).exists()]
    return {connection for text in texts for connection in parse_tcp(text) if connection.inode in inodes}


def interface_addresses() -> dict[str, str]:
    """Interface by address, of this host."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            address = _ipv4_of(probe, name)
            if address is not None:
                found[address] = name
    if IF_INET6.exists():
        for line in IF_INET6.read_text().splitlines():
            columns = line.split()
            found[str(ipaddress.ip_address(bytes.fromhex(columns[0])))] = columns[5]
    return found


def _ipv4_of(probe: socket.socket, interface: str) -> str | None:
    """The first IPv4 address of `interface`; None if it has none."""
    try:
        answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
    except OSError:
        return None
    return socket.inet_ntoa(answer[20:24])


def other_interfaces(planned: str, connections: Iterable[Connection], addresses: dict[str, str]) -> list[str]:
    """What `connections` use that is not the interface `planned`: interfaces, or addresses that no interface has."""
    used = {addresses.get(connection.local_address, connection.local_address) for connection in connections}
    return sorted(used - {planned})


def other_fields(planned: dict[str, str], config: Any) -> list[str]:
    """What an NCCL communicator's `config` has that is not as `planned`, one entry a field."""
    return [
        f"{field} {getattr(config, field, None)!r}"
        for field, value in planned.items()
        if getattr(config, field, None) != value
    ]
