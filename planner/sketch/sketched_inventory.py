"""The inventory of a sketch: the record that a probe of such machines would make, marked as a sketch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from itertools import combinations

from holmes_core.records.access import Access
from holmes_core.records.devices import BondSlave, Gpu, Netdev, Nic
from holmes_core.records.inventory import (
    Cluster,
    FabricKind,
    Host,
    Inventory,
    Network,
    NetworkPort,
    NvlinkDomain,
    stated_link,
)
from holmes_core.records.link import Link, Trunk
from holmes_core.units import GIB, bytes_per_s_from_gbps
from planner.cost.collectives import tcp_payload_share
from planner.sketch.known_parts import GPUS
from planner.sketch.sketch import Cards, Sketch, SketchCluster, WireRate

SHARED, INSIDE = "10.0.0.0/9", "10.128.0.0/9"  # the network of all hosts, and every fabric that has addresses
RDMA_NETDEVS: dict[FabricKind, str] = {"InfiniBand": "ib0", "RoCE": "roce0", "EFA": "eth0"}
LANES = 16
WHY = "as sketched"


def sketched_inventory(sketch: Sketch) -> Inventory:
    """Return the inventory of the sketch's machines."""
    hosts, clusters, shared, domains = list[Host](), list[Cluster](), list[NetworkPort](), list[NvlinkDomain]()
    for each in sketch.clusters:
        dash = "-" if each.name[-1].isdecimal() else ""  # otherwise `a1` and `a` could both have a host `a11`
        names = tuple(f"{each.name}{dash}{number}" for number in range(1, each.hosts + 1))
        machine, first = _machine(sketch, each), len(hosts) + 1
        ports = [machine.ports(name, number) for number, name in enumerate(names, first)]
        shared += [everywhere for _, everywhere in ports if everywhere is not None]
        domains += _domains(each, names)
        hosts += [machine.host(name, number) for number, name in enumerate(names, first)]
        fabric = Network(
            name=each.name,
            kind=each.fabric.kind,
            subnet=machine.subnet(machine.inside.netdev),
            ports=tuple(inside for inside, _ in ports),
            net_name="Libfabric" if each.fabric.kind == "EFA" else None,
        )
        clusters.append(Cluster(name=each.name, hosts=names, fabric=fabric))
    inventory = Inventory(
        sketch=sketch.summary(),
        hosts=tuple(hosts),
        clusters=tuple(clusters),
        shared=Network(name="shared", kind="Ethernet", subnet=SHARED, ports=tuple(shared)) if shared else None,
        trunks=tuple(
            Trunk(
                clusters=each.clusters,
                bandwidth_bytes_per_s=bytes_per_s_from_gbps(each.gbps),
                source="hosts.yaml",
                pairs=0,
            )
            for each in sketch.trunks
        ),
        nvlink_domains=tuple(domains),
        findings=(),
    )
    return inventory.model_copy(update={"links": tuple(_links(sketch, inventory))})


@dataclass(frozen=True)
class _Machine:
    """The common parts of all hosts of a cluster, without the names and addresses in `inside` and `everywhere`."""

    gpus: tuple[Gpu, ...]
    nics: tuple[Nic, ...]
    netdevs: tuple[Netdev, ...]
    inside: NetworkPort
    everywhere: NetworkPort | None
    memory_bytes: int | None
    imex: str | None

    def host(self, name: str, number: int) -> Host:
        """Return the host of that name and number."""
        return Host(
            name=name,
            access=Access(),
            reachable=True,
            hostname=name,
            gpus=self.gpus,
            nics=self.nics,
            netdevs=tuple(self._addressed(netdev, number) for netdev in self.netdevs),
            memory_bytes=self.memory_bytes,
            imex=self.imex,
        )

    def ports(self, name: str, number: int) -> tuple[NetworkPort, NetworkPort | None]:
        """Return the host's ports on its fabric and on the network of all hosts."""
        inside, everywhere = (
            port and port.model_copy(update={"host": name, "address": self._address(port.netdev, number)})
            for port in (self.inside, self.everywhere)
        )
        assert inside is not None
        return inside, everywhere

    def subnet(self, netdev: str | None) -> str:
        """Return the network of an interface."""
        return SHARED if self.everywhere is not None and self.everywhere.netdev == netdev else INSIDE

    def _address(self, netdev: str | None, number: int) -> str:
        return str(IPv4Address(self.subnet(netdev).partition("/")[0]) + number)

    def _addressed(self, netdev: Netdev, number: int) -> Netdev:
        ports = (self.inside, self.everywhere)
        if not any(port is not None and port.netdev == netdev.name for port in ports):
            return netdev
        return netdev.model_copy(update={"addresses": (f"{self._address(netdev.name, number)}/9",)})


