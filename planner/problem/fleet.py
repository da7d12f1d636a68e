"""Read the fleet: the slots of all reachable hosts that no finding refuses, with equal hosts in classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.records.inventory import Host, Inventory
from holmes_core.records.job import Job
from planner.cost.collectives import Peers
from planner.cost.slot import Slot, read_slot
from planner.problem.memory_room import usable_host_bytes
from planner.problem.networks import NO_RATES, HostRates, Networks
from planner.problem.shared_cores import shared_cores


@dataclass(frozen=True)
class Hardware:
    """The hardware that a placement's cost depends on. Hosts of one cluster with equal hardware are interchangeable.

    `slot` is the slowest slot, `memory_bytes` the smallest device memory. `host_memory_bytes` is one slot's share of
    host memory. Equal hosts report slightly different values; the smallest counts.
    """

    cluster: str
    num_slots: int
    memory_bytes: int | None
    slot: Slot
    rates: HostRates = NO_RATES
    host_memory_bytes: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class FleetHost:
    """A host with one slot per entry of `gpus`, which is the GPU's index, or None on CPU."""

    name: str
    gpus: tuple[int | None, ...]
    hardware: Hardware

    def num_group_slots(self, tp: int) -> int:
        """Return the number of whole tensor groups of `tp` ranks that fit on the host."""
        return len(self.gpus) // tp


@dataclass(frozen=True)
class HostClass:
    """Hosts of one cluster with equal hardware, in inventory order."""

    hardware: Hardware
    hosts: tuple[FleetHost, ...]

    @property
    def cluster(self) -> str:
        """The cluster's name."""
        return self.hardware.cluster

    def group_slots_per_host(self, tp: int) -> int:
        """Return the number of whole tensor groups of `tp` ranks that fit on one host."""
        return self.hardware.num_slots // tp

    def num_group_slots(self, tp: int) -> int:
        """Return the number of whole tensor groups of `tp` ranks that fit on all hosts."""
        return len(self.hosts) * self.group_slots_per_host(tp)


@dataclass(frozen=True)
class Fleet:
    """All hosts with slots, in classes. Clusters are in inventory order, classes in the order of their first host."""

    classes: tuple[HostClass, ...]

    @cached_property
    def cluster_names(self) -> list[str]:
        """The names of the clusters, in order."""
        return list(dict.fromkeys(each.cluster for each in self.classes))

    @cached_property
    def hosts(self) -> dict[str, FleetHost]:
        """The hosts by name."""
        return {host.name: host for each in self.classes for host in each.hosts}

    @cached_property
    def class_of(self) -> dict[str, int]:
        """The index of each host's class, by host name."""
        return {host.name: index for index, each in enumerate(self.classes) for host in each.hosts}

    @cached_property
    def shares_cores(self) -> bool:
        """True if slots get slower the more of them compute."""
        return any(each.hardware.slot.cores is not None for each in self.classes)

    def num_group_slots(self, tp: int) -> int:
        """Return the number of whole tensor groups of `tp` ranks that fit on the fleet."""
        return sum(each.num_group_slots(tp) for each in self.classes)


def read_fleet(inventory: Inventory, job: Job, networks: Networks) -> Fleet:
    """Return the fleet for `job`.

    Raises:
        HolmesError: No host has a slot, or the speed of a slot is unknown.
    """
    hosts, refused = {host.name: host for host in inventory.hosts}, inventory.refusals
    clustered = {name: cluster.name for cluster in inventory.clusters for name in cluster.hosts if name not in refused}
    slots = {name: gpus for name in clustered if (gpus := slots_of(hosts[name], job))}
    cores = shared_cores([(hosts[name], len(gpus)) for name, gpus in slots.items()], job)
    alike = dict[Hardware, list[FleetHost]]()
    for name, gpus in slots.items():
        slot = read_slot(hosts[name], clustered[name], job, cores.get(name))
        hardware = _hardware(hosts[name], clustered[name], len(gpus), job, networks, slot)
        alike.setdefault(hardware, []).append(FleetHost(name, gpus, hardware))
    if not alike:
        raise _no_slots(inventory, job)
    return Fleet(tuple(HostClass(_with_least_host_memory(members), tuple(members)) for members in alike.values()))


def _with_least_host_memory(alike: Sequence[FleetHost]) -> Hardware:
    known = [size for host in alike if (size := host.hardware.host_memory_bytes) is not None]
    return replace(alike[0].hardware, host_memory_bytes=min(known, default=None))


def slots_of(host: Host, job: Job) -> tuple[int | None, ...]:
    """Return the slots of `host`: each GPU's index, or None per CPU slot. A host with `gpus: []` has no slots."""
    if host.gpus_stated == ():
        return ()
    if job.device == "cpu":
        return (None,) * job.slots_per_host
    return tuple(gpu.index for gpu in host.gpus)


def _hardware(host: Host, cluster: str, num_slots: int, job: Job, networks: Networks, slot: Slot) -> Hardware:
    memory = [gpu.memory_bytes for gpu in host.gpus if gpu.memory_bytes is not None] if job.device == "cuda" else []
    rates, host_bytes = networks.rates(host.name), usable_host_bytes(host)
    if job.model.experts is not None or job.cp > 1:
        alone = networks.nvlink_bytes_per_s(host.name) is not None  # each GPU then has its own links
        rate = rates.fabric_bytes_per_s
        share = rate if alone or rate is None else rate / num_slots
        slot = replace(slot, peers=Peers(num_slots, share, num_slots if alone else networks.num_ports(host.name)))
    return Hardware(
        cluster=cluster,
        num_slots=num_slots,
        memory_bytes=min(memory, default=None),
        slot=slot,
        rates=rates,
        host_memory_bytes=None if host_bytes is None else host_bytes // num_slots,
    )


def _no_slots(inventory: Inventory, job: Job) -> HolmesError:
    reachable = [host.name for host in inventory.hosts if host.reachable]
    if not reachable:
        return HolmesError(
            f"none of the {len(inventory.hosts)} hosts in the inventory was reachable",
            "see the findings of `holmes probe hosts.yaml`, then probe again",
            ANSWER_IS_NO,
        )
    refused = inventory.refusals
    if refused.keys() >= set(reachable):
        said = "; ".join(f"{name}: {finding.rule}: {finding.evidence}" for name, finding in refused.items())
        return HolmesError(
            f"the probe refuses to launch on every host: {said}",
            "follow the findings of `holmes probe hosts.yaml`, then probe again",
            ANSWER_IS_NO,
        )
    return HolmesError(
        f"device is {job.device}, but no reachable host ({', '.join(reachable)}) has a GPU",
        "set `device: cpu` in job.yaml, or add hosts with GPUs",
        ANSWER_IS_NO,
    )
