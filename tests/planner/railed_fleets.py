"""Inventories whose clusters have rails that do not reach one another."""

from __future__ import annotations

from collections.abc import Sequence

from holmes_core.records.devices import Gid, Gpu, Netdev, Nic
from holmes_core.records.inventory import FabricKind, Host, Inventory
from tests.planner.fleets import GBPS, gpu_inventory


def railed_inventory(
    sizes: Sequence[int], gpus_per_host: int = 8, num_rails: int = 8, apart: bool | None = True, bond: bool = False
) -> Inventory:
    """As `gpu_inventory` with RoCE in every cluster: rail i of all hosts of cluster k is network 10.k+50.i.0/24."""
    kinds: list[FabricKind] = ["RoCE"] * len(sizes)
    plain = gpu_inventory(sizes, gpus_per_host, kinds=kinds)
    clusters = tuple(
        cluster.model_copy(update={"fabric": cluster.fabric.model_copy(update={"rails_apart": apart})})
        for cluster in plain.clusters
    )
    number = {name: (k, i) for k, cluster in enumerate(clusters) for i, name in enumerate(cluster.hosts, 1)}
    hosts = tuple(_with_rails(host, *number[host.name], num_rails, bond) for host in plain.hosts)
    return plain.model_copy(update={"hosts": hosts, "clusters": clusters})


def _with_rails(host: Host, cluster: int, number: int, num_rails: int, bond: bool) -> Host:
    addresses = [f"10.{cluster + 50}.{rail}.{number}" for rail in range(num_rails)]
    netdevs = tuple(
        Netdev(name=f"rail{i}", up=True, mtu=4200, addresses=(f"{address}/24",), speed_bytes_per_s=200 * GBPS)
        for i, address in enumerate(addresses)
    )
    nics = tuple(roce_rail(i, address, bond) for i, address in enumerate(addresses))
    gpus = tuple(gpu.model_copy(update={"rail": gpu.index * num_rails // len(host.gpus)}) for gpu in host.gpus)
    return host.model_copy(update={"netdevs": (*host.netdevs, *netdevs), "nics": nics, "gpus": gpus})


def roce_rail(number: int, address: str, bond: bool = False) -> Nic:
    """A rail with the GIDs that the kernel gives a RoCE port with one IPv4 address."""
    link_local = f"fe80::a288:c2ff:fe00:{number:x}"
    gids = [
        Gid(index=0, gid=link_local, type="RoCE v1", netdev=f"rail{number}"),
        Gid(index=1, gid=link_local, type="RoCE v2", netdev=f"rail{number}"),
        Gid(index=2, gid=f"::ffff:{address}", type="RoCE v1", ipv4=address, netdev=f"rail{number}"),
        Gid(index=3, gid=f"::ffff:{address}", type="RoCE v2", ipv4=address, netdev=f"rail{number}"),
    ]
    return Nic(
        device=f"mlx5_{number}",
        port=1,
        kind="RoCE",
        rate_gbps=200,
        state="Active",
        phys_state="LinkUp",
        netdev=f"rail{number}",
        subnet_prefix=None,
        sm_lid=None,
        usable_by_nccl_ib=True,
        why="",
        rail=number,
        rail_why="a rail",
        bond=bond,
        gids=tuple(gids),
        gid_choice=3,
    )


def with_host(inventory: Inventory, name: str, /, **update: object) -> Inventory:
    """The inventory with one host changed."""
    hosts = tuple(host.model_copy(update=update) if host.name == name else host for host in inventory.hosts)
    return inventory.model_copy(update={"hosts": hosts})


def without_rail(host: Host, lost: int) -> dict[str, tuple[Gpu, ...] | tuple[Nic, ...]]:
    """Nics and GPUs of a host that lost a rail: later ones have moved up a number, as the probe counts them."""

    def moved(number: int) -> int:
        return number if number < lost or number == 0 else number - 1

    nics = tuple(
        nic.model_copy(update={"rail": moved(nic.rail)})
        for nic in host.nics
        if nic.rail is not None and nic.rail != lost
    )
    gpus = tuple(gpu.model_copy(update={"rail": moved(gpu.rail or 0)}) for gpu in host.gpus)
    return {"nics": nics, "gpus": gpus}
