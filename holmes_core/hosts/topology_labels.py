"""The position of a machine in the network, by the labels of topograph, clouds and NVIDIA's device plugin.

Topograph has renamed its labels twice; keys of one row stand for the same level.
Sources: topograph, "Node labels and annotations" of 0.1, 0.5 and 1.0; Amazon EKS user guide, "network topology labels";
Google Kubernetes Engine, topology-aware scheduling; Oracle Kubernetes Engine, node labels; NVIDIA k8s-device-plugin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

TOPOGRAPH_TIERS = 10
_TOPOGRAPH = "network.topology.nvidia.com"

# Levels from nearest to farthest, each with its keys. A machine takes the first family that it has labels of.
_NETWORKS: tuple[tuple[tuple[str, ...], ...], ...] = (
    (
        ("fabric.topograph.run/tier-0", f"{_TOPOGRAPH}/leaf", f"{_TOPOGRAPH}/block"),
        ("fabric.topograph.run/tier-1", f"{_TOPOGRAPH}/spine"),
        ("fabric.topograph.run/tier-2", f"{_TOPOGRAPH}/core", f"{_TOPOGRAPH}/datacenter"),
        *((f"fabric.topograph.run/tier-{tier}",) for tier in range(3, TOPOGRAPH_TIERS)),
    ),
    tuple((f"topology.k8s.aws/network-node-layer-{layer}",) for layer in (4, 3, 2, 1)),
    tuple((f"cloud.google.com/gce-topology-{level}",) for level in ("host", "subblock", "block")),
    (("oci.oraclecloud.com/host.rack_id",), ("oci.oraclecloud.com/host.network_block_id",)),
)
# Keys of one row mean the same. Values of different rows are not comparable: a fleet takes its most common row.
_NVLINK: tuple[tuple[str, ...], ...] = (
    ("nvidia.com/gpu.clique",),
    ("accelerator.topograph.run/domain", f"{_TOPOGRAPH}/accelerator"),
)


def switches_of(labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the switches above a machine, nearest first; empty if no label names any."""
    for levels in _NETWORKS:
        found = [switch for keys in levels if (switch := _first(labels, keys))]
        if found:
            return tuple(dict.fromkeys(found))
    return ()


def nvlink_domains(machines: Iterable[Mapping[str, str]]) -> tuple[str | None, ...]:
    """Return the NVLink domain of each machine by its labels, all from the same kind of label."""
    of_machines = tuple(machines)
    rows = [tuple(_first(labels, keys) for labels in of_machines) for keys in _NVLINK]
    return max(rows, key=lambda row: sum(domain is not None for domain in row))


def _first(labels: Mapping[str, str], keys: Iterable[str]) -> str | None:
    return next((labels[key] for key in keys if labels.get(key)), None)
