"""One generated machine of eight GPUs and eight rails, and the outputs that the probe's commands print there.

A test edits the facts of a `Machine`; `recording` writes them as the tools and /sys do. Switches, GPUs and rails stand
as on HGX boards: a switch for each GPU and its rail (H100), or for two of both (A100).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from holmes_core.records.inventory import Finding
from prober.asking.recording import HostNotes, HostRecording, Recorded
from prober.facts.machine import kernel_log

IB, NET, PCI, CONF = "/sys/class/infiniband", "/sys/class/net", "/sys/bus/pci/devices", "/proc/sys/net/ipv4/conf"
ROOT_CAPABILITIES = "000001ffffffffff"
STATES = {"ACTIVE": 4, "DOWN": 1, "INIT": 2}
PHYSICAL = {"LinkUp": 5, "Polling": 2, "Disabled": 3}
COUNTERS = ("link_downed", "link_error_recovery", "symbol_error", "port_rcv_errors")
HW_COUNTERS = ("out_of_sequence", "packet_seq_err", "local_ack_timeout_err")


@dataclass
class Slot:
    """A PCI Express link, as a device or a bridge says it: GT/s and lanes, and the most it can do."""

    speed: float
    width: int = 16
    max_speed: float = 0.0
    max_width: int = 16

    def __post_init__(self) -> None:
        self.max_speed = self.max_speed or self.speed


@dataclass
class Switch:
    """A PCI switch: its root port, its uplink, and the ports below it; ACS redirects at those named."""

    bus: int
    numa: int
    gts: float
    root: Slot = field(init=False)
    uplink: Slot = field(init=False)
    acs: bool = False

    def __post_init__(self) -> None:
        self.root, self.uplink = Slot(self.gts), Slot(self.gts)

    def path(self, place: int) -> tuple[str, ...]:
        """Addresses from the root port to the device below port `place`."""
        port = f"0000:{self.bus + 2:02x}:{place:02x}.0"
        return (
            f"0000:{self.bus:02x}:01.0",
            f"0000:{self.bus + 1:02x}:00.0",
            port,
            f"0000:{self.bus + 3 + place:02x}:00.0",
        )


@dataclass
class Port:
    """A rail: an RDMA port, its card, its netdev (RoCE), and where it stands."""

    number: int
    device: str
    kind: str
    switch: Switch
    place: int
    rate: float
    guid: str
    link: Slot
    slot: Slot
    hca_type: str = "MT4129"
    board: str = "MT_0000000838"
    firmware: str = "28.39.3004"
    state: str = "ACTIVE"
    phys: str = "LinkUp"
    lid: int = 0
    sm_lid: int = 0
    pkeys: tuple[int, ...] = (0xFFFF,)
    address: str | None = None
    mtu: int = 9000
    gid_index: int = 2
    pfc: tuple[int, ...] = (3,)
    trust: str = "dscp"
    counters: dict[str, int] = field(default_factory=dict)
    growth: dict[str, int] = field(default_factory=dict)
    read_request: int = 4096

    @property
    def netdev(self) -> str:
        """Its Ethernet or IPoIB interface."""
        return f"ibp{self.number}s0" if self.kind == "InfiniBand" else f"rail{self.number}"

    @property
    def pci(self) -> str:
        """Its PCI address."""
        return self.switch.path(self.place)[-1]


@dataclass
class Card:
    """A GPU."""

    index: int
    name: str
    switch: Switch
    place: int
    link: Slot
    slot: Slot
    nvlinks: int
    nvlinks_up: int
    mig: str = "Disabled"
    mode: str = "Default"
    persistence: str = "Enabled"
    ecc: int = 0
    pending: str = "No"
    failure: str = "No"
    throttle: tuple[str, ...] = ()
    fabric: tuple[str, str] = ("Completed", "Success")
    on_bus: bool = True
    in_driver: bool = True

    @property
    def pci(self) -> str:
        """Its PCI address."""
        return self.switch.path(self.place)[-1]

    @property
    def uuid(self) -> str:
        """As nvidia-smi prints it."""
        return f"GPU-{self.index:08x}-0000-0000-0000-000000000000"


@dataclass
class Machine:
    """A host: its rails and GPUs, its front end and storage bond, and what the kernel and the software say."""

    name: str
    number: int
    ports: list[Port]
    cards: list[Card]
    switches: list[Switch]
    driver: str = "550.90.07"
    open_driver: bool = False
    nvidia_smi: tuple[str, int] | None = None
    modules: list[str] = field(default_factory=lambda: ["mlx5_core", "mlx5_ib", "ib_core", "ib_uverbs", "nvidia"])
    peermem: bool = True
    fabric_manager: str = "active"
    kernel: str = "5.15.0-113-generic"
    ofed: str | None = "MLNX_OFED_LINUX-24.04-0.7.0.0"
    python: str = "3.11.9"
    torch: str | None = "2.6.0+cu124"
    cuda: str = "12.4"
    nccl: str = "2.21.5"
    uid: int = 0
    capabilities: str = ROOT_CAPABILITIES
    memlock: str = "unlimited"
    nofile: int = 1048576
    shm_kib: int = 1056779264
    cpus: int = 192
    memory_kib: int = 2113430000
    hugepages: int = 0
    iommu: str = "identity"
    environment: dict[str, str] = field(default_factory=dict)
    nccl_conf: dict[str, str] = field(default_factory=dict)
    own_address: str | None = None
    log: list[str] = field(default_factory=list)
    processes: list[str] = field(default_factory=list)
    uverbs: str = "open"
    front_up: bool = True
    front_mbps: int = 25000
    front_mtu: int = 1500
    front_duplex: str = "full"
    bond_down: str | None = None
    bridges: dict[str, str] = field(default_factory=dict)
    sysctl: dict[str, int] = field(default_factory=lambda: {"rp_filter": 2, "arp_ignore": 1, "arp_announce": 2})
    clock_skew_s: float = 0.004
    round_trip_s: float = 0.2
    failure: Finding | None = None

    @property
    def front_address(self) -> str:
        """The address on the shared network."""
        return f"10.0.{self.number // 200}.{self.number % 200 + 10}"


def recording(machine: Machine) -> HostRecording:
    """The answers to the probe's commands on that machine, and what the asking side noted."""
    notes = HostNotes(
        position=machine.number,
        clock_skew_s=machine.clock_skew_s,
        round_trip_s=machine.round_trip_s,
        failure=machine.failure,
    )
    return HostRecording(() if machine.failure else tuple(_outputs(machine)), notes)