def _machine(sketch: Sketch, cluster: SketchCluster) -> _Machine:
    fabric, ethernet, rate = cluster.fabric, cluster.ethernet, _everywhere_gbps(sketch, cluster)
    plain = fabric.kind == "Ethernet"
    nics, netdevs = _ethernet_cards(fabric) if plain else _rdma_ports(cluster)
    inside = _port(netdevs[-1])
    if not plain:
        hcas = tuple(nic.hca for nic in nics)
        gbps = fabric.measured_gbps or fabric.host_gbps
        inside = inside.model_copy(update={"hcas": hcas, "rdma_bandwidth_bytes_per_s": bytes_per_s_from_gbps(gbps)})
    if plain and ethernet is not None:  # slower cards limit the interface, and a link states the rate inside
        speed = bytes_per_s_from_gbps(min(fabric.host_gbps, ethernet.host_gbps))
        netdevs = (*netdevs[:-1], netdevs[-1].model_copy(update={"speed_bytes_per_s": speed}))
    outward = _port(netdevs[-1])
    others = ethernet or (Cards(gbps=rate) if rate is not None and not plain else None)
    if others is not None:
        own = fabric.kind == "EFA" and ethernet is None  # its adapters are also the host's network cards
        first = fabric.num_ports if plain else len(netdevs) if fabric.kind == "EFA" and not own else 0
        more_nics, more_netdevs = _ethernet_cards(others, first)
        nics += more_nics if ethernet is not None else ()
        if own:
            rdma = {"hcas": inside.hcas, "rdma_bandwidth_bytes_per_s": inside.rdma_bandwidth_bytes_per_s}
            inside, netdevs = _port(more_netdevs[-1]).model_copy(update=rdma), ()
        netdevs += more_netdevs
    everywhere = outward if plain else _port(netdevs[-1]) if others is not None else None
    memory = cluster.memory_gib
    return _Machine(
        gpus=_gpus(cluster),
        nics=nics,
        netdevs=netdevs,
        inside=inside,
        everywhere=everywhere,
        memory_bytes=None if memory is None else int(memory * GIB),
        imex=None if cluster.nvlink_hosts is None else "active",
    )


def _everywhere_gbps(sketch: Sketch, cluster: SketchCluster) -> float | None:
    """Return Gbit/s of a host's cards to other clusters: their own, or the fastest wire's; None without either."""
    if cluster.everywhere is not None:
        return cluster.everywhere.host_gbps
    wires = [sketch.wire(cluster.name, other.name) for other in sketch.clusters if other is not cluster]
    share = tcp_payload_share(None)
    return max((wire.gbps / (share if wire.measured else 1.0) for wire in wires if wire is not None), default=None)


def _gpus(cluster: SketchCluster) -> tuple[Gpu, ...]:
    gib, ports, known = cluster.gpu_memory_gib, cluster.fabric.num_ports, cluster.known
    return tuple(
        Gpu(
            index=index,
            name=known.cuda_name if known is not None and cluster.gpu in GPUS else cluster.gpu,
            uuid=None,
            memory_bytes=int(gib * GIB) if gib is not None else known.memory_bytes if known is not None else None,
            pci_address=None,
            nvlinks_up=cluster.num_nvlinks,
            nvlinks_total=cluster.num_nvlinks,
            pci_gen=cluster.pci_generation or (known.pci_generation if known is not None else None),
            pci_width=LANES,
            nvlink_cluster=None if cluster.nvlink_hosts is None else cluster.name,
            rail=None if cluster.fabric.kind == "Ethernet" else index * ports // cluster.gpus_per_host,
        )
        for index in range(cluster.gpus_per_host)
    )


def _rdma_ports(cluster: SketchCluster) -> tuple[tuple[Nic, ...], tuple[Netdev, ...]]:
    """Return the ports, and the interface of the first of them."""
    fabric = cluster.fabric
    name = RDMA_NETDEVS[fabric.kind]
    nics = tuple(
        _nic(
            f"rdmap{index}s0" if fabric.kind == "EFA" else f"mlx5_{index}",
            fabric.kind,
            fabric.gbps,
            port=1,
            netdev=name if index == 0 else None,
            rail=index,
            sys_image_guid=f"0000:0000:0000:{index // fabric.ports_per_card + 1:04x}",
            usable_by_nccl_ib=fabric.kind != "EFA",
        )
        for index in range(fabric.num_ports)
    )
    return nics, (_netdev(name, fabric.gbps),)


