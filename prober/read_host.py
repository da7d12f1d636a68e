"""Read a host's record from its raw outputs. The same outputs give the same Host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from holmes_core.records.access import Access
from holmes_core.records.devices import Nic
from holmes_core.records.inventory import Host
from prober.asking.commands import Command
from prober.asking.recording import HostNotes, Recorded
from prober.asking.sysfs_tree import Tree, read_tree
from prober.facts.gpu import gpu_processes, gpu_query, gpu_report, gpu_text, gpus, other_accelerators
from prober.facts.gpu.job_gpus import with_left_out
from prober.facts.gpu.partial_gpu import PartialGpu
from prober.facts.machine import (
    confinement,
    kernel,
    kernel_log,
    limits,
    nccl_plugins,
    nccl_settings,
    pci_tree,
    software,
    tuning,
)
from prober.facts.netdev import ethtool, flow_control, interface_addresses, ip_routes, ip_tool, netdev_sysfs, netdevs
from prober.facts.netdev.partial_netdev import PartialNetdev
from prober.facts.rdma import (
    ibdev2netdev,
    ibstat,
    ibv_devinfo,
    libfabric,
    mlxlink,
    nics,
    nvlink_bridge,
    opainfo,
    rdma_statistic,
    rdma_sysfs,
    rdma_tool,
    verbs_library,
)
from prober.facts.rdma.port_facts import PortFacts
from prober.facts.rdma.possible_ports import possible_ports

F = TypeVar("F")
PciDevices = Mapping[str, pci_tree.PciFacts]
"""Known PCI devices by address."""


def commands(access: Access) -> tuple[Command, ...]:
    """Return all commands of one probe in order."""
    return (
        limits.CLOCK,
        rdma_sysfs.COUNTERS,
        kernel.UNAME,
        limits.USER,
        *(ip_tool.ADDRESSES, ip_tool.ADDRESSES_TEXT, interface_addresses.addresses_command(access)),
        *(ip_routes.ROUTES, ip_routes.ROUTES_TEXT),
        *(ip_routes.ALL_ROUTES, ip_routes.ALL_ROUTES_TEXT, ip_routes.RULES, ip_routes.RULES_TEXT),
        *(netdev_sysfs.LIST, netdev_sysfs.ATTRIBUTES, netdev_sysfs.DRIVERS, netdev_sysfs.CONF, netdev_sysfs.BONDS),
        *(ethtool.SETTINGS, ethtool.DRIVER),
        *(rdma_sysfs.LIST, rdma_sysfs.ATTRIBUTES, rdma_sysfs.GIDS, rdma_sysfs.GID_TYPES, rdma_sysfs.VIRTUAL),
        rdma_sysfs.PKEYS,
        *(rdma_tool.RDMA_LINK, rdma_tool.RDMA_DEV, rdma_statistic.RDMA_STATISTIC),
        *(ibstat.IBSTAT, ibstat.SMINFO, ibv_devinfo.IBV_DEVINFO, ibdev2netdev.IBDEV2NETDEV, ibdev2netdev.SHOW_GIDS),
        *(mlxlink.MLXLINK, nvlink_bridge.VPD),
        *(libfabric.FI_INFO, opainfo.OPAINFO),
        *(flow_control.MLNX_QOS, flow_control.DCB),
        *(pci_tree.SYSFS, pci_tree.PATHS, pci_tree.LSPCI, pci_tree.LSPCI_VVV, pci_tree.LSPCI_DENIED),
        *(gpu_query.QUERY, *gpu_query.OTHER_QUERIES, gpu_text.TABLE),
        *(gpu_text.LIST, gpu_text.NVLINKS, gpu_text.TOPOLOGY, gpu_processes.PROCESSES, gpu_report.REPORT),
        kernel.SERVICES,
        *(other_accelerators.ROCM_SMI, other_accelerators.NPU_SMI),
        *(kernel.LSMOD, kernel.MODULES, kernel.FILES, kernel.MEMORY, kernel.CPUS),
        *(kernel.IOMMU, kernel.IOMMU_TYPES, kernel.VIRTUAL, kernel_log.LOG),
        *(tuning.FILES, tuning.FILTERS, tuning.FIREWALLD),
        *(limits.MEMLOCK, limits.NOFILE, limits.SHM, limits.UVERBS, limits.OWN_NAME),
        *(confinement.SIGNS, confinement.CGROUPS),
        *(nccl_settings.ENVIRONMENT, nccl_settings.CONF_FILES, nccl_plugins.PLUGINS),
        *(software.software_command(access), software.OFED),
        rdma_sysfs.COUNTERS_AGAIN,
        limits.CLOCK,
    )


def read_host(name: str, outputs: Sequence[Recorded], notes: HostNotes) -> Host:
    """Return the Host that `outputs` show. Facts that none shows are None. `notes` holds the controller's own facts."""
    tree = read_tree(outputs)
    about = kernel.read_kernel(outputs, tree)
    pci = _pci(outputs, tree)
    ports, impossible_ports = possible_ports(_port_sources(outputs, tree))
    netdev_reading = netdevs.read_netdevs(_netdev_sources(outputs, tree), notes.speeds_gbps, _netdevs_by_pci(ports))
    nic_reading = _nics(ports, netdev_reading, pci, _rdma_ruled_out(outputs, tree, about), notes.speeds_gbps)
    lspci_gpus = pci_tree.gpus_of(pci.values())
    gpu_reading = gpus.read_gpus(outputs, _from_lspci(lspci_gpus))
    known_nics = _known_nics(nic_reading.nics, outputs, pci, gpu_reading.gpus, notes)
    uverbs, openable = limits.parse_uverbs(outputs)
    return Host(
        name=name,
        access=notes.access,
        reachable=True,
        hints=notes.hints,
        **vars(about),
        **vars(tuning.read_tuning(outputs, tree)),
        gpus=with_left_out(gpus.gpu_records(gpu_reading.gpus, *_nearest_nics(pci, known_nics)), notes.gpus),
        gpus_stated=notes.gpus,
        nics=known_nics,
        netdevs=netdev_reading.netdevs,
        default_route_netdev=ip_routes.parse_default_route(outputs),
        routes=ip_routes.parse_routes(outputs),
        software=software.read_software(outputs),
        python_asked=any(output.asks_python for output in outputs),
        python_failure=software.read_python_failure(outputs),
        gpu_driver_version=gpu_reading.driver_version or kernel.gpu_driver_version(tree),
        other_accelerators=other_accelerators.read_other_accelerators(outputs),
        gpu_count_lspci=_gpu_count(outputs, tree, len(lspci_gpus)) if pci else None,
        nvidia_smi_failure=gpu_reading.failure,
        gpu_processes=gpu_processes.read_gpu_processes(outputs, gpu_reading.gpus),
        warnings=kernel_log.read_warnings(outputs),
        pci=pci_tree.pci_devices(pci),
        memlock_bytes=limits.parse_ulimit(outputs, "-l", 1024),
        nofile=limits.parse_ulimit(outputs, "-n"),
        shm_bytes=limits.parse_shm(outputs),
        clock_skew_s=notes.clock_skew_s,
        round_trip_s=notes.round_trip_s,
        counter_interval_s=_counter_interval_s(outputs, known_nics),
        container=confinement.read_container(outputs, tree),
        slurm_job_id=confinement.read_slurm_job_id(outputs, tree),
        gpu_device_files=confinement.read_gpu_device_files(tree),
        capabilities_effective=confinement.read_capabilities(outputs, tree),
        user_is_root=limits.parse_user_is_root(outputs),
        name_resolves_to=limits.parse_own_name(outputs),
        uverbs=uverbs,
        uverbs_openable=openable,
        nccl_settings=nccl_settings.read_nccl_settings(outputs, tree),
        nccl_net_plugins=nccl_plugins.read_nccl_plugins(outputs),
        ofi_plugins=nccl_plugins.read_ofi_plugins(outputs),
        libfabric=libfabric.read_libfabric(outputs),
        sources=_sources(outputs),
        conflicts=(*nic_reading.conflicts, *netdev_reading.conflicts, *gpu_reading.conflicts),
        impossible=tuple(dict.fromkeys((*impossible_ports, *netdev_reading.impossible, *gpu_reading.impossible))),
    )