def _outputs(m: Machine) -> Iterator[Recorded]:
    yield Recorded("date +%s.%N", "1750000000.100000000\n", 0)
    yield _grep("counters/*", _counters(m, again=False))
    yield from _system(m)
    yield from _networks(m)
    yield from _rdma(m)
    yield from _pci(m)
    yield from _gpus(m)
    yield from _software(m)
    yield _grep("counters/*", _counters(m, again=True))
    yield Recorded("date +%s.%N", "1750000010.600000000\n", 0)


def _grep(what: str, lines: Iterable[str]) -> Recorded:
    text = "".join(f"{line}\n" for line in lines)
    return Recorded(f"grep -Hs . /{what}", text, 0 if text else 1)


def _counters(m: Machine, again: bool) -> Iterator[str]:
    for port in m.ports:
        names = [f"counters/{name}" for name in COUNTERS] + [f"hw_counters/{name}" for name in HW_COUNTERS]
        for name in names:
            short = name.partition("/")[2]
            value = port.counters.get(short, 0) + (port.growth.get(short, 0) if again else 0)
            yield f"{IB}/{port.device}/ports/1/{name}:{value}"


def _system(m: Machine) -> Iterator[Recorded]:
    yield Recorded("uname -a", f"Linux {m.name} {m.kernel} #123-Ubuntu SMP x86_64 x86_64 x86_64 GNU/Linux\n", 0)
    yield Recorded("id -u", f"{m.uid}\n", 0)
    modules = [*m.modules, *(["nvidia_peermem"] if m.peermem else [])]
    rows = "".join(f"{name:<24}  16384  1\n" for name in modules)
    yield Recorded("lsmod", f"Module                  Size  Used by\n{rows}", 0)
    line = "BOOT_IMAGE=/vmlinuz root=/dev/md0 ro" + (" iommu=pt" if m.iommu == "identity" else " intel_iommu=on")
    kind = "NVIDIA UNIX Open Kernel Module" if m.open_driver else "NVIDIA UNIX x86_64 Kernel Module"
    files = [f"/proc/cmdline:{line}", "/sys/class/dmi/id/sys_vendor:Supermicro"]
    if "nvidia" in m.modules:
        files.append(f"/proc/driver/nvidia/version:NVRM version: {kind}  {m.driver}  Fri May 31 09:35:42 UTC 2024")
        files.append(f"/sys/module/nvidia/version:{m.driver}")
    files.append(f"/proc/sys/kernel/random/boot_id:00000000-0000-4000-8000-{m.number:012x}")
    yield _grep("proc/cmdline", files)
    memory = [f"/proc/meminfo:MemTotal:       {m.memory_kib} kB", f"/proc/meminfo:HugePages_Total:       {m.hugepages}"]
    yield _grep("proc/meminfo", [*memory, f"/proc/self/status:CapEff:\t{m.capabilities}"])
    yield Recorded("nproc", f"{m.cpus}\n", 0)
    yield Recorded("ls /sys/kernel/iommu_groups", "".join(f"{number}\n" for number in range(40)), 0)
    yield Recorded("cat /sys/kernel/iommu_groups/*/type | sort -u", f"{m.iommu}\n", 0)
    yield Recorded("grep -Hsm1 -ow hypervisor /proc/cpuinfo", "", 1)
    yield Recorded(kernel_log.LOG.shell, _lines(m.log), 0 if m.log else 1)
    yield Recorded("ulimit -l", f"{m.memlock}\n", 0)
    yield Recorded("ulimit -n", f"{m.nofile}\n", 0)
    shm = f"tmpfs {m.shm_kib} 0 {m.shm_kib} 0% /dev/shm\n"
    yield Recorded("df -kP /dev/shm", f"Filesystem 1024-blocks Used Available Capacity Mounted on\n{shm}", 0)
    uverbs = [f"/dev/infiniband/uverbs{port.number} {m.uverbs}" for port in m.ports]
    yield Recorded("test -r /dev/infiniband/uverbs* -a -w /dev/infiniband/uverbs*", _lines(uverbs), 0)
    own = m.own_address or m.front_address
    yield Recorded("getent ahosts $(uname -n)", f"{own:<15} STREAM {m.name}\n{own:<15} DGRAM\n", 0)
    absent = [f"ls: cannot access '{path}': No such file or directory" for path in _NO_CONTAINER]
    nodes = [f"/dev/nvidia{card.index}" for card in m.cards if card.on_bus]
    yield Recorded(f"ls -d {' '.join(_NO_CONTAINER)} /dev/nvidia[0-9]*", _lines([*absent, *nodes]), 2)


