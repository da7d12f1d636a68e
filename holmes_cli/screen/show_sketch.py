"""A sketch as tables: the equipment of a host of each cluster, and the rates between clusters."""

from __future__ import annotations

from collections.abc import Iterator

from holmes_cli.screen.fitted_table import fitted_table
from holmes_cli.screen.terminal import out, print_out
from holmes_core.records.inventory import Cluster, Inventory, NetworkPort
from holmes_core.units import format_memory, format_rate, format_seconds
from holmes_runtime.config.gpu_peaks import product_of

WIDTH = 100


def show_sketch(inventory: Inventory) -> None:
    """Print the machines as they will be planned for."""
    headings = ("cluster", "hosts", "GPUs of a host", "joined by", "its fabric", "to everywhere")
    rows = (_row(inventory, cluster) for cluster in inventory.clusters)
    out.print(fitted_table(headings, rows, min(WIDTH, out.width), "Sketch: each host of a cluster has"))
    for sentence in (*_wires(inventory), *_unknown_speeds(inventory)):
        print_out(sentence)


def _row(inventory: Inventory, cluster: Cluster) -> tuple[str, ...]:
    host, fabric = inventory.host(cluster.hosts[0]), cluster.fabric.ports[0]
    gpu, shared = host.gpus[0], inventory.shared
    everywhere = shared.port_of(host.name) if shared is not None else None
    domain = next((each for each in inventory.nvlink_domains if host.name in each.hosts), None)
    links = f"{gpu.nvlinks_up} NVLinks" if gpu.nvlinks_up else f"PCI Express {gpu.pci_gen or 'of unknown generation'}"
    return (
        cluster.name,
        str(len(cluster.hosts)),
        f"{len(host.gpus)} x {gpu.name}, {format_memory(gpu.memory_bytes)}",
        links + (f", in domains of {len(domain.hosts)} hosts" if domain is not None else ""),
        f"{cluster.fabric.kind}, {_port_words(fabric)}",
        _port_words(everywhere) if everywhere is not None else "nothing",
    )


def _port_words(port: NetworkPort) -> str:
    """Return `3200 Gbit/s over 8 ports`, or the interface."""
    if port.hcas:
        return f"{format_rate(port.rdma_bandwidth_bytes_per_s)} over {len(port.hcas)} port{'s' * (len(port.hcas) > 1)}"
    return f"{format_rate(port.bandwidth_bytes_per_s)} over {port.netdev}"


def _unknown_speeds(inventory: Inventory) -> Iterator[str]:
    for cluster in inventory.clusters:
        name = str(inventory.host(cluster.hosts[0]).gpus[0].name)
        if product_of(name) is None:
            yield f"{cluster.name}: the speed of {name} is not known: set compute.flops_per_s in job.yaml"


def _wires(inventory: Inventory) -> Iterator[str]:
    """Yield the rates between clusters, in sentences."""
    for link in inventory.links:
        late = f", latency {format_seconds(link.latency_s.median)}" if link.latency_s is not None else ""
        where = " - ".join(link.clusters) if link.kind == "between" else f"inside {link.clusters[0]}"
        yield f"{where}: {format_rate(link.bandwidth_bytes_per_s.median)} of payload for each host{late}"
    for trunk in inventory.trunks:
        ends = " - ".join(trunk.clusters) if len(trunk.clusters) > 1 else f"{trunk.clusters[0]} - all others"
        yield f"{ends}: {format_rate(trunk.bandwidth_bytes_per_s)} for all hosts together"