def _pci(outputs: Sequence[Recorded], tree: Tree) -> PciDevices:
    """Return the PCI devices by address, from sysfs and all outputs of lspci."""
    from_lspci = [pci_tree.parse_lspci(output) for output in outputs if output.tool == "lspci"]
    return pci_tree.merge_pci([pci_tree.parse_pci_sysfs(tree), *from_lspci])


def _nics(
    ports: Sequence[tuple[str, Sequence[PortFacts]]],
    found: netdevs.NetdevReading,
    pci: PciDevices,
    rdma_ruled_out: bool | None,
    stated_gbps: Mapping[str, float],
) -> nics.NicReading:
    """Return the NICs: RDMA ports, and netdevs that are network cards."""
    by_name = {netdev.name: netdev for netdev in found.netdevs}
    links = {address: device.link for address, device in pci.items() if device.link is not None}
    return nics.read_nics(ports, by_name, links, rdma_ruled_out, found.physical, stated_gbps)


def _known_nics(
    found: Sequence[Nic],
    outputs: Sequence[Recorded],
    pci: PciDevices,
    known_gpus: Iterable[PartialGpu],
    notes: HostNotes,
) -> tuple[Nic, ...]:
    """Return the NICs, marked if the verbs library cannot open them or if they manage NVSwitches."""
    openable = verbs_library.with_unopenable_marked(found, outputs, notes.access.container is not None)
    marked_pci = {address for address, device in pci.items() if device.manages_switches}
    gpu_names = [gpu.name for gpu in known_gpus if gpu.name]
    return nvlink_bridge.with_bridges_marked(openable, gpu_names, nvlink_bridge.marked_devices(outputs), marked_pci)