def _ethernet_cards(cards: Cards, first: int = 0) -> tuple[tuple[Nic, ...], tuple[Netdev, ...]]:
    """Return the ports and their interfaces, from eth`first`. Several ports form one bond, which comes last."""
    names = [f"eth{first + number}" for number in range(cards.num_ports)]
    nics = tuple(_nic(name, "Ethernet", cards.gbps, netdev=name) for name in names)
    if len(names) == 1:
        return nics, (_netdev(names[0], cards.host_gbps),)
    bond = f"bond{first}"
    slaves = tuple(BondSlave(name=name, mii_status="up") for name in names)
    members = tuple(_netdev(name, cards.gbps).model_copy(update={"master": bond}) for name in names)
    return nics, (*members, _netdev(bond, cards.host_gbps).model_copy(update={"bond_slaves": slaves, "kind": "bond"}))


def _nic(device: str, kind: FabricKind, gbps: float, **facts: object) -> Nic:
    base = {"device": device, "port": 0, "kind": kind, "rate_gbps": gbps, "state": "Active", "phys_state": "LinkUp"}
    unknown = {"subnet_prefix": None, "sm_lid": None, "usable_by_nccl_ib": None, "why": WHY}
    return Nic.model_validate({**base, **unknown, **facts})


def _netdev(name: str, gbps: float) -> Netdev:
    return Netdev(name=name, up=True, mtu=None, addresses=(), speed_bytes_per_s=bytes_per_s_from_gbps(gbps))


def _port(netdev: Netdev) -> NetworkPort:
    """Return a port of a host whose name and address are not yet known."""
    return NetworkPort(host="", netdev=netdev.name, address=None, bandwidth_bytes_per_s=netdev.speed_bytes_per_s)


def _domains(cluster: SketchCluster, names: Sequence[str]) -> Iterator[NvlinkDomain]:
    size = cluster.nvlink_hosts
    for clique, first in enumerate(range(0, len(names), size) if size is not None else ()):
        members = tuple(names[first : first + (size or 0)])
        yield NvlinkDomain(
            name=f"{cluster.name}-nvlink-{clique}", hosts=members, cluster_uuid=cluster.name, clique=clique
        )


def _links(sketch: Sketch, inventory: Inventory) -> Iterator[Link]:
    """Yield the rates that the hosts' cards do not determine, as links: inside clusters, and for all pairs or none."""
    for each, cluster in zip(sketch.clusters, inventory.clusters, strict=True):
        gbps = each.fabric.measured_gbps
        if gbps is None and each.ethernet is not None:
            gbps = each.fabric.host_gbps * tcp_payload_share(None)
        if each.fabric.kind == "Ethernet" and gbps is not None and each.hosts > 1:
            ends = cluster.fabric.ports[0], cluster.fabric.ports[1]
            yield stated_link(each.name, (each.name, each.name), ends, bytes_per_s_from_gbps(gbps), 0.0)
    if inventory.shared is None:
        return
    ports = inventory.shared.ports
    first = {each.name: next(port for port in ports if port.host == each.hosts[0]) for each in inventory.clusters}
    of_ports = {name: port.bandwidth_bytes_per_s or 0.0 for name, port in first.items()}
    wires = {pair: sketch.wire(*pair) for pair in combinations(first, 2)}
    rates = {pair: _payload(wire, min(of_ports[name] for name in pair)) for pair, wire in wires.items()}
    late = {pair: wire.latency_ms / 1e3 if wire is not None else 0.0 for pair, wire in wires.items()}
    by_ports = {pair: _payload(None, min(of_ports[name] for name in pair)) for pair in wires}
    if rates != by_ports or any(late.values()):
        for pair, rate in rates.items():
            yield stated_link("shared", pair, (first[pair[0]], first[pair[1]]), rate, late[pair])


def _payload(wire: WireRate | None, cards_bytes_per_s: float) -> float:
    """Return TCP's payload in bytes/s over a wire between hosts with such cards. A measured rate may exceed these."""
    if wire is not None and wire.measured:
        return bytes_per_s_from_gbps(wire.gbps)
    line = cards_bytes_per_s if wire is None else min(cards_bytes_per_s, bytes_per_s_from_gbps(wire.gbps))
    return line * tcp_payload_share(None)
