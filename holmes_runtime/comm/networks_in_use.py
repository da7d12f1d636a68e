"""The network that each group of this rank actually uses, for comparison with the plan.

A Gloo group's connections are sockets of this process. A socket's local address shows the interface it is bound to,
within one host as well as across hosts. NCCL logs the network it uses (`nccl_log.py`).
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterable
from pathlib import Path

from holmes_runtime.node.admission.own_sockets import OwnSocket

IF_INET6 = Path("/proc/net/if_inet6")
SIOCGIFADDR = 0x8915  # linux/sockios.h


def interface_addresses() -> dict[str, str]:
    """Return the interfaces of this host by address."""
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
    """Return the first IPv4 address of `interface`; None if it has none."""
    try:
        answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
    except OSError:
        return None
    return socket.inet_ntoa(answer[20:24])


def other_interfaces(planned: str, connections: Iterable[OwnSocket], addresses: dict[str, str]) -> list[str]:
    """Return the interfaces other than `planned` that `connections` use, and addresses that no interface has."""
    used = {addresses.get(connection.local.address, connection.local.address) for connection in connections}
    return sorted(used - {planned})
