"""Hosts from the JSON of topograph's engine `graph`. Source: topograph, "Graph Engine" of 0.5 and 1.0."""

from __future__ import annotations

from holmes_core.hosts.imported_hosts import Imported, Machine, take_machines
from holmes_core.hosts.topology_labels import nvlink_domains, switches_of
from holmes_core.records.parse_record import parse
from holmes_core.records.plain_data import parse_foreign_json
from holmes_core.records.record import Record


class _Attributes(Record, extra="ignore"):
    nvlink: str | None = None  # before 1.0


class _Instance(Record, extra="ignore"):
    id: str
    network_layers: tuple[str, ...] = ()  # nearest first
    labels: dict[str, str] = {}
    attributes: _Attributes = _Attributes()


class _Graph(Record, extra="ignore"):
    instances: tuple[_Instance, ...]


def hosts_from_topograph(text: str, source: str) -> Imported:
    """Return the instances by id.

    Raises:
        HolmesError: The text is something else. It names `source`, key and value.
    """
    instances = parse(_Graph, parse_foreign_json(text, source), source).instances
    domains = nvlink_domains(instance.labels for instance in instances)
    machines = [
        Machine(
            name=instance.id,
            network=instance.network_layers or switches_of(instance.labels),
            nvlink=domain or instance.attributes.nvlink,
        )
        for instance, domain in zip(instances, domains, strict=True)
    ]
    return take_machines(machines, source)
