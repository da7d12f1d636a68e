"""The settings of the Holmes paper as inventories: `python -m tests.planner.paper_examples` writes templates/examples/.

Beside them the one that docs/planning.md speaks of.

Hosts have eight A100 and Ethernet of 25 Gbit/s to everywhere. Fabrics are those of the paper's own configuration files:
four HCAs a host on InfiniBand, two on RoCE, none on Ethernet. Rates are assumptions: 200 Gbit/s an HCA.
"""

from __future__ import annotations

import json
from pathlib import Path

from holmes_core.records.access import Access
from holmes_core.records.devices import Gpu, Netdev
from holmes_core.records.inventory import Cluster, FabricKind, Host, Inventory, Network, NetworkPort
from holmes_core.records.record_file import write_atomically
from tests.planner.fleets import gpu_inventory

FOLDER = Path(__file__).parents[2] / "templates" / "examples"
ETHERNET_BYTES_PER_S = 25e9 / 8
HCA_BYTES_PER_S = 200e9 / 8
HCAS: dict[FabricKind, int] = {"InfiniBand": 4, "RoCE": 2, "Ethernet": 0}
PREFIXES: dict[FabricKind, str] = {"InfiniBand": "ib", "RoCE": "roce", "Ethernet": "eth"}
SETTINGS: dict[str, tuple[tuple[FabricKind, int], ...]] = {
    "4_infiniband_4_roce": (("InfiniBand", 4), ("RoCE", 4)),
    "5_infiniband_3_roce": (("InfiniBand", 5), ("RoCE", 3)),
    "2_infiniband_2_roce_2_infiniband": (("InfiniBand", 2), ("RoCE", 2), ("InfiniBand", 2)),
    "2_infiniband_2_roce_2_ethernet": (("InfiniBand", 2), ("RoCE", 2), ("Ethernet", 2)),
}
TWO_CLUSTERS = "two_clusters"


def make_inventory(*clusters: tuple[FabricKind, int]) -> Inventory:
    """Clusters a, b, ... of so many hosts each, on that kind of fabric."""
    parts = [_cluster("abc"[index], index, kind, size) for index, (kind, size) in enumerate(clusters)]
    ports = tuple(_shared_port(host, at, n) for at, part in enumerate(parts) for n, host in enumerate(part.hosts, 1))
    hosts = tuple(_host(port, part) for part in parts for port in ports if port.host in part.hosts)
    shared = Network(name="shared", kind="Ethernet", subnet="10.0.0.0/16", ports=ports)
    return Inventory(hosts=hosts, clusters=tuple(parts), shared=shared, findings=())


def text_of(inventory: Inventory) -> str:
    """The file of `inventory`, without what is at its default, and what fits into a line in one."""
    body = inventory.model_dump(mode="json", exclude_defaults=True)
    return _folded({"kind": inventory.KIND, "digest": inventory.digest(), **body}) + "\n"


def _cluster(name: str, index: int, kind: FabricKind, size: int) -> Cluster:
    hosts = tuple(f"{PREFIXES[kind]}-{name}{n}" for n in range(1, size + 1))
    if kind == "Ethernet":
        ports = tuple(_shared_port(host, index, n) for n, host in enumerate(hosts, 1))
        return Cluster(name=name, hosts=hosts, fabric=Network(name=name, kind=kind, subnet="10.0.0.0/16", ports=ports))
    ports = tuple(
        NetworkPort(
            host=host,
            netdev="ib0" if kind == "InfiniBand" else "roce0",
            address=f"10.{index + 1}.0.{n}",
            bandwidth_bytes_per_s=HCA_BYTES_PER_S,
            hcas=tuple(f"mlx5_{hca}:1" for hca in range(HCAS[kind])),
            rdma_bandwidth_bytes_per_s=HCAS[kind] * HCA_BYTES_PER_S,
        )
        for n, host in enumerate(hosts, 1)
    )
    fabric = Network(name=name, kind=kind, subnet=f"10.{index + 1}.0.0/24", ports=ports)
    return Cluster(name=name, hosts=hosts, fabric=fabric)


def _shared_port(host: str, cluster: int, number: int) -> NetworkPort:
    address = f"10.0.{cluster}.{number}"
    return NetworkPort(host=host, netdev="bond0", address=address, bandwidth_bytes_per_s=ETHERNET_BYTES_PER_S)


def _host(shared: NetworkPort, cluster: Cluster) -> Host:
    gpus = tuple(
        Gpu(index=index, name="NVIDIA A100-SXM4-80GB", uuid=None, memory_bytes=80 * 2**30, pci_address=None)
        for index in range(8)
    )
    ports = dict.fromkeys((cluster.fabric.port_of(shared.host), shared))
    netdevs = tuple(_netdev(port) for port in ports if port is not None)
    return Host(name=shared.host, access=Access(), reachable=True, hostname=shared.host, gpus=gpus, netdevs=netdevs)


def _netdev(port: NetworkPort) -> Netdev:
    length = 16 if port.netdev == "bond0" else 24
    return Netdev(
        name=str(port.netdev),
        up=True,
        mtu=None,
        addresses=(f"{port.address}/{length}",),
        speed_bytes_per_s=port.bandwidth_bytes_per_s,
    )


def _folded(value: object, depth: int = 0) -> str:
    """JSON with every value in one line that fits into one."""
    line, inner = json.dumps(value), "\n" + " " * (depth + 1)
    if len(line) + depth <= 118 or not isinstance(value, dict | list):
        return line
    if isinstance(value, dict):
        parts, ends = [f"{json.dumps(key)}: {_folded(each, depth + 1)}" for key, each in value.items()], "{}"
    else:
        parts, ends = [_folded(each, depth + 1) for each in value], "[]"
    return ends[0] + inner + f",{inner}".join(parts) + "\n" + " " * depth + ends[1]


if __name__ == "__main__":
    for name, clusters in SETTINGS.items():
        write_atomically(FOLDER / f"{name}.json", text_of(make_inventory(*clusters)))
    write_atomically(FOLDER / f"{TWO_CLUSTERS}.json", text_of(gpu_inventory([4, 4])))
