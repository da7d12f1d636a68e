"""How near RDMA devices are to the GPUs: from the PCI tree, or where `topo -m` was read."""

from __future__ import annotations

from collections.abc import Mapping

from holmes_core.records.devices import PciDevice
from holmes_core.records.inventory import Host

_PATHS = ("LOC", "PIX", "PXB", "PHB", "NODE", "SYS")  # in nvidia-smi's words, the nearest first
_CLASS: Mapping[str, int] = {"LOC": 0, "PIX": 0, "PXB": 0, "PHB": 1, "NODE": 2, "SYS": 2}
BESIDE, FAR = 0, 2  # classes of a path: on one PCI switch; across the host's root or its sockets

Nearness = Mapping[str, Mapping[int, str]]
"""Path of each RDMA device to each GPU, by device name and GPU index; what is not known is left out."""


def path_class(path: str) -> int:
    """0 of PIX and PXB, 1 of PHB, 2 of NODE and SYS."""
    return _CLASS.get(path, FAR)


def path_rank(path: str) -> int:
    """Small of near paths: to sort by."""
    return _PATHS.index(path) if path in _PATHS else len(_PATHS)


def nearness_of(host: Host) -> Nearness:
    """The path between every RDMA device and every GPU of the host."""
    found = _by_pci(host)
    return found if any(found.values()) else _by_nearest(host)


def _by_pci(host: Host) -> Nearness:
    tree = {device.address: device for device in host.pci}
    found: dict[str, dict[int, str]] = {}
    for nic in host.nics:
        paths = found.setdefault(nic.device, {})
        for gpu in host.gpus:
            path = _path(tree, gpu.pci_address, nic.pci_address)
            if path is not None:
                paths[gpu.index] = path
    return found


def _path(tree: Mapping[str, PciDevice], gpu: str | None, nic: str | None) -> str | None:
    """A switch is an upstream bridge and downstream ones, so a common bridge up to the second above both is PIX."""
    if gpu not in tree or nic not in tree:
        return None
    ours, theirs = _bridges_above(tree, gpu or ""), _bridges_above(tree, nic or "")
    common = [bridge for bridge in ours if bridge in theirs]
    if common:
        return "PIX" if ours.index(common[0]) <= 1 and theirs.index(common[0]) <= 1 else "PXB"
    nodes = tree[gpu or ""].numa_node, tree[nic or ""].numa_node
    if None in nodes or not (ours and theirs):
        return None
    return "NODE" if nodes[0] == nodes[1] else "SYS"


def _bridges_above(tree: Mapping[str, PciDevice], address: str) -> list[str]:
    above: list[str] = []
    device = tree.get(address)
    while device and device.parent and device.parent not in above:
        above.append(device.parent)
        device = tree.get(device.parent)
    return above


def _by_nearest(host: Host) -> Nearness:
    """What is nearest to no GPU, while others are, is taken to be far."""
    listed = {name for gpu in host.gpus for name in gpu.nearest_nics}
    devices = {nic.device for nic in host.nics if nic.kind != "Ethernet"}
    if not listed & devices:
        return {}
    found: dict[str, dict[int, str]] = {device: {} for device in devices}
    for gpu in host.gpus:
        for device in devices if gpu.nearest_path else ():
            found[device][gpu.index] = str(gpu.nearest_path) if device in gpu.nearest_nics else "SYS"
    return found
