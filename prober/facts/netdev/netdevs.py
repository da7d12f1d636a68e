"""Network interfaces with all known facts about each, merged by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from holmes_core.records.devices import Netdev
from holmes_core.records.inventory import Conflict, ImpossibleValue
from holmes_core.units import bytes_per_s_from_gbps
from prober.asking.merge import by_key, merged, updated
from prober.asking.plausible_values import TOP_BYTES_PER_S, Bounds, named, possible
from prober.facts.netdev.partial_netdev import PartialNetdev, kind_of, looks_physical

_BOUNDS: Bounds = {
    "mtu": (0, 65536),  # the loopback's
    "speed_bytes_per_s": (0, TOP_BYTES_PER_S),
    "max_speed_bytes_per_s": (0, TOP_BYTES_PER_S),
    "numa_node": (0, 4096),
}
_COMPARED = ("mtu", "link_detected", "speed_bytes_per_s", "driver", "firmware")


@dataclass(frozen=True)
class NetdevReading:
    """The netdevs of a host, the names of cards among them, and their conflicting and impossible values."""

    netdevs: tuple[Netdev, ...]
    physical: tuple[str, ...]
    conflicts: tuple[Conflict, ...]
    impossible: tuple[ImpossibleValue, ...]


def read_netdevs(
    sources: Sequence[tuple[str, Iterable[PartialNetdev]]],
    pinned_gbps: Mapping[str, float],
    names_by_pci: Mapping[str, str],
) -> NetdevReading:
    """Merge the netdevs of (source, facts), given in order of trust.

    `names_by_pci` has the names of netdevs for which a source has only the PCI address.
    """
    collected: dict[str, list[tuple[str, PartialNetdev]]] = {}
    impossible: list[ImpossibleValue] = []
    for source, facts in sources:
        names = ((netdev, netdev.name or names_by_pci.get(netdev.pci_address or "")) for netdev in facts)
        known, found = named(source, "netdev", [each.model_copy(update={"name": n}) for each, n in names if n], "name")
        impossible += found
        for name, netdev in by_key(known, attrgetter("name"), updated).items():
            clean, found = possible(source, name, netdev, _BOUNDS)
            impossible += found
            collected.setdefault(name, []).append((source, clean))
    netdevs, physical, conflicts = [], [], []
    for name, readings in collected.items():
        merged_facts, differing = merged(name, readings, _COMPARED)
        netdevs.append(_record(merged_facts, pinned_gbps))
        conflicts += [_in_mbps(conflict) for conflict in differing]
        if looks_physical(merged_facts):
            physical.append(name)
    return NetdevReading(tuple(netdevs), tuple(physical), tuple(conflicts), tuple(impossible))


def _record(netdev: PartialNetdev, pinned_gbps: Mapping[str, float]) -> Netdev:
    """Return the record. A speed in hosts.yaml overrides the tools."""
    known = {name: getattr(netdev, name) for name in Netdev.model_fields} | {"kind": kind_of(netdev)}
    if netdev.name in pinned_gbps:
        known["speed_bytes_per_s"] = bytes_per_s_from_gbps(pinned_gbps[netdev.name])
    return Netdev(**known)


def _in_mbps(conflict: Conflict) -> Conflict:
    """Return the conflict with speeds in Mbit/s, the unit of the tools."""
    if conflict.fact != "speed_bytes_per_s":
        return conflict
    value_a, value_b = (str(float(value) * 8 / 1e6) for value in (conflict.value_a, conflict.value_b))
    return conflict.model_copy(update={"fact": "speed_mbps", "value_a": value_a, "value_b": value_b})
