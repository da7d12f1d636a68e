"""Hosts from `scontrol show nodes`, one line per node or several, and switches from `scontrol show topology` after it.

Sources: Slurm 22.05, scontrol(1) and topology.conf(5); outputs of Slurm 22.05.8.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from holmes_core.errors import HolmesError
from holmes_core.hosts.host_pattern import MAX_HOSTS, expand_pattern
from holmes_core.hosts.imported_hosts import Imported, Machine, take_machines
from holmes_core.records.inventory import FabricKind

_RECORD = re.compile(r"^[ \t]*(?=NodeName=|SwitchName=)", flags=re.MULTILINE)
_VALUE = re.compile(r"(?:^|\s)([A-Z][A-Za-z_]*)=(\S*)")
# States in which a node cannot run steps now, or cannot be reached. Source: sinfo(1), "NODE STATE CODES".
_UNFIT = {"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "FUTURE", "UNKNOWN", "INVAL", "INVALID_REG"}
_UNFIT |= {"NOT_RESPONDING", "POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "REBOOT_ISSUED", "REBOOT"}
_NOT_RESPONDING = "*"
# Features that name a kind of fabric. EDR, HDR, NDR and XDR are rates of InfiniBand alone.
_FABRICS: Mapping[str, FabricKind] = {
    **dict.fromkeys(("ib", "infiniband", "edr", "hdr", "ndr", "xdr"), "InfiniBand"),
    "roce": "RoCE",
    "efa": "EFA",
    **dict.fromkeys(("eth", "ethernet"), "Ethernet"),
}


def hosts_from_slurm(text: str, source: str) -> Imported:
    """Return the nodes by Slurm's names, with the switches above them and the fabric that their features name.

    Raises:
        HolmesError: The text is something else, or gives an impossible name. It names `source`.
    """
    records = [_values(record) for record in _RECORD.split(text) if record.startswith(("NodeName=", "SwitchName="))]
    above = _above([record for record in records if "SwitchName" in record], source)
    nodes = [record for record in records if "NodeName" in record]
    if not nodes:
        raise HolmesError(f"{source}: names no node", "give it the output of `scontrol -o show nodes`")
    return take_machines((_machine(node, above) for node in nodes), source)


def _values(record: str) -> Mapping[str, str]:
    """Return the values by key. The first of a repeated key counts: free text (OS, Reason, Comment) comes later."""
    values: dict[str, str] = {}
    for key, value in _VALUE.findall(record):
        values.setdefault(key, value)
    return values


def _machine(node: Mapping[str, str], above: Mapping[str, tuple[str, ...]]) -> Machine:
    name, address = node["NodeName"], node.get("NodeAddr")
    features = _listed(node.get("ActiveFeatures") or node.get("AvailableFeatures") or "")
    fabrics = {_FABRICS[feature.lower()] for feature in features if feature.lower() in _FABRICS}
    gres = node.get("Gres")
    return Machine(
        name=name,
        address=address if address not in (None, "", "(null)", name) else None,
        has_gpus=None if gres is None else any(each.split(":")[0] == "gpu" for each in _listed(gres)),
        unfit=_unfit(node.get("State", "")),
        network=above.get(name, ()),
        fabric=fabrics.pop() if len(fabrics) == 1 else None,
    )


def _listed(text: str) -> list[str]:
    return [] if text == "(null)" else text.split(",")


def _unfit(state: str) -> str | None:
    """Return the state of a node that cannot take part now, else None."""
    words = set(re.split(r"[+*~#!%$@^-]", state))
    return state if words & _UNFIT or _NOT_RESPONDING in state else None


def _above(switches: Iterable[Mapping[str, str]], source: str) -> Mapping[str, tuple[str, ...]]:
    """Return, by node, the switches above it, nearest first. If a switch has several above it, the first counts."""
    parents: dict[str, str] = {}
    leaves: dict[str, str] = {}
    count = 0
    for switch in switches:
        is_leaf = "Switches" not in switch  # for any other switch, `scontrol` lists all nodes below it
        names = _names(switch.get("Nodes" if is_leaf else "Switches", ""), source)
        count += len(names)
        if count > MAX_HOSTS:
            raise HolmesError(f"{source}: switches name more than {MAX_HOSTS} things", "give it one site's output")
        for name in names:
            (leaves if is_leaf else parents).setdefault(name, switch["SwitchName"])
    return {node: tuple(_chain(leaf, parents, source)) for node, leaf in leaves.items()}


def _chain(leaf: str, parents: Mapping[str, str], source: str) -> Iterator[str]:
    """Yield the switch and all switches above it, which must not form a loop."""
    seen: set[str] = set()
    switch: str | None = leaf
    while switch is not None:
        if switch in seen:
            raise HolmesError(f"{source}: switch {switch} is above itself", "correct topology.conf")
        seen.add(switch)
        yield switch
        switch = parents.get(switch)


def _names(pattern: str, source: str) -> tuple[str, ...]:
    if pattern in ("", "(null)"):
        return ()
    try:
        return expand_pattern(pattern)
    except HolmesError as error:
        raise HolmesError(f"{source}: {error.what}", error.hint) from None
