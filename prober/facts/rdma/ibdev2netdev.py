"""The netdev of each RDMA port, from ibdev2netdev with or without -v, and the GID tables of show_gids."""

from __future__ import annotations

import re
from dataclasses import replace

from prober.asking.commands import Command
from prober.asking.recording import Recorded
from prober.facts.rdma.port_facts import PortFacts, gid, state_word

IBDEV2NETDEV = Command("ibdev2netdev", limited=True)
SHOW_GIDS = Command(
    "show_gids",
    limited=True,
    when="[ -d /sys/class/infiniband ] && ! has /sys/class/infiniband/*/ports/*/gids",
)

_PLAIN = re.compile(r"^(\S+)\s+port\s+(\d{1,9})\s+==>\s+([^\s(]*)\s*\((Up|Down)\)")
_VERBOSE = re.compile(
    r"^(?:(?P<pci>[0-9a-fA-F:.]{7,16})\s+)?(?P<device>\S+)\s+\((?P<type>[^ )]+)\s+-\s+(?P<part>[^)]*)\)"
    r".*\sfw\s+(?P<fw>\S+)"
    r"\s+port\s+(?P<port>\d{1,9})\s+\((?P<state>\w+)\s*\)\s+==>\s+(?P<netdev>[^\s(]*)\s*\((?P<up>Up|Down)\)"
)


def parse_ibdev2netdev(output: Recorded) -> tuple[PortFacts, ...]:
    """Return ports with netdevs, from lines such as `mlx5_0 port 1 ==> ib0 (Up)`; -v adds model and PCI address."""
    ports = []
    for line in output.lines:
        if match := _PLAIN.match(line.strip()):
            device, number, netdev, up = match.groups()
            ports.append(PortFacts(device, int(number), netdev=netdev or None, netdev_up=up == "Up"))
        elif match := _VERBOSE.match(line.strip()):
            port = PortFacts(
                match["device"],
                int(match["port"]),
                state=state_word(match["state"]),
                netdev=match["netdev"] or None,
                netdev_up=match["up"] == "Up",
                firmware=match["fw"],
                hca_type=match["type"],
                pci_address=match["pci"].lower() if match["pci"] else None,
            )
            ports.append(port)
    return tuple(ports)


_GID_LINE = re.compile(
    r"^(?P<device>\S+)\s+(?P<port>\d{1,9})\s+(?P<index>\d{1,4})\s+(?P<gid>[0-9a-fA-F:]{39})"
    r"(?:\s+(?P<ipv4>\d+\.\d+\.\d+\.\d+))?\s+(?:RoCE )?(?P<version>v[12])(?:\s+(?P<netdev>\S+))?\s*$"
)


def parse_show_gids(output: Recorded) -> tuple[PortFacts, ...]:
    """Return ports with their GID tables. Tabs or blanks separate columns, and the IPv4 column may be empty."""
    ports: dict[tuple[str, int], PortFacts] = {}
    for line in output.whole_lines:
        match = _GID_LINE.match(line.strip())
        found = match and gid(int(match["index"]), match["gid"], match["version"], match["netdev"])
        if match and found:
            key = (match["device"], int(match["port"]))
            port = ports.get(key, PortFacts(*key))
            ports[key] = replace(port, gids=(*port.gids, found), netdev=port.netdev or match["netdev"])
    return tuple(ports.values())