_NO_CONTAINER = ("/var/run/secrets/kubernetes.io", "/.dockerenv", "/run/.containerenv", "/.singularity.d")


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _networks(m: Machine) -> Iterator[Recorded]:
    yield Recorded("ip -j addr show", json.dumps(_addresses(m)), 0)
    routes: list[dict[str, Any]] = [
        {"dst": "default", "gateway": "10.0.0.1", "dev": "eno1", "flags": []},
        {"dst": "10.0.0.0/16", "dev": "eno1", "scope": "link", "prefsrc": m.front_address, "flags": []},
    ]
    yield Recorded("ip -j route show", json.dumps(routes), 0)
    roce = [port for port in m.ports if port.kind == "Ethernet"]
    bond = ("stor0", "stor1")
    paths = {"eno1": "pci0000:00/0000:00:1c.0/0000:01:00.0", "stor0": "pci0000:00/0000:00:1d.0/0000:02:00.0"}
    paths |= {"stor1": "pci0000:00/0000:00:1d.0/0000:02:00.1"}
    paths |= {port.netdev: _device_path(port) for port in m.ports}
    links = [f"lrwxrwxrwx 1 root root 0 Jun 15 10:00 {n} -> ../../devices/{path}/net/{n}" for n, path in paths.items()]
    links.append("lrwxrwxrwx 1 root root 0 Jun 15 10:00 bond0 -> ../../devices/virtual/net/bond0")
    yield Recorded(f"ls -l {NET}", _lines(["total 0", *links]), 0)
    values = [f"{NET}/{name}/type:1" for name in ("eno1", *bond, "bond0")]
    values += [f"{NET}/{port.netdev}/type:{32 if port.kind == 'InfiniBand' else 1}" for port in m.ports]
    values += [f"{NET}/eno1/speed:{m.front_mbps if m.front_up else -1}", f"{NET}/bond0/bonding/slaves:stor0 stor1"]
    values += [f"{NET}/{name}/speed:100000" for name in bond if name != m.bond_down]
    values += [f"{NET}/{port.netdev}/speed:{port.rate * 1000:g}" for port in roce if port.state == "ACTIVE"]
    yield _grep("sys/class/net/*", values)
    settings = m.sysctl.items()
    yield _grep("conf", [f"{CONF}/{port.netdev}/{name}:{value}" for port in roce for name, value in settings])
    slaves: list[str] = []
    for name in bond:
        state = "down" if name == m.bond_down else "up"
        slaves += [f"Slave Interface: {name}", f"MII Status: {state}", "Speed: 100000 Mbps"]
    about = ["Bonding Mode: IEEE 802.3ad Dynamic link aggregation", "MII Status: up", *slaves]
    yield _grep("proc/net/bonding", [f"/proc/net/bonding/bond0:{line}" for line in about])
    for port in roce:
        bits = "   ".join("1" if priority in port.pfc else "0" for priority in range(8))
        text = f"Priority trust state: {port.trust}\nPFC configuration:\n\tpriority    0   1   2   3   4   5   6   7\n"
        yield Recorded(f"mlnx_qos -i '{port.netdev}'", f"{text}\tenabled     {bits}   \n", 0)


