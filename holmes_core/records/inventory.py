"""Inventory: who has which GPUs and NICs, which hosts share a fabric, and what is wrong."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from holmes_core.records.access import Access
from holmes_core.records.link import Link
from holmes_core.records.record import FileRecord, Record

NicKind = Literal["InfiniBand", "RoCE", "Ethernet", "Omni-Path", "EFA", "iWARP", "SoftRoCE", "unknown"]
GidType = Literal["IB", "RoCE v1", "RoCE v2"]
NetdevKind = Literal["physical", "virtual function", "bond", "vlan", "bridge", "ipoib", "loopback", "virtual"]
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


class PciLink(Record):
    """Speed (GT/s a lane) and width (lanes) of a PCI Express link: now, and the most the device can do."""

    speed_gts: float | None = None
    width: int | None = None
    max_speed_gts: float | None = None
    max_width: int | None = None


class PciDevice(Record):
    """A GPU, a NIC, or a bridge above one. `parent` is the bridge it hangs below, None at the root or not known.

    `acs_redirects`: the device's ACS control has ReqRedir+ or CmpltRedir+; None without root.
    """

    address: str
    what: Literal["gpu", "nic", "bridge"]
    parent: str | None = None
    link: PciLink = PciLink()
    numa_node: int | None = None
    acs_redirects: bool | None = None
    max_read_request_bytes: int | None = None


class Gpu(Record):
    """One GPU as nvidia-smi shows it; as lspci does where nvidia-smi was not asked.

    `nvlinks_total` 0 means there is no NVLink; None with `nvlinks_up` 0, that there are links and none is up.
    `nearest_nics` are the RDMA devices (or `NIC0` of topo -m where its legend is missing) at `nearest_path`, in
    nvidia-smi's words: PIX, PXB, PHB, NODE, SYS. `throttle_reasons` are the active ones, without `gpu_idle`.
    """

    index: int = Field(ge=0)
    name: str | None
    uuid: str | None
    memory_bytes: int | None
    pci_address: str | None
    driver_version: str | None = None
    mig: bool | None = None
    mig_devices: int | None = None
    nvlinks_up: int | None = None
    nvlinks_total: int | None = None
    compute_mode: str | None = None
    persistence_mode: bool | None = None
    ecc_uncorrected: int | None = None
    row_remap_pending: bool | None = None
    row_remap_failure: bool | None = None
    throttle_reasons: tuple[str, ...] = ()
    pci_gen: int | None = None
    pci_gen_max: int | None = None
    pci_width: int | None = None
    pci_width_max: int | None = None
    fabric_state: str | None = None
    fabric_status: str | None = None
    numa_node: int | None = None
    cpus: str | None = None
    nearest_nics: tuple[str, ...] = ()
    nearest_path: str | None = None


class GpuProcess(Record):
    """A process that computes on a GPU. `gpu` is the GPU's index; None where the tool did not say which."""

    pid: int
    gpu: int | None
    name: str | None
    memory_bytes: int | None


class Gid(Record):
    """One entry of a port's GID table."""

    index: int = Field(ge=0)
    gid: str
    type: GidType | None = None
    ipv4: str | None = None
    netdev: str | None = None


class Nic(Record):
    """One RDMA port, or a network card without RDMA (kind Ethernet, port 0, device its netdev).

    `state` and `phys_state` in ibstat's words; `rate_gbps` is void unless the port is Active. `gid_choice` is the index
    of the RoCE v2 entry with an IPv4 address, which NCCL chooses by itself. `node_type`: ca, rnic, ...
    `counters` are (name, value) of the error counters since boot, `counter_growth` those that grew between two readings
    of one probe, and by how much; None where they were read once.
    """

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
    lid: int | None = None
    driver: str | None = None
    firmware: str | None = None
    hca_type: str | None = None
    board_id: str | None = None
    vendor_id: str | None = None
    transport: str | None = None
    node_type: str | None = None
    node_guid: str | None = None
    sys_image_guid: str | None = None
    port_guid: str | None = None
    pci_address: str | None = None
    pci: PciLink = PciLink()
    numa_node: int | None = None
    active_mtu: int | None = None
    virtual_function: bool | None = None
    bond: bool = False
    gids: tuple[Gid, ...] = ()
    gid_choice: int | None = None
    counters: tuple[tuple[str, int], ...] = ()
    counter_growth: tuple[tuple[str, int], ...] | None = None

    @property
    def hca(self) -> str:
        """`mlx5_0:1`, the port as NCCL_IB_HCA names it."""
        return f"{self.device}:{self.port}"


class BondSlave(Record):
    """One member of a bond and its MII status, `up` in words of /proc/net/bonding."""

    name: str
    mii_status: str | None


