"""A host's devices: GPUs, PCI Express, NICs and network interfaces, as its tools show them. None: not known."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from holmes_core.records.record import Record

NicKind = Literal["InfiniBand", "RoCE", "Ethernet", "Omni-Path", "EFA", "iWARP", "SoftRoCE", "unknown"]
GidType = Literal["IB", "RoCE v1", "RoCE v2"]
NetdevKind = Literal["physical", "virtual function", "bond", "vlan", "bridge", "ipoib", "loopback", "virtual"]


class PciLink(Record):
    """A PCI Express link: its present speed and width, and the device's maximum."""

    speed_gts: float | None = None  # GT/s a lane
    width: int | None = None  # lanes
    max_speed_gts: float | None = None
    max_width: int | None = None


class PciDevice(Record):
    """A GPU, a NIC, or a bridge above one."""

    address: str  # `0000:19:00.0`, as all PCI addresses here
    what: Literal["gpu", "nic", "bridge"]
    parent: str | None = None  # the bridge above it; also None at the root
    link: PciLink = PciLink()
    numa_node: int | None = None
    acs_redirects: bool | None = None  # its ACS control has ReqRedir+ or CmpltRedir+; not known without root
    max_read_request_bytes: int | None = None
    relaxed_ordering: bool | None = None  # its control register allows it; not known without root


class Gpu(Record):
    """One GPU as nvidia-smi shows it, or lspci if nvidia-smi was not run."""

    index: int = Field(ge=0)
    name: str | None
    uuid: str | None
    memory_bytes: int | None
    pci_address: str | None
    driver_version: str | None = None
    mig: bool | None = None  # the GPU is in MIG mode
    mig_devices: int | None = None
    nvlinks_up: int | None = None
    nvlinks_total: int | None = None  # 0: it has none; None with `nvlinks_up` 0: it has some, all down
    nvlink_peers: int | None = None  # GPUs of the host that NVLink joins to it, by `topo -m`
    compute_mode: str | None = None  # `Default`, `Exclusive_Process`, `Prohibited`
    persistence_mode: bool | None = None
    ecc_uncorrected: int | None = None  # errors since the driver was loaded
    row_remap_pending: bool | None = None
    row_remap_failure: bool | None = None
    throttle_reasons: tuple[str, ...] = ()  # the active ones, without `gpu_idle`
    pci_gen: int | None = None
    pci_gen_max: int | None = None
    pci_width: int | None = None  # lanes
    pci_width_max: int | None = None
    fabric_state: str | None = None  # the state of its NVSwitch fabric, `Completed`
    fabric_status: str | None = None
    fabric_faults: tuple[str, ...] = ()  # lines of its health that report a fault, `Bandwidth: Degraded`
    nvlink_cluster: str | None = None  # ClusterUUID of the NVLink fabric that it shares with other hosts' GPUs
    nvlink_clique: int | None = None  # CliqueId there: GPUs of one clique reach each other
    numa_node: int | None = None
    rail: int | None = None  # the number of the rail nearest to it, as `Nic.rail`
    cpus: str | None = None  # near it, `0-31,64-95`
    nearest_nics: tuple[str, ...] = ()  # RDMA devices at `nearest_path`; NIC0 if topo -m lacks a legend
    nearest_path: str | None = None  # in nvidia-smi's words: PIX, PXB, PHB, NODE, SYS
    left_out: str | None = None  # the reason why the job does not use it