def _addresses(m: Machine) -> list[dict[str, Any]]:
    front = _netdev("eno1", m.front_mtu, m.front_up, f"{m.front_address}/16")
    found = [_netdev("lo", 65536, True, "127.0.0.1/8"), front]
    found += [_netdev(name, 9000, name != m.bond_down, None, master="bond0") for name in ("stor0", "stor1")]
    bond = _netdev("bond0", 9000, True, f"10.8.{m.number // 200}.{m.number % 200 + 10}/16")
    found += [{**bond, "linkinfo": {"info_kind": "bond"}}]
    found += [_netdev(name, 1500, True, address) for name, address in m.bridges.items()]
    return found + [_netdev(port.netdev, port.mtu, port.state == "ACTIVE", port.address) for port in m.ports]


def _netdev(name: str, mtu: int, up: bool, address: str | None, **facts: Any) -> dict[str, Any]:
    flags = ["BROADCAST", "MULTICAST", "UP", "LOWER_UP"] if up else ["NO-CARRIER", "BROADCAST", "MULTICAST", "UP"]
    local, _, length = (address or "").partition("/")
    info = [{"family": "inet", "local": local, "prefixlen": int(length), "scope": "global"}] if address else []
    about = {"ifname": name, "flags": flags, "mtu": mtu, "operstate": "UP" if up else "DOWN", "addr_info": info}
    return {**about, "link_type": "loopback" if name == "lo" else "ether", **facts}


def _device_path(port: Port) -> str:
    return f"pci0000:{port.switch.bus:02x}/{'/'.join(port.switch.path(port.place))}"


