"""Values of PCI devices as tools and /sys print them: address, bridges above, link, NUMA node."""

from __future__ import annotations

import re
from collections.abc import Callable

from holmes_core.records.devices import PciLink
from prober.asking.numbers import number, whole_number

NVSWITCH_MARK = "SW_MNG"  # in the product data of a bridge to NVSwitches. Source: NVIDIA fabric manager, start script


def normal_address(text: str) -> str:
    """Return `0000:19:00.0` for `19:00.0`, `00000000:19:00.0` or `0000:19:00.0`."""
    *domain, bus, device = text.lower().strip().split(":")
    return f"{domain[0].lstrip('0').rjust(4, '0') if domain else '0000'}:{bus}:{device}"


def pci_path(link: str) -> tuple[str, ...]:
    """Return the PCI addresses in a path below /sys/devices, from root to device: `0000:17:01.0`, `0000:19:00.0`."""
    return tuple(re.findall(r"(?<=/)[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7](?=/|$)", link))


def pci_link(value: Callable[[str], str | None]) -> PciLink | None:
    """Return the PCI Express link in the four files that `value` reads by name, or None if none exists."""
    link = PciLink(
        speed_gts=number(value("current_link_speed")),
        width=whole_number(value("current_link_width")) or None,
        max_speed_gts=number(value("max_link_speed")),
        max_width=whole_number(value("max_link_width")) or None,
    )
    return None if link == PciLink() else link


def numa_node(text: str | None) -> int | None:
    """Return the NUMA node, or None for -1, which the kernel writes on machines with one node."""
    node = whole_number(text)
    return node if node is not None and node >= 0 else None