class GpuProcess(Record):
    """A process that computes on a GPU."""

    pid: int
    gpu: int | None  # the GPU's index
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
    """One RDMA port, or a network card without RDMA (kind Ethernet, port 0, device its netdev)."""

    device: str
    port: int
    kind: NicKind
    rate_gbps: float | None  # meaningless unless the port is Active
    state: str | None  # as ibstat names it, like `phys_state`
    phys_state: str | None
    netdev: str | None
    subnet_prefix: str | None  # InfiniBand's, `fe80:0000:0000:0000`
    sm_lid: int | None  # the subnet manager's LID
    usable_by_nccl_ib: bool | None  # NCCL's verbs transport takes it
    why: str  # the reason why it is usable or not
    rail: int | None = Field(default=None, ge=0)  # its number among the host's rails, in order of the GPUs they serve
    rail_why: str = ""  # the reason why it is a rail or not; empty before rails are chosen
    lid: int | None = None
    sm_guid: str | None = None  # the subnet manager's port: unique to a fabric
    driver: str | None = None
    firmware: str | None = None
    hca_type: str | None = None
    board_id: str | None = None
    vendor_id: str | None = None  # `0x15b3`
    transport: str | None = None  # as ibv_devinfo names it
    node_type: str | None = None  # ca, rnic, ...
    node_guid: str | None = None
    sys_image_guid: str | None = None  # the same for all ports and devices of a card
    port_guid: str | None = None
    pci_address: str | None = None
    pci: PciLink = PciLink()
    numa_node: int | None = None
    active_mtu: int | None = None  # bytes, of RDMA packets
    virtual_function: bool | None = None
    bond: bool = False
    nvlink_management: bool = False  # the port joins the host to the NVSwitches of its own board
    gids: tuple[Gid, ...] = ()
    gid_choice: int | None = None  # index of the RoCE v2 entry with an IPv4 address, which is NCCL's default
    pkeys: tuple[int, ...] | None = None
    """P_Keys of InfiniBand by index, as NCCL_IB_PKEY counts; bit 0x8000 is full membership, 0 a void entry."""
    traffic_class: int | None = None  # of all packets, regardless of the program's; 0 for none
    effective_ber: float | None = None  # errors per bit after error correction, by mlxlink
    raw_ber: float | None = None  # errors per bit before error correction
    fec: str | None = None  # the error correction in use, `Standard_RS-FEC - RS(544,514)`
    counters: tuple[tuple[str, int], ...] = ()  # (name, errors since boot)
    counter_growth: tuple[tuple[str, int], ...] | None = None
    """(name, growth) of counters that grew between two readings of one probe; None if read once."""

    @property
    def hca(self) -> str:
        """`mlx5_0:1`, the port as NCCL_IB_HCA names it."""
        return f"{self.device}:{self.port}"


class BondSlave(Record):
    """One member of a bond."""

    name: str
    mii_status: str | None  # `up`, from /proc/net/bonding


class Netdev(Record):
    """One network interface of the kernel."""

    name: str
    up: bool | None
    mtu: int | None  # bytes
    addresses: tuple[str, ...]  # IPv4 with prefix length, `10.9.0.1/24`
    speed_bytes_per_s: float | None
    ipv6_addresses: tuple[str, ...] = ()  # with prefix length
    kind: NetdevKind | None = None
    isolated: bool = False  # its network is inside the machine: other machines have one with the same address
    parent: str | None = None  # the netdev that a VLAN or macvlan is made on
    master: str | None = None  # the bond, bridge or VRF it is part of
    driver: str | None = None
    firmware: str | None = None
    pci_address: str | None = None
    numa_node: int | None = None
    mac: str | None = None
    operstate: str | None = None  # the kernel's `up`, `down` or `unknown`
    link_detected: bool | None = None
    max_speed_bytes_per_s: float | None = None  # the fastest mode that the card supports
    bond_slaves: tuple[BondSlave, ...] | None = None  # also None if it is not a bond
    rp_filter: int | None = None  # these three: the kernel's effective values, `all` included
    arp_ignore: int | None = None
    arp_announce: int | None = None
    pfc_enabled_priorities: tuple[int, ...] | None = None  # () if PFC is off
    ecn_priorities: tuple[int, ...] | None = None  # with DCQCN on at both ends of a flow; () if it is off
    trust: Literal["pcp", "dscp"] | None = None  # the field that gives a packet's priority


class Route(Record):
    """An IPv4 or IPv6 route of the kernel, without the default route of the main table."""

    prefix: str  # the destination, `10.2.0.0/16`
    netdev: str
    table: str | None = None  # the policy table or VRF; None for the main one