def _rdma(m: Machine) -> Iterator[Recorded]:
    if not m.ports:
        yield Recorded(f"ls -l {IB}", f"ls: cannot access '{IB}': No such file or directory\n", 2)
        return
    links = [
        f"lrwxrwxrwx 1 root root 0 Jun 15 10:00 {p.device} -> ../../devices/{_device_path(p)}/infiniband/{p.device}"
        for p in m.ports
    ]
    yield Recorded(f"ls -l {IB}", _lines(["total 0", *links]), 0)
    yield _grep("sys/class/infiniband/*/board_id", (line for port in m.ports for line in _port_files(port)))
    yield _grep("sys/class/infiniband/*/ports/*/gids", (line for port in m.ports for line in _gids(port)))
    drivers = [f"lrwxrwxrwx 1 root root 0 Jun 15 {IB}/{p.device}/device/driver -> ../../mlx5_core" for p in m.ports]
    absent = [f"ls: cannot access '{IB}/*/device/physfn': No such file or directory"]
    yield Recorded(f"ls -ld {IB}/*/device/physfn {IB}/*/device/driver", _lines([*absent, *drivers]), 2)
    if all(port.kind == "InfiniBand" for port in m.ports):
        keys = [(port, index, key) for port in m.ports for index, key in enumerate(port.pkeys)]
        yield _grep("pkeys", [f"{IB}/{port.device}/ports/1/pkeys/{index}:{key:#06x}" for port, index, key in keys])
    yield Recorded("ibv_devinfo -v", "".join(map(_devinfo, m.ports)), 0)


def _port_files(port: Port) -> Iterator[str]:
    device, at = f"{IB}/{port.device}", f"{IB}/{port.device}/ports/1"
    layer = "InfiniBand" if port.kind == "InfiniBand" else "Ethernet"
    yield f"{device}/board_id:{port.board}"
    yield f"{device}/fw_ver:{port.firmware}"
    yield f"{device}/hca_type:{port.hca_type}"
    yield f"{device}/node_guid:{port.guid}"
    yield f"{device}/node_type:1: CA"
    yield f"{device}/sys_image_guid:{port.guid}"
    yield f"{device}/device/vendor:0x15b3"
    yield f"{device}/device/numa_node:{port.switch.numa}"
    yield from _link_files(f"{device}/device", port.link)
    yield f"{at}/link_layer:{layer}"
    yield f"{at}/state:{STATES[port.state]}: {port.state}"
    yield f"{at}/phys_state:{PHYSICAL[port.phys]}: {port.phys}"
    yield f"{at}/rate:{port.rate:g} Gb/sec (4X NDR)"
    yield f"{at}/lid:{port.lid:#x}"
    yield f"{at}/sm_lid:{port.sm_lid:#x}"


def _link_files(at: str, link: Slot) -> Iterator[str]:
    yield f"{at}/current_link_speed:{link.speed:.1f} GT/s PCIe"
    yield f"{at}/current_link_width:{link.width}"
    yield f"{at}/max_link_speed:{link.max_speed:.1f} GT/s PCIe"
    yield f"{at}/max_link_width:{link.max_width}"


def _gids(port: Port) -> Iterator[str]:
    at, local = f"{IB}/{port.device}/ports/1", f"fe80:0000:0000:0000:{port.guid}"
    if port.kind == "InfiniBand":
        yield f"{at}/gids/0:{local}"
        return
    entries = [(0, local, "IB/RoCE v1"), (1, local, "RoCE v2")]
    if port.address:
        mapped = "0000:0000:0000:0000:0000:ffff:{:02x}{:02x}:{:02x}{:02x}".format(
            *map(int, port.address.partition("/")[0].split("."))
        )
        entries += [(port.gid_index, mapped, "IB/RoCE v1"), (port.gid_index + 1, mapped, "RoCE v2")]
    for index, value, kind in entries:
        yield f"{at}/gids/{index}:{value}"
        yield f"{at}/gid_attrs/types/{index}:{kind}"
        yield f"{at}/gid_attrs/ndevs/{index}:{port.netdev}"


