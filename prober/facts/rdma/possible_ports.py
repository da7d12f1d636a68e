"""Ports with possible names and numbers, reduced to possible facts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from holmes_core.records.inventory import ImpossibleValue
from prober.asking.plausible_values import TOP_GBPS, Bounds, impossible_name, is_name, named, possible
from prober.facts.rdma.nic_kind import is_omni_path
from prober.facts.rdma.port_facts import PortFacts

_MAX_LID = 0xFFFF
_MAX_OMNI_PATH_LID = 0xFFFFFF  # extended LIDs have 24 bits. Source: Linux, include/rdma/opa_addr.h
_BOUNDS: Bounds = {
    "rate_gbps": (0, TOP_GBPS),
    "lid": (0, _MAX_LID),
    "sm_lid": (0, _MAX_LID),
    "active_mtu": (1, 65536),
    "numa_node": (0, 4096),
}
_OMNI_PATH_BOUNDS: Bounds = {**_BOUNDS, "lid": (0, _MAX_OMNI_PATH_LID), "sm_lid": (0, _MAX_OMNI_PATH_LID)}
_PORTS: Bounds = {"port": (0, 255)}  # of 8 bits in the InfiniBand Architecture; 0 is the whole device here


def possible_ports(
    sources: Sequence[tuple[str, Iterable[PortFacts]]],
) -> tuple[list[tuple[str, list[PortFacts]]], list[ImpossibleValue]]:
    """Return the (source, facts) without impossible ports and values, and a record of each of these."""
    kept, found = [], []
    for source, facts in sources:
        ports, bad_names = named(source, "RDMA device", facts, "device")
        found += bad_names
        known = []
        for port in ports:
            bad_port = possible(source, port.device, port, _PORTS)[1] if port.port else []
            found += bad_port
            if not bad_port:
                clean, bad_values = _possible_port(source, port)
                known.append(clean)
                found += bad_values
        kept.append((source, known))
    return kept, found


def _possible_port(source: str, port: PortFacts) -> tuple[PortFacts, list[ImpossibleValue]]:
    subject = f"{port.device}:{port.port}"
    clean, found = possible(source, subject, port, _OMNI_PATH_BOUNDS if is_omni_path(port) else _BOUNDS)
    if clean.netdev is not None and not is_name(clean.netdev, of_netdev=True):
        found = [*found, impossible_name(source, f"netdev of {subject}", clean.netdev)]
        clean = replace(clean, netdev=None)
    return clean, found
