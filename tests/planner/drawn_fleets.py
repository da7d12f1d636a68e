"""Fleets of unlike GPU clusters and jobs for them, drawn by a seed, and the changes that must not make a plan worse."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from holmes_core.records.devices import Gpu
from holmes_core.records.inventory import FabricKind, Inventory, Network
from holmes_core.records.job import Job
from holmes_core.records.link import Link, Spread
from tests.planner.fleets import GBPS, GIB, faster, gpu_inventory
from tests.planner.measured_links import measured, with_trunk

GPUS = {
    "NVIDIA A100-SXM4-80GB": 80,
    "NVIDIA H100 80GB HBM3": 80,
    "NVIDIA L40S": 48,
    "NVIDIA B200": 180,
}
KINDS: tuple[FabricKind, ...] = ("InfiniBand", "RoCE", "Ethernet")
MODELS: tuple[dict[str, Any], ...] = (
    {"family": "gpt", "num_layers": 24, "hidden_size": 2048, "num_heads": 16, "seq_length": 2048, "vocab_size": 50304},
    {"family": "gpt", "num_layers": 6, "hidden_size": 8192, "num_heads": 64, "seq_length": 4096, "vocab_size": 128256},
    {
        "family": "llama",
        "num_layers": 24,
        "hidden_size": 2048,
        "num_heads": 16,
        "seq_length": 4096,
        "vocab_size": 32000,
    },
    {
        "family": "llama",
        "num_layers": 32,
        "hidden_size": 4096,
        "num_heads": 32,
        "seq_length": 4096,
        "vocab_size": 128256,
    },
    {"family": "gpt", "num_layers": 36, "hidden_size": 4096, "num_heads": 32, "seq_length": 2048, "vocab_size": 51200},
)


def drawn_fleet(seed: int) -> Inventory:
    """One to four clusters of one to four hosts; a kind of GPU, GPUs a host and a fabric each; some measured."""
    draw = random.Random(seed)
    sizes = [draw.choice((1, 1, 2, 2, 3, 4)) for _ in range(draw.choice((1, 2, 2, 2, 3, 4)))]
    kinds = [draw.choice(KINDS) for _ in sizes]
    shared_gbps = draw.choice((10.0, 25.0, 100.0)) * draw.uniform(0.9, 1.1)
    fleet = gpu_inventory(sizes, kinds=kinds, shared_gbps=shared_gbps)
    update: dict[str, Any] = {}
    for cluster in fleet.clusters:
        name, number = draw.choice(tuple(GPUS)), draw.choice((4, 8, 8))
        gpus = [
            Gpu(index=index, name=name, uuid=None, memory_bytes=GPUS[name] * GIB, pci_address=None)
            for index in range(number)
        ]
        update |= dict.fromkeys(cluster.hosts, tuple(gpus))
    hosts = tuple(host.model_copy(update={"gpus": update[host.name]}) for host in fleet.hosts)
    fleet = fleet.model_copy(update={"hosts": hosts})
    return _with_wires(draw, fleet, shared_gbps) if draw.random() < 0.5 else fleet


def _with_wires(draw: random.Random, fleet: Inventory, shared_gbps: float) -> Inventory:
    """The fleet with a link measured between all clusters, and a trunk between some."""
    firsts = [cluster.hosts[0] for cluster in fleet.clusters]
    links = list[Link]()
    for i, one in enumerate(firsts):
        for other in firsts[i + 1 :]:
            rate = draw.uniform(0.1, 0.95) * shared_gbps * GBPS
            links.append(measured((one, other), rate, draw.choice((1e-4, 5e-3, 4e-2)), streams=8))
            if draw.random() < 0.3:
                fleet = with_trunk(fleet, (one[0], other[0]), draw.uniform(0.5, 2) * rate)
    return fleet.model_copy(update={"links": tuple(links)})


def drawn_job(seed: int) -> Job:
    """A model of 1.3 to 8 billion parameters, every degree free."""
    draw = random.Random(seed)
    model, batch = draw.choice(MODELS), draw.choice((32, 64, 128, 512))
    return Job.model_validate({"model": model, "data": {"path": "/d"}, "steps": 10, "global_batch_size": batch})


def with_wires(fleet: Inventory, factor: float) -> Inventory:
    """The fleet with every port of the shared network, every measured link and every trunk `factor` times as fast."""
    assert fleet.shared is not None
    links = tuple(_scaled(link, factor) for link in fleet.links)
    trunks = tuple(
        trunk.model_copy(update={"bandwidth_bytes_per_s": factor * trunk.bandwidth_bytes_per_s})
        for trunk in fleet.trunks
    )
    return fleet.model_copy(update={"shared": faster(fleet.shared, factor), "links": links, "trunks": trunks})


def _scaled(link: Link, factor: float) -> Link:
    rate = link.bandwidth_bytes_per_s
    assert rate is not None
    return link.model_copy(update={"bandwidth_bytes_per_s": Spread(min=factor * rate.min, median=factor * rate.median)})


def with_late(fleet: Inventory, factor: float) -> Inventory:
    """The fleet with `factor` times the latency of its measured links."""
    links = tuple(
        link.model_copy(
            update={"latency_s": Spread(min=factor * link.latency_s.min, median=factor * link.latency_s.median)}
        )
        for link in fleet.links
        if link.latency_s is not None
    )
    return fleet.model_copy(update={"links": links})


def with_fabrics(fleet: Inventory, factor: float) -> Inventory:
    """The fleet with every port of every fabric `factor` times as fast."""
    clusters = tuple(
        cluster.model_copy(update={"fabric": _faster_fabric(cluster.fabric, factor)}) for cluster in fleet.clusters
    )
    return fleet.model_copy(update={"clusters": clusters})


def _faster_fabric(network: Network, factor: float) -> Network:
    ports = tuple(
        port.model_copy(
            update={
                name: None if (rate := getattr(port, name)) is None else factor * rate
                for name in ("bandwidth_bytes_per_s", "rdma_bandwidth_bytes_per_s")
            }
        )
        for port in network.ports
    )
    return network.model_copy(update={"ports": ports})


def with_one_more_host(fleet: Inventory) -> Inventory:
    """The fleet with one more host in its first cluster, like the first there."""
    cluster, shared = fleet.clusters[0], fleet.shared
    assert shared is not None
    first = next(host for host in fleet.hosts if host.name == cluster.hosts[0])
    name = f"{cluster.name}{len(cluster.hosts) + 1}"
    grown = cluster.model_copy(
        update={"hosts": (*cluster.hosts, name), "fabric": _with_port(cluster.fabric, first.name, name)}
    )
    return fleet.model_copy(
        update={
            "hosts": (*fleet.hosts, first.model_copy(update={"name": name, "hostname": name})),
            "clusters": (grown, *fleet.clusters[1:]),
            "shared": _with_port(shared, first.name, name),
        }
    )


def _with_port(network: Network, like: str, name: str) -> Network:
    port = network.port_of(like)
    assert port is not None
    more = port.model_copy(update={"host": name, "address": "10.250.0.9"})
    return network.model_copy(update={"ports": (*network.ports, more)})


def with_memory(fleet: Inventory, factor: float) -> Inventory:
    """The fleet with `factor` times the memory on every GPU."""
    hosts = tuple(
        host.model_copy(
            update={
                "gpus": tuple(
                    gpu.model_copy(update={"memory_bytes": int(factor * (gpu.memory_bytes or 0))}) for gpu in host.gpus
                )
            }
        )
        for host in fleet.hosts
    )
    return fleet.model_copy(update={"hosts": hosts})


def reordered(fleet: Inventory, seed: int) -> Inventory:
    """The fleet with its clusters, and the hosts of each, in another order."""
    draw = random.Random(seed)
    clusters: Sequence[Any] = [
        cluster.model_copy(update={"hosts": tuple(draw.sample(cluster.hosts, len(cluster.hosts)))})
        for cluster in fleet.clusters
    ]
    hosts = {host.name: host for host in fleet.hosts}
    order = draw.sample(clusters, len(clusters))
    return fleet.model_copy(
        update={
            "clusters": tuple(order),
            "hosts": tuple(hosts[name] for cluster in order for name in cluster.hosts),
        }
    )