def _devinfo(port: Port) -> str:
    """The lines that are read; the RDMA MTU is the largest power of two below the netdev's."""
    mtu = 4096 if port.kind == "InfiniBand" else next(size for size in (4096, 2048, 1024, 512, 256) if port.mtu > size)
    code = {4096: 5, 2048: 4, 1024: 3, 512: 2, 256: 1}[mtu]
    layer = "InfiniBand" if port.kind == "InfiniBand" else "Ethernet"
    return (
        f"hca_id:\t{port.device}\n\ttransport:\t\t\tInfiniBand (0)\n\tfw_ver:\t\t\t\t{port.firmware}\n"
        f"\tboard_id:\t\t\t{port.board}\n\tphys_port_cnt:\t\t\t1\n\t\tport:\t1\n"
        f"\t\t\tstate:\t\t\tPORT_{port.state} ({STATES[port.state]})\n\t\t\tmax_mtu:\t\t4096 (5)\n"
        f"\t\t\tactive_mtu:\t\t{mtu} ({code})\n\t\t\tsm_lid:\t\t\t{port.sm_lid}\n\t\t\tport_lid:\t\t{port.lid}\n"
        f"\t\t\tlink_layer:\t\t{layer}\n\n"
    )


@dataclass(frozen=True)
class _Device:
    """A PCI device as /sys and lspci show it."""

    path: tuple[str, ...]
    code: str
    vendor: str
    kind: str
    link: Slot
    numa: int
    acs: bool | None = None
    read_request: int | None = None


def _devices(m: Machine) -> Iterator[_Device]:
    for switch in m.switches:
        path = switch.path(0)
        yield _Device(path[:1], "0x060400", "0x8086", "PCI bridge: Intel", switch.root, switch.numa)
        yield _Device(path[:2], "0x060400", "0x1000", "PCI bridge: Broadcom", switch.uplink, switch.numa)
    for card in m.cards:
        path, numa = card.switch.path(card.place), card.switch.numa
        yield _Device(path[:3], "0x060400", "0x1000", "PCI bridge: Broadcom", card.slot, numa, card.switch.acs)
        if card.on_bus:
            yield _Device(path, "0x030200", "0x10de", "3D controller: NVIDIA Corporation", card.link, numa)
    for port in m.ports:
        path, numa = port.switch.path(port.place), port.switch.numa
        yield _Device(path[:3], "0x060400", "0x1000", "PCI bridge: Broadcom", port.slot, numa, port.switch.acs)
        code = "0x020700" if port.kind == "InfiniBand" else "0x020000"
        kind = "Infiniband controller: Mellanox" if port.kind == "InfiniBand" else "Ethernet controller: Mellanox"
        yield _Device(path, code, "0x15b3", kind, port.link, numa, read_request=port.read_request)


def _pci(m: Machine) -> Iterator[Recorded]:
    devices = list(_devices(m))
    values: list[str] = []
    for device in devices:
        at = f"{PCI}/{device.path[-1]}"
        values += [f"{at}/class:{device.code}", f"{at}/vendor:{device.vendor}", f"{at}/numa_node:{device.numa}"]
        values += _link_files(at, device.link)
    yield _grep("sys/bus/pci/devices", values)
    links = [f"{PCI}/{d.path[-1]} -> ../../../devices/pci{d.path[0][:7]}/{'/'.join(d.path)}" for d in devices]
    yield Recorded(f"ls -ld {PCI}/*", _lines(f"lrwxrwxrwx 1 root root 0 Jun 15 10:00 {link}" for link in links), 0)
    if m.uid == 0:
        yield Recorded("lspci -Dvvv", "\n".join(map(_lspci, devices)), 0)
    else:
        yield Recorded("lspci -Dvvv | grep -m1 '<access denied>'", "\tCapabilities: <access denied>\n", 0)


