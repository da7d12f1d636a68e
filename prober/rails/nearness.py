"""The nearness of RDMA devices to GPUs, from the PCI tree or from `topo -m`."""

from __future__ import annotations

from collections.abc import Mapping

from holmes_core.records.inventory import Host
from prober.facts.machine.pci_paths import bridges_above, path_between

_PATHS = ("LOC", "PIX", "PXB", "PHB", "NODE", "SYS")  # in nvidia-smi's words, the nearest first
_CLASS: Mapping[str, int] = {"LOC": 0, "PIX": 0, "PXB": 0, "PHB": 1, "NODE": 2, "SYS": 2}
BESIDE, FAR = 0, 2  # classes of a path: on one PCI switch; across the host's root or its sockets

Nearness = Mapping[str, Mapping[int, str]]
"""The path from each RDMA device to each GPU, by device name and GPU index, without unknown paths."""


def path_class(path: str) -> int:
    """Return 0 for PIX and PXB, 1 for PHB, and 2 for NODE and SYS."""
    return _CLASS.get(path, FAR)


def path_rank(path: str) -> int:
    """Return a sort key that is smaller for nearer paths."""
    return _PATHS.index(path) if path in _PATHS else len(_PATHS)


def nearness_of(host: Host) -> Nearness:
    """Return the path between every RDMA device and every GPU of the host."""
    found = _by_pci(host)
    return found if any(found.values()) else _by_nearest(host)


def _by_pci(host: Host) -> Nearness:
    tree = {device.address: device for device in host.pci}
    found: dict[str, dict[int, str]] = {}
    for nic in host.nics:
        paths = found.setdefault(nic.device, {})
        for gpu in host.gpus:
            one, other = tree.get(gpu.pci_address or ""), tree.get(nic.pci_address or "")
            if one is None or other is None:
                continue
            above = bridges_above(tree, one.address), bridges_above(tree, other.address)
            path = path_between(*above, (one.numa_node, other.numa_node))
            if path is not None:
                paths[gpu.index] = path
    return found


def _by_nearest(host: Host) -> Nearness:
    """Return the paths of the nearest devices. A device that is not nearest to any GPU counts as far."""
    listed = {name for gpu in host.gpus for name in gpu.nearest_nics}
    devices = {nic.device for nic in host.nics if nic.kind != "Ethernet"}
    if not listed & devices:
        return {}
    found: dict[str, dict[int, str]] = {device: {} for device in devices}
    for gpu in host.gpus:
        for device in devices if gpu.nearest_path else ():
            found[device][gpu.index] = str(gpu.nearest_path) if device in gpu.nearest_nics else "SYS"
    return found