def _gpu_count(outputs: Sequence[Recorded], tree: Tree, found: int) -> int | None:
    """Return the number of GPUs on the PCI bus; None if none is shown, although a filter of lspci may hide some."""
    is_complete = any(output.tool == "lspci" and not output.filtered for output in outputs)
    return found if found or is_complete or any(pci_tree.parse_pci_sysfs(tree)) else None


def _from_lspci(devices: Iterable[pci_tree.PciFacts]) -> list[PartialGpu]:
    """Return the GPUs that lspci shows, in its order, which is the order of nvidia-smi."""
    return [
        PartialGpu(index=index, name=device.name, pci_address=device.address) for index, device in enumerate(devices)
    ]


def _all(outputs: Iterable[Recorded], tool: str, parse: Callable[[Recorded], Iterable[F]]) -> list[F]:
    """Return the facts that `parse` finds in every output of `tool`, in order."""
    return [found for output in outputs if output.tool == tool for found in parse(output)]


def _port_sources(outputs: Sequence[Recorded], tree: Tree) -> list[tuple[str, Sequence[PortFacts]]]:
    """Return each source's facts on RDMA ports, in order of trust."""
    return [
        ("sysfs", rdma_sysfs.parse_sysfs(tree, rdma_sysfs.counter_growth(outputs))),
        ("rdma", _all(outputs, "rdma", rdma_tool.parse_rdma)),
        ("rdma statistic", _all(outputs, "rdma", rdma_statistic.parse_rdma_statistic)),
        ("ibstat", _all(outputs, "ibstat", ibstat.parse_ibstat)),
        ("ibstatus", _all(outputs, "ibstatus", ibstat.parse_ibstatus)),
        ("sminfo", _all(outputs, "sminfo", ibstat.parse_sminfo)),
        ("ibv_devinfo", _all(outputs, "ibv_devinfo", ibv_devinfo.parse_ibv_devinfo)),
        ("ibdev2netdev", _all(outputs, "ibdev2netdev", ibdev2netdev.parse_ibdev2netdev)),
        ("show_gids", _all(outputs, "show_gids", ibdev2netdev.parse_show_gids)),
        ("mlxlink", _all(outputs, "mlxlink", mlxlink.parse_mlxlink)),
        ("opainfo", _all(outputs, "opainfo", opainfo.parse_opainfo)),
        ("fi_info", _all(outputs, "fi_info", libfabric.parse_fi_info)),
    ]


