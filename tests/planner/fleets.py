"""Inventories and jobs for the planner's tests: as many clusters, hosts and slots as a test wants."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from holmes_core.records.access import Access
from holmes_core.records.devices import Gpu, Netdev
from holmes_core.records.inventory import Cluster, FabricKind, Host, Inventory, Network, NetworkPort, Software
from holmes_core.records.job import Job
from holmes_core.records.plan import Plan, SourceFile
from planner.advice.advise import Effort
from planner.make_plan import make_plan

GBPS = 1e9 / 8
A100 = "NVIDIA A100-SXM4-80GB"
GIB = 2**30
UNHURRIED = Effort(limit_s=3600.0)  # as a busy machine may stand still
SOURCES = SourceFile(path="inventory.json", digest="sha256:0"), SourceFile(path="job.yaml", digest="sha256:1")


def cpu_inventory(
    sizes: Sequence[int], fabric_gbps: float | None = 2.0, shared_gbps: float | None = 0.1, shared: bool = True
) -> Inventory:
    """Clusters a, b, ... of `sizes` hosts a1, a2, ...: fabric on eth1, what all share on eth0."""
    clusters, hosts, ports = [], [], []
    for index, size in enumerate(sizes):
        label = "abcdefgh"[index]
        names = [f"{label}{number}" for number in range(1, size + 1)]
        hosts += [cpu_host(name, index, number, fabric_gbps, shared_gbps) for number, name in enumerate(names, 1)]
        ports += [port(name, "eth0", f"10.0.{index}.{n}", shared_gbps) for n, name in enumerate(names, 1)]
        fabric = tuple(port(name, "eth1", f"10.{index + 1}.0.{n}", fabric_gbps) for n, name in enumerate(names, 1))
        network = Network(name=label, kind="Ethernet", subnet=f"10.{index + 1}.0.0/24", ports=fabric)
        clusters.append(Cluster(name=label, hosts=tuple(names), fabric=network))
    common = Network(name="shared", kind="Ethernet", subnet="10.0.0.0/16", ports=tuple(ports)) if shared else None
    return Inventory(hosts=tuple(hosts), clusters=tuple(clusters), shared=common, findings=())


def cpu_host(name: str, cluster: int, number: int, fabric_gbps: float | None, shared_gbps: float | None) -> Host:
    """A reachable host with eth0 and eth1."""
    netdevs = (
        netdev("eth0", f"10.0.{cluster}.{number}/16", shared_gbps),
        netdev("eth1", f"10.{cluster + 1}.0.{number}/24", fabric_gbps),
    )
    return Host(name=name, access=Access(), reachable=True, hostname=name, netdevs=netdevs)


def netdev(name: str, address: str, gbps: float | None) -> Netdev:
    """An interface that is up."""
    return Netdev(name=name, up=True, mtu=1500, addresses=(address,), speed_bytes_per_s=gbps and gbps * GBPS)


def port(host: str, name: str, address: str, gbps: float | None) -> NetworkPort:
    """A host's port on a TCP network."""
    return NetworkPort(host=host, netdev=name, address=address, bandwidth_bytes_per_s=gbps and gbps * GBPS)


def gpu_inventory(
    sizes: Sequence[int],
    gpus_per_host: int = 8,
    gpu_name: str = A100,
    memory_bytes: int | None = 80 * GIB,
    kinds: Sequence[FabricKind] = ("InfiniBand", "RoCE"),
    rdma_gbps: float = 1600.0,
    shared_gbps: float = 25.0,
) -> Inventory:
    """As `cpu_inventory`, with GPUs in every host; RDMA kinds have eight HCAs."""
    plain = cpu_inventory(sizes, fabric_gbps=100.0, shared_gbps=shared_gbps)
    gpus = tuple(
        Gpu(index=index, name=gpu_name, uuid=None, memory_bytes=memory_bytes, pci_address=None)
        for index in range(gpus_per_host)
    )
    hcas = tuple(f"mlx5_{index}:1" for index in range(8))
    clusters = []
    for cluster, kind in zip(plain.clusters, kinds, strict=False):
        update = {"hcas": hcas, "rdma_bandwidth_bytes_per_s": rdma_gbps * GBPS} if kind != "Ethernet" else {}
        ports = tuple(p.model_copy(update=update) for p in cluster.fabric.ports)
        fabric = cluster.fabric.model_copy(update={"ports": ports, "kind": kind})
        clusters.append(cluster.model_copy(update={"fabric": fabric}))
    hosts = tuple(
        host.model_copy(update={"gpus": gpus, "software": Software(python="3", torch="2")}) for host in plain.hosts
    )
    return plain.model_copy(update={"hosts": hosts, "clusters": tuple(clusters)})


def bed_job(**changes: Any) -> Job:
    """The bed's job: a GPT of 15 M parameters on CPU slots; pp 2, dp 2 and zero-bubble fixed."""
    data: dict[str, Any] = {
        "model": {"num_layers": 10, "hidden_size": 352, "num_heads": 8, "seq_length": 128},
        "data": {"path": "/data"},
        "steps": 10,
        "global_batch_size": 32,
        "device": "cpu",
        "compute": {"flops_per_s": 2e10},
        "parallel": {"pp": 2, "dp": 2, "schedule": "zero-bubble"},
    }
    return Job.model_validate(data | changes)


def gpt_7b(**changes: Any) -> Job:
    """GPT of 7.5 B parameters on GPUs."""
    data: dict[str, Any] = {
        "model": {
            "num_layers": 36,
            "hidden_size": 4096,
            "num_heads": 32,
            "seq_length": 2048,
            "vocab_size": 51200,
        },
        "data": {"path": "/data"},
        "steps": 10,
        "global_batch_size": 512,
    }
    return Job.model_validate(data | changes)


def plan_anew(inventory: Inventory, job: Job, **options: Any) -> Plan:
    """Plan and verify; without a limit of its own, for as long as it takes on a busy machine."""
    return make_plan(inventory, job, *SOURCES, **{"time_limit_s": 3600.0} | options)


@dataclass(frozen=True)
class PlanInputs:
    """An inventory and a job as the key of a cache."""

    inventory: Inventory
    job: Job

    def __hash__(self) -> int:
        return hash((self.inventory.digest(), self.job.digest()))


def plan_for(inventory: Inventory, job: Job, **options: Any) -> Plan:
    """Plan and verify, once in this process however many ask for it."""
    return _plan_for(PlanInputs(inventory, job), **options)


@cache
def _plan_for(inputs: PlanInputs, **options: Any) -> Plan:
    return plan_anew(inputs.inventory, inputs.job, **options)


def random_inventory(seed: int) -> Inventory:
    """Two or three clusters of one to three hosts; every fabric, and the shared network, at a rate of its own."""
    draw = random.Random(seed)
    sizes = [draw.randint(1, 3) for _ in range(draw.choice((2, 2, 3)))]
    inventory = cpu_inventory(sizes, 1.0, draw.choice((0.02, 0.1, 0.5, 2.0)) * draw.uniform(0.9, 1.1))
    clusters = tuple(
        cluster.model_copy(update={"fabric": faster(cluster.fabric, draw.uniform(0.5, 8.0))})
        for cluster in inventory.clusters
    )
    return inventory.model_copy(update={"clusters": clusters})


def faster(network: Network, factor: float) -> Network:
    """The network with every port's bandwidth `factor` times what it is."""
    ports = tuple(
        each.model_copy(update={"bandwidth_bytes_per_s": each.bandwidth_bytes_per_s * factor})
        for each in network.ports
        if each.bandwidth_bytes_per_s is not None
    )
    return network.model_copy(update={"ports": ports})
