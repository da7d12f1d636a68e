"""Inventory: who has which GPUs and NICs, which hosts share a fabric, and what is wrong."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from holmes_core.hosts_file import Access
from holmes_core.record import FileRecord, Record

NicKind = Literal["InfiniBand", "RoCE", "Omni-Path", "EFA", "iWARP", "Soft-RoCE", "unknown"]
FabricKind = Literal["InfiniBand", "RoCE", "Ethernet", "loopback"]
Severity = Literal["F", "W", "I"]


class Finding(Record):
    """Something the user should know. Ids and severities (F refuses launch, W warns, I informs) are the catalogue's."""

    rule: str
    severity: Severity
    hosts: tuple[str, ...]
    evidence: str
    effect: str
    remedy: str


class Gpu(Record):
    """One GPU as nvidia-smi shows it."""

    index: int = Field(ge=0)
    name: str
    uuid: str | None
    memory_bytes: int | None
    pci_address: str | None


class Nic(Record):
    """One RDMA port. `state` and `phys_state` in ibstat's words; `rate_gbps` is void unless the port is Active."""

    device: str
    port: int
    kind: NicKind
    rate_gbps: float | None
    state: str | None
    phys_state: str | None
    netdev: str | None
    subnet_prefix: str | None
    sm_lid: int | None
    usable_by_nccl_ib: bool | None
    why: str


class Netdev(Record):
    """One network interface of the kernel. `addresses` are IPv4 with prefix length, `10.9.0.1/24`."""

    name: str
    up: bool
    mtu: int | None
    addresses: tuple[str, ...]
    speed_bytes_per_s: float | None


class Software(Record):
    """What the run would use there. `torch` is None where it cannot be imported."""

    python: str | None
    torch: str | None


class Host(Record):
    """One machine. A host that could not be reached keeps its place, with nothing known and a finding."""

    name: str
    access: Access
    reachable: bool
    hostname: str | None = None
    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    netdevs: tuple[Netdev, ...] = ()
    default_route_netdev: str | None = None
    software: Software = Software(python=None, torch=None)


class NetworkPort(Record):
    """Where a host touches a network: the netdev TCP uses, and the HCAs RDMA uses (`mlx5_0:1`)."""

    host: str
    netdev: str | None
    address: str | None
    bandwidth_bytes_per_s: float | None
    hcas: tuple[str, ...] = ()
    rdma_bandwidth_bytes_per_s: float | None = None


class Network(Record):
    """A fabric inside one cluster, or the network all clusters share. `subnet` is its IPv4 prefix where known."""

    name: str
    kind: FabricKind
    subnet: str | None
    ports: tuple[NetworkPort, ...]

    def port_of(self, host: str) -> NetworkPort | None:
        """The port of `host` on this network, None if it has none."""
        return next((port for port in self.ports if port.host == host), None)


class Cluster(Record):
    """Hosts that share one fabric. `pinned` when hosts.yaml named it."""

    name: str
    hosts: tuple[str, ...]
    fabric: Network
    pinned: bool = False


class Inventory(FileRecord):
    """Everything `holmes probe` found. Every reachable host is in exactly one cluster."""

    KIND: ClassVar[str] = "inventory"
    RENEW: ClassVar[str] = "holmes probe hosts.yaml -o inventory.json"

    schema_version: Literal[1] = 1
    hosts: tuple[Host, ...]
    clusters: tuple[Cluster, ...]
    shared: Network | None
    findings: tuple[Finding, ...]

    @model_validator(mode="after")
    def _every_reachable_host_has_one_cluster(self) -> Inventory:
        members = [name for cluster in self.clusters for name in cluster.hosts]
        reachable = [host.name for host in self.hosts if host.reachable]
        if sorted(members) != sorted(reachable):
            raise ValueError(f"clusters hold {sorted(members)}, reachable hosts are {sorted(reachable)}")
        return self

    def host(self, name: str) -> Host:
        """The host of that name. Raises KeyError."""
        for host in self.hosts:
            if host.name == name:
                return host
        raise KeyError(name)