def _netdev_sources(outputs: Sequence[Recorded], tree: Tree) -> list[tuple[str, Sequence[PartialNetdev]]]:
    """Return each source's facts on netdevs, in order of trust.

    /sys may show another network namespace, so only interfaces that `ip` shows count.
    """
    from_ip = _all(outputs, "ip", ip_tool.parse_ip)
    ours = {netdev.name for netdev in from_ip}
    from_sysfs = [netdev for netdev in netdev_sysfs.parse_netdev_sysfs(tree) if not ours or netdev.name in ours]
    return [
        ("ip", from_ip),
        ("ethtool", _all(outputs, "ethtool", ethtool.parse_ethtool)),
        ("sysfs", from_sysfs),
        ("ifconfig", _all(outputs, "ifconfig", ip_tool.parse_ifconfig)),
        (interface_addresses.TOOL, _all(outputs, interface_addresses.TOOL, ip_tool.parse_ip)),
        ("mlnx_qos", _all(outputs, "mlnx_qos", flow_control.parse_mlnx_qos)),
        ("dcb", _all(outputs, "dcb", flow_control.parse_dcb)),
    ]


def _netdevs_by_pci(ports: Iterable[tuple[str, Iterable[PortFacts]]]) -> dict[str, str]:
    return {port.pci_address: port.netdev for _, facts in ports for port in facts if port.pci_address and port.netdev}


def _rdma_ruled_out(outputs: Iterable[Recorded], tree: Tree, about: kernel.Kernel) -> bool | None:
    """Return True if the host has no RDMA device, because sysfs shows none or the kernel has loaded no RDMA core."""
    asked = [output for output in outputs if output.tool == "rdma" and output.exit_code == 0]
    lists_none = any(output.plain.strip() in ("", "[]", "[ ]") for output in asked)
    if "/sys/class/infiniband" in tree.absent or lists_none:
        return True
    if about.kernel_modules is not None and about.kernel_modules_complete and "ib_core" not in about.kernel_modules:
        return "ib_uverbs" not in about.kernel_modules
    return None


def _counter_interval_s(outputs: Sequence[Recorded], known_nics: Iterable[Nic]) -> float | None:
    """Return the seconds between the two readings of the NIC counters, which the clock readings closely enclose."""
    clock = limits.parse_clock(outputs)
    read_twice = any(nic.counter_growth is not None for nic in known_nics)
    return round(clock[1] - clock[0], 1) if clock and read_twice and clock[1] > clock[0] else None


def _nearest_nics(
    pci: PciDevices, known_nics: Iterable[Nic]
) -> tuple[dict[str, tuple[str | None, tuple[str, ...]]], dict[str, int]]:
    """Return, by each GPU's PCI address, the path to its nearest NICs with their names, and its NUMA node if known."""
    names = {nic.pci_address: nic.device for nic in known_nics if nic.pci_address}
    nearest, numa = {}, {}
    for device in pci_tree.gpus_of(pci.values()):
        path, addresses = pci_tree.nearest_nics(pci, device.address)
        nearest[device.address] = (path, tuple(names.get(address, address) for address in addresses))
        if device.numa_node is not None:
            numa[device.address] = device.numa_node
    return nearest, numa


def _sources(outputs: Iterable[Recorded]) -> tuple[str, ...]:
    answered = [output.tool for output in outputs if output.plain.strip() and not output.tool_missing]
    return tuple(dict.fromkeys(answered))
