"""Slurm's topology.conf from an inventory: one switch per cluster, above the switches of hints if these form a tree.

Source: topology.conf(5) of Slurm 22.05. A switch has nodes or switches below it, not both. Jobs span only nodes that a
switch joins, so one switch stands above all clusters. Hosts that were not reached are below it too.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping

from holmes_core.errors import HolmesError
from holmes_core.hosts.host_pattern import NAME_PATTERN
from holmes_core.records.inventory import Host, Inventory

TOP = "holmes-all"
NOT_REACHED = "holmes-not-reached"
_REST = "{}-rest"  # holds the hosts that hang directly on a switch with switches below it
_HEADER = """\
# Slurm topology.conf, from inventory {digest}
# A switch a cluster, as the probe found them; below it those that `hints:` of hosts.yaml name. {top} joins all.
"""

Path = tuple[str, ...]
"""Switches above a host, nearest first."""


def slurm_topology(inventory: Inventory) -> str:
    """Return the text of topology.conf with all hosts of the inventory, by Slurm's names for them.

    Raises:
        HolmesError: Slurm could not read a name, or two things would have one name.
    """
    cluster_of = {name: cluster.name for cluster in inventory.clusters for name in cluster.hosts}
    own = {*cluster_of.values(), TOP, NOT_REACHED}
    if len(own) < len(inventory.clusters) + 2:
        raise HolmesError(f"a cluster is named {TOP} or {NOT_REACHED}", "pin another name by `cluster:` in hosts.yaml")
    hinted = {
        host.name: tuple(switch for switch in host.hints.network if switch not in own)
        for host in inventory.hosts
        if host.reachable
    }
    trees = _as_trees(hinted, cluster_of)
    paths = {
        _slurm_name(host): (*trees[host.name], cluster_of[host.name], TOP) if host.reachable else (NOT_REACHED, TOP)
        for host in inventory.hosts
    }
    if len(paths) < len(inventory.hosts):
        raise HolmesError("two hosts have one name in Slurm", "correct `address:` in hosts.yaml, and probe again")
    for name in dict.fromkeys((*paths, *(switch for path in paths.values() for switch in path))):
        if not re.fullmatch(NAME_PATTERN, name):
            raise HolmesError(
                f"{name!r}: Slurm's lists cannot hold that name",
                "correct `hints:` or `address:` in hosts.yaml, and probe again",
            )
    return _HEADER.format(digest=inventory.digest(), top=TOP) + "".join(f"{line}\n" for line in _lines(paths))


def _slurm_name(host: Host) -> str:
    """Return Slurm's name for the host: its address if it is reached through Slurm, else its name."""
    by_slurm = host.access.transport == "slurm" and host.access.address
    return by_slurm or host.name


def _as_trees(paths: Mapping[str, Path], cluster_of: Mapping[str, str]) -> Mapping[str, Path]:
    """Return the paths without switches that are in several clusters or below several switches."""
    while True:
        above: dict[str, set[tuple[str, str]]] = {}
        for host, path in paths.items():
            for position, switch in enumerate(path):
                parent = path[position + 1] if position + 1 < len(path) else ""
                above.setdefault(switch, set()).add((cluster_of[host], parent))
        torn = {switch for switch, parents in above.items() if len(parents) > 1}
        if not torn:
            return paths
        paths = {host: tuple(switch for switch in path if switch not in torn) for host, path in paths.items()}


def _lines(paths: Mapping[str, Path]) -> Iterator[str]:
    """Yield the switches with nodes first, then those above them."""
    inner = {switch: None for path in paths.values() for switch in path[1:]}
    nodes: dict[str, list[str]] = {}
    switches: dict[str, dict[str, None]] = {}
    taken = {switch for path in paths.values() for switch in path}
    for host, path in paths.items():
        rest = _free(_REST.format(path[0]), taken)
        whole = (rest, *path) if path[0] in inner else path
        nodes.setdefault(whole[0], []).append(host)
        for below, above in itertools.pairwise(whole):
            switches.setdefault(above, {})[below] = None
    yield from (f"SwitchName={switch} Nodes={','.join(names)}" for switch, names in nodes.items())
    yield from (f"SwitchName={switch} Switches={','.join(below)}" for switch, below in switches.items())


def _free(name: str, taken: Collection[str]) -> str:
    """Return the name, with `x` added until it is unused."""
    return _free(f"{name}x", taken) if name in taken else name
