"""Hosts from `kubectl get nodes -o json`. Source: Kubernetes API reference, v1, Node."""

from __future__ import annotations

from typing import Literal

from holmes_core.hosts.imported_hosts import Imported, Machine, take_machines
from holmes_core.hosts.topology_labels import nvlink_domains, switches_of
from holmes_core.records.parse_record import parse
from holmes_core.records.plain_data import parse_foreign_json
from holmes_core.records.record import Record

_GPUS = "nvidia.com/gpu"


class _Foreign(Record, extra="ignore"):
    """A part of another program's record. Keys that Holmes does not need are ignored."""


class _Metadata(_Foreign):
    name: str
    labels: dict[str, str] = {}


class _Spec(_Foreign):
    unschedulable: bool = False


class _Address(_Foreign):
    type: str
    address: str


class _Condition(_Foreign):
    type: str
    status: str


class _Status(_Foreign):
    addresses: tuple[_Address, ...] = ()
    capacity: dict[str, str] = {}
    conditions: tuple[_Condition, ...] = ()


class _Node(_Foreign):
    kind: Literal["Node"] = "Node"
    metadata: _Metadata
    spec: _Spec = _Spec()
    status: _Status = _Status()

    @property
    def unfit(self) -> str | None:
        """The reason why Kubernetes would schedule no pod there; None if it would."""
        if self.spec.unschedulable:
            return "cordoned"
        ready = next((each.status for each in self.status.conditions if each.type == "Ready"), "True")
        return None if ready == "True" else "not ready"

    @property
    def address(self) -> str | None:
        """The address inside the cluster."""
        return next((each.address for each in self.status.addresses if each.type == "InternalIP"), None)


class _Nodes(_Foreign):
    kind: Literal["List", "NodeList"]
    items: tuple[_Node, ...]


def hosts_from_kubernetes(text: str, source: str) -> Imported:
    """Return the nodes that are ready and take pods.

    Raises:
        HolmesError: The text is something else. It names `source`, key and value.
    """
    data = parse_foreign_json(text, source)
    is_one = isinstance(data, dict) and data.get("kind") == "Node"
    nodes = (parse(_Node, data, source),) if is_one else parse(_Nodes, data, source).items
    domains = nvlink_domains(node.metadata.labels for node in nodes)
    machines = [_machine(node, domain) for node, domain in zip(nodes, domains, strict=True)]
    return take_machines(machines, source)


def _machine(node: _Node, nvlink: str | None) -> Machine:
    return Machine(
        name=node.metadata.name,
        address=node.address,
        has_gpus=node.status.capacity.get(_GPUS, "0") != "0" if node.status.capacity else None,
        unfit=node.unfit,
        network=switches_of(node.metadata.labels),
        nvlink=nvlink,
    )
