"""The fleet: the training slots of the reachable hosts, cluster by cluster, and the speed of each."""

from __future__ import annotations

from dataclasses import dataclass

from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.inventory import Host, Inventory
from holmes_core.job import Job
from planner.gpu_speeds import achieved_flops_per_s


@dataclass(frozen=True)
class FleetHost:
    """A host with a slot for each entry of `gpus`: the GPU's index, None on CPU.

    `flops_per_s` is what the slowest slot achieves, None when compute is emulated. `memory_bytes` is what the smallest
    slot has, None when not known.
    """

    name: str
    gpus: tuple[int | None, ...]
    memory_bytes: int | None
    flops_per_s: float | None

    def num_places(self, tp: int) -> int:
        """Whole tensor groups of `tp` ranks the host can hold."""
        return len(self.gpus) // tp


@dataclass(frozen=True)
class FleetCluster:
    """The hosts of one cluster that have slots, in inventory order."""

    name: str
    hosts: tuple[FleetHost, ...]

    def num_places(self, tp: int) -> int:
        """Whole tensor groups of `tp` ranks the cluster can hold."""
        return sum(host.num_places(tp) for host in self.hosts)


@dataclass(frozen=True)
class Fleet:
    """All clusters that have slots, in inventory order."""

    clusters: tuple[FleetCluster, ...]

    def alone(self, name: str) -> Fleet:
        """The fleet with one host left, so that nothing crosses a network. Raises KeyError if there is no such host."""
        for cluster in self.clusters:
            for host in cluster.hosts:
                if host.name == name:
                    return Fleet((FleetCluster(cluster.name, (host,)),))
        raise KeyError(name)


def read_fleet(inventory: Inventory, job: Job) -> Fleet:
    """The fleet of `inventory` for `job`. Raises HolmesError when no host has a slot or the speed of one is unknown."""
    clusters = []
    for cluster in inventory.clusters:
        hosts = (_fleet_host(inventory.host(name), job) for name in cluster.hosts)
        with_slots = tuple(host for host in hosts if host.gpus)
        if with_slots:
            clusters.append(FleetCluster(cluster.name, with_slots))
    if not clusters:
        raise _no_slots(inventory, job)
    return Fleet(tuple(clusters))


def _fleet_host(host: Host, job: Job) -> FleetHost:
    if job.device == "cpu":
        return FleetHost(host.name, (None,) * job.slots_per_host, None, _flops_per_s(host, job))
    memory = [gpu.memory_bytes for gpu in host.gpus if gpu.memory_bytes is not None]
    indices = tuple(gpu.index for gpu in host.gpus)
    return FleetHost(host.name, indices, min(memory, default=None), _flops_per_s(host, job) if host.gpus else None)


def _flops_per_s(host: Host, job: Job) -> float | None:
    """FLOP/s of the slowest slot: from job.yaml, else from published runs on that GPU; None when emulated."""
    if job.compute.emulate is not None:
        return None
    if job.compute.flops_per_s is not None:
        return job.compute.flops_per_s
    if job.device == "cpu":
        raise _unknown_speed(host.name, "CPU slots")
    speeds = []
    for gpu in host.gpus:
        speed = achieved_flops_per_s(gpu.name, job.model.hidden_size) if gpu.name else None
        if speed is None:
            raise _unknown_speed(host.name, f"GPU {gpu.index} ({gpu.name or 'name not known'})")
        speeds.append(speed)
    return min(speeds)


def _unknown_speed(host: str, what: str) -> HolmesError:
    return HolmesError(
        f"host {host}: the speed of its {what} is not known",
        "set compute.flops_per_s in job.yaml, measured with `python -m holmes_runtime.calibrate`",
    )


def _no_slots(inventory: Inventory, job: Job) -> HolmesError:
    reachable = [host.name for host in inventory.hosts if host.reachable]
    if not reachable:
        return HolmesError(
            f"none of the {len(inventory.hosts)} hosts in the inventory was reachable",
            "see the findings of `holmes probe hosts.yaml`, then probe again",
            ANSWER_IS_NO,
        )
    return HolmesError(
        f"device is {job.device} and no reachable host ({', '.join(reachable)}) has a GPU",
        "set `device: cpu` in job.yaml, or add hosts with GPUs",
        ANSWER_IS_NO,
    )
