"""Paths through the PCI tree: the bridges above a device, and the path between two devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class OnPci(Protocol):
    """A device or bridge, with the bridge right above it if that is known."""

    @property
    def parent(self) -> str | None:
        """The PCI address of the bridge."""


def bridges_above(tree: Mapping[str, OnPci], address: str) -> list[str]:
    """Return the PCI addresses of the bridges from right above a device to the root. `tree` is by address."""
    above: list[str] = []
    device = tree.get(address)
    while device and device.parent and device.parent not in above:
        above.append(device.parent)
        device = tree.get(device.parent)
    return above


def path_between(ours: Sequence[str], theirs: Sequence[str], numa_nodes: tuple[int | None, int | None]) -> str | None:
    """Return the path between two devices, from the bridges above each and its NUMA node, in nvidia-smi's words.

    It is PIX, PXB, NODE or SYS, or None if not known. A switch is an upstream bridge with downstream bridges below it.
    So two devices of one switch have different bridges right above them and the same bridge above those, which is PIX.
    """
    common = [bridge for bridge in ours if bridge in theirs]
    if common:
        return "PIX" if ours.index(common[0]) <= 1 and theirs.index(common[0]) <= 1 else "PXB"
    if None in numa_nodes or not (ours and theirs):
        return None
    return "NODE" if numa_nodes[0] == numa_nodes[1] else "SYS"