class Netdev(Record):
    """One network interface of the kernel. `addresses` are IPv4 with prefix length, `10.9.0.1/24`.

    `pfc_enabled_priorities` is None where PFC could not be read, () where it is off. `bond_slaves` are None where
    the interface is no bond or its members are not known.
    """

    name: str
    up: bool | None
    mtu: int | None
    addresses: tuple[str, ...]
    speed_bytes_per_s: float | None
    ipv6_addresses: tuple[str, ...] = ()
    kind: NetdevKind | None = None
    driver: str | None = None
    firmware: str | None = None
    pci_address: str | None = None
    numa_node: int | None = None
    mac: str | None = None
    operstate: str | None = None
    link_detected: bool | None = None
    max_speed_bytes_per_s: float | None = None
    bond_slaves: tuple[BondSlave, ...] | None = None
    rp_filter: int | None = None
    arp_ignore: int | None = None
    arp_announce: int | None = None
    pfc_enabled_priorities: tuple[int, ...] | None = None
    trust: Literal["pcp", "dscp"] | None = None


class Route(Record):
    """An IPv4 route of the kernel other than the default one: the prefix it leads to, and the netdev it takes."""

    prefix: str
    netdev: str


class Software(Record):
    """What the run would use there. `torch` is None where it cannot be imported.

    `cuda` and `nccl` are those torch was built with or brings along; `ofed` is `ofed_info -s`.
    """

    python: str | None
    torch: str | None
    cuda: str | None = None
    nccl: str | None = None
    ofed: str | None = None


class NcclSetting(Record):
    """A NCCL variable set already. `where`: `environment`, or the conf file that sets it."""

    where: str
    name: str
    value: str


class Conflict(Record):
    """Two sources that disagree. `subject` is `device:port`, a netdev or `GPU0`; the value of `source_a` was kept."""

    subject: str
    fact: str
    source_a: str
    value_a: str
    source_b: str
    value_b: str


class Host(Record):
    """One machine. A host that could not be reached keeps its place, with nothing known and a finding.

    `kernel_modules` is what the outputs show loaded; only when `kernel_modules_complete` does absence mean not loaded.
    `memlock_bytes` and `nofile` are -1 for unlimited. `clock_skew_s` is the host's clock minus the controller's.
    `gpu_count_lspci` is None where lspci was not read. `peermem`: GPUDirect RDMA through nvidia_peermem or nv_peer_mem;
    `open_gpu_driver`: the open kernel module, which has DMA-BUF. `gpu_processes` is None where nobody asked for them.
    `iommu_groups` counts /sys/kernel/iommu_groups. `counter_interval_s`: between the two readings of NIC counters.
    `uverbs` counts /dev/infiniband/uverbs*, `uverbs_openable` those that this user may open. `sources` are the tools
    that gave something. `warnings` are lines of tools that are faults in themselves (infoROM, Xid).
    """

    name: str
    access: Access
    reachable: bool
    hostname: str | None = None
    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    netdevs: tuple[Netdev, ...] = ()
    default_route_netdev: str | None = None
    routes: tuple[Route, ...] = ()
    software: Software = Software(python=None, torch=None)
    python_asked: bool = False
    kernel: str | None = None
    cpu_count: int | None = None
    memory_bytes: int | None = None
    hugepages: int | None = None
    kernel_modules: tuple[str, ...] | None = None
    kernel_modules_complete: bool = False
    peermem: bool | None = None
    open_gpu_driver: bool | None = None
    gpu_driver_version: str | None = None
    gpu_count_lspci: int | None = None
    nvidia_smi_failure: str | None = None
    gpu_processes: tuple[GpuProcess, ...] | None = None
    fabric_manager: str | None = None
    warnings: tuple[str, ...] = ()
    pci: tuple[PciDevice, ...] = ()
    iommu_groups: int | None = None
    kernel_command_line: str | None = None
    virtual_machine: bool | None = None
    memlock_bytes: int | None = None
    nofile: int | None = None
    shm_bytes: int | None = None
    clock_skew_s: float | None = None
    round_trip_s: float | None = None
    counter_interval_s: float | None = None
    user_is_root: bool | None = None
    name_resolves_to: tuple[str, ...] = ()
    uverbs: int | None = None
    uverbs_openable: int | None = None
    nccl_settings: tuple[NcclSetting, ...] = ()
    sources: tuple[str, ...] = ()
    conflicts: tuple[Conflict, ...] = ()


class NetworkPort(Record):
    """Where a host touches a network: the netdev TCP uses, and the HCAs RDMA uses (`mlx5_0:1`)."""

    host: str
    netdev: str | None
    address: str | None
    bandwidth_bytes_per_s: float | None = Field(ge=0)
    hcas: tuple[str, ...] = ()
    rdma_bandwidth_bytes_per_s: float | None = Field(default=None, ge=0)


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
    links: tuple[Link, ...] = ()
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
