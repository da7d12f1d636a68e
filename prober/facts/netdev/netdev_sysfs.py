"""Netdevs in /sys/class/net, /proc/sys/net and /proc/net/bonding."""

from __future__ import annotations

import re

from holmes_core.records.devices import BondSlave, NetdevKind
from prober.asking.commands import Command
from prober.asking.numbers import whole_number
from prober.asking.pci_values import numa_node, pci_path
from prober.asking.sysfs_tree import Tree
from prober.facts.netdev.partial_netdev import PartialNetdev, speed_bytes_per_s

_ROOT = "/sys/class/net"
_CONF = "/proc/sys/net/ipv4/conf"
_FILES = [
    *("operstate", "carrier", "speed", "mtu", "type", "address", "flags", "bonding/slaves", "device/numa_node"),
    *("qos/trust", "ecn/roce_np/enable/[0-7]", "ecn/roce_rp/enable/[0-7]"),
]

LIST = Command(f"ls -l {_ROOT}")
ATTRIBUTES = Command(f"grep -Hs . {' '.join(f'{_ROOT}/*/{file}' for file in _FILES)}")
DRIVERS = Command(f"ls -ld {_ROOT}/*/device/driver {_ROOT}/*/device/physfn", when=f"has {_ROOT}/*/device")
CONF = Command(f"grep -Hs . {_CONF}/*/rp_filter {_CONF}/*/arp_ignore {_CONF}/*/arp_announce")
BONDS = Command("grep -Hs . /proc/net/bonding/*", when="has /proc/net/bonding/*")

_ARPHRD_INFINIBAND, _ARPHRD_LOOPBACK = 32, 772  # include/uapi/linux/if_arp.h
_IFF_UP = 1


def parse_netdev_sysfs(tree: Tree) -> tuple[PartialNetdev, ...]:
    """Return the netdevs in the tree."""
    names = [match.group(1) for match, _ in tree.matching(rf"{_ROOT}/([^/]+)/.+")]
    names += [path.rpartition("/")[2] for path in tree.links if re.fullmatch(rf"{_ROOT}/[^/]+", path)]
    names += [match.group(1) for match, _ in tree.matching(r"/proc/net/bonding/([^/]+)")]
    conf = [match.group(1) for match, _ in tree.matching(rf"{_CONF}/([^/]+)/.+")]
    known = dict.fromkeys(names)
    return tuple(_netdev(tree, name) for name in known or dict.fromkeys(n for n in conf if n not in ("all", "default")))


def _netdev(tree: Tree, name: str) -> PartialNetdev:
    def value(file: str) -> str | None:
        return tree.value(f"{_ROOT}/{name}/{file}")

    link = tree.links.get(f"{_ROOT}/{name}", "")
    path = pci_path(link)
    driver = tree.links.get(f"{_ROOT}/{name}/device/driver")
    speed, flags, carrier = whole_number(value("speed")), whole_number(value("flags")), value("carrier")
    trust = value("qos/trust")
    return PartialNetdev(
        name=name,
        up=None if flags is None else bool(flags & _IFF_UP) and carrier != "0",
        mtu=whole_number(value("mtu")),
        speed_bytes_per_s=speed_bytes_per_s(speed),
        kind=_kind(tree, name, link, whole_number(value("type"))),
        driver=driver.rpartition("/")[2] if driver else None,
        pci_address=path[-1] if path else None,
        numa_node=numa_node(value("device/numa_node")),
        mac=value("address"),
        operstate=value("operstate"),
        link_detected={"1": True, "0": False}.get(carrier or ""),
        bond_slaves=_slaves(tree, name, value("bonding/slaves")),
        rp_filter=_conf(tree, name, "rp_filter"),
        arp_ignore=_conf(tree, name, "arp_ignore"),
        arp_announce=_conf(tree, name, "arp_announce"),
        ecn_priorities=_ecn_priorities(tree, name),
        trust="pcp" if trust == "pcp" else "dscp" if trust == "dscp" else None,
    )


def _kind(tree: Tree, name: str, link: str, link_type: int | None) -> NetdevKind | None:
    if link_type == _ARPHRD_LOOPBACK or name == "lo":
        return "loopback"
    if link_type == _ARPHRD_INFINIBAND:
        return "ipoib"
    if f"{_ROOT}/{name}/bonding/slaves" in tree.values or f"/proc/net/bonding/{name}" in tree.values:
        return "bond"
    if f"{_ROOT}/{name}/device/physfn" in tree.links:
        return "virtual function"
    if "/devices/virtual/" in link:
        return "virtual"
    return "physical" if link else None


def _ecn_priorities(tree: Tree, name: str) -> tuple[int, ...] | None:
    """Return the priorities for which the card both marks (notification point) and slows down (reaction point)."""
    root = re.escape(f"{_ROOT}/{name}/ecn")
    known = {(match[1], int(match[2])): value for match, value in tree.matching(rf"{root}/(roce_[nr]p)/enable/([0-7])")}
    if not known:
        return None
    return tuple(n for n in range(8) if known.get(("roce_np", n)) == known.get(("roce_rp", n)) == "1")


def _conf(tree: Tree, name: str, key: str) -> int | None:
    """Return the effective value, which is the larger of the interface's and that of `all`."""
    values = [whole_number(tree.value(f"{_CONF}/{folder}/{key}")) for folder in (name, "all")]
    known = [value for value in values if value is not None]
    return max(known) if values[0] is not None else None


def _slaves(tree: Tree, name: str, listed: str | None) -> tuple[BondSlave, ...] | None:
    """Return the slaves with their MII status from /proc/net/bonding, or else the names in sysfs."""
    slaves: list[BondSlave] = []
    for line in tree.values.get(f"/proc/net/bonding/{name}", []):
        key, _, value = (part.strip() for part in line.partition(":"))
        if key == "Slave Interface" and value:
            slaves.append(BondSlave(name=value, mii_status=None))
        elif key == "MII Status" and slaves:
            slaves[-1] = BondSlave(name=slaves[-1].name, mii_status=value or None)
    if not slaves and listed:
        slaves = [BondSlave(name=word, mii_status=None) for word in listed.split()]
    return tuple(slaves) or None