def _lspci(device: _Device) -> str:
    text = f"{device.path[-1]} {device.kind} Device\n\tNUMA node: {device.numa}\n"
    if device.acs is not None:
        sign = "+" if device.acs else "-"
        text += f"\t\tACSCtl:\tSrcValid{sign} TransBlk- ReqRedir{sign} CmpltRedir{sign} UpstreamFwd- EgressCtrl-\n"
    if device.read_request is not None:
        text += f"\t\t\tMaxPayload 256 bytes, MaxReadReq {device.read_request} bytes\n"
    return text


QUERY = (
    "index,name,uuid,memory.total,pci.bus_id,driver_version,persistence_mode,compute_mode,"
    "pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max,"
    "ecc.errors.uncorrected.volatile.total,mig.mode.current,remapped_rows.pending,remapped_rows.failure"
)
REASONS = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown", "sw_power_cap")


def _gpus(m: Machine) -> Iterator[Recorded]:
    fields = f"{QUERY},{','.join(f'clocks_event_reasons.{reason}' for reason in REASONS)}"
    query = f"nvidia-smi --query-gpu={fields} --format=csv"
    if m.nvidia_smi is not None:
        yield Recorded(query, *m.nvidia_smi)
        return
    cards = [card for card in m.cards if card.in_driver and card.on_bus]
    cards = [replace(card, index=index) for index, card in enumerate(cards)]
    rows = [", ".join(_row(m, card)) for card in cards]
    yield Recorded(query, _lines([", ".join(fields.split(",")), *rows]), 0)
    yield Recorded("nvidia-smi -L", _lines(f"GPU {c.index}: {c.name} (UUID: {c.uuid})" for c in cards), 0)
    links = []
    for card in cards:
        links.append(f"GPU {card.index}: {card.name} (UUID: {card.uuid})")
        up = ["26.562 GB/s"] * card.nvlinks_up + ["<inactive>"] * (card.nvlinks - card.nvlinks_up)
        links += [f"\t Link {number}: {word}" for number, word in enumerate(up)]
    yield Recorded("nvidia-smi nvlink -s", _lines(links), 0)
    report = []
    for card in cards:
        state, status = card.fabric
        report += [f"GPU {card.pci.replace('0000:', '00000000:', 1).upper()}", f"    Product Name : {card.name}"]
        report += ["    Fabric", f"        State : {state}", f"        Status : {status}"]
    yield Recorded("nvidia-smi -q | grep -A5 -e '^GPU ' -e '^    Fabric$'", _lines(report), 0)
    apps = "nvidia-smi --query-compute-apps=gpu_uuid,pid,used_memory,process_name --format=csv"
    heading = "gpu_uuid, pid, used_gpu_memory [MiB], process_name"
    yield Recorded(apps, _lines([heading, *m.processes]), 0)
    yield Recorded("systemctl is-active nvidia-fabricmanager nvidia-imex", f"{m.fabric_manager}\ninactive\n", 3)


def _row(m: Machine, card: Card) -> Iterator[str]:
    yield from (str(card.index), card.name, card.uuid, "81559 MiB", card.pci.replace("0000:", "00000000:", 1).upper())
    yield from (m.driver, card.persistence, card.mode)
    yield from ("5", "5", str(card.link.width), str(card.link.max_width), str(card.ecc), card.mig)
    yield from (card.pending, card.failure)
    yield from ("Active" if reason in card.throttle else "Not Active" for reason in REASONS)


def _software(m: Machine) -> Iterator[Recorded]:
    lines = [f"python {m.python}"]
    lines += [f"torch {m.torch}", f"cuda {m.cuda}", f"nccl {m.nccl}"] if m.torch else []
    yield Recorded("python3 -c 'import sys, re'", _lines(lines), 0)
    if m.ofed:
        yield Recorded("ofed_info -s", f"{m.ofed}:\n", 0)
    settings = [f"{name}={value}" for name, value in m.environment.items()]
    yield Recorded("env | grep -E '^(NCCL_[A-Z0-9_]*)='", _lines(settings), 0 if settings else 1)
    conf = [f"/etc/nccl.conf:{name}={value}" for name, value in m.nccl_conf.items()]
    yield _grep("etc/nccl.conf", conf)
