"""GPUs, PCI Express and the path between GPU and NIC."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from holmes_core.records.devices import PciLink
from holmes_core.records.inventory import Host
from holmes_core.units import format_memory
from prober.rules.rule import Evidence, PeerEvidence, PeerRule, Rule, differing

BAD_THROTTLES = ("hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown")
NO_FABRIC = ("N/A", "Not Supported")
FATAL_XIDS = (48, 64, 74, 79, 95)  # ECC, row remapping, NVLink, fallen off the bus, contained ECC
LARGE_READS_FROM_GBPS = 200
FEWEST_LANES = 8


def _gpu_none(host: Host) -> Evidence:
    if host.access.transport == "local" or host.gpus or host.other_accelerators:
        return
    if host.nvidia_smi_failure:
        if "No devices were found" in host.nvidia_smi_failure:
            yield "nvidia-smi: No devices were found"
        return
    without_driver = host.kernel_modules_complete and not _has_module(host, "nvidia")
    if without_driver or host.gpu_count_lspci == 0:
        yield "no NVIDIA GPU in lspci, or no driver loaded"


def _gpu_count(host: Host) -> Evidence:
    count = host.gpu_count_lspci
    if count and host.gpus and "nvidia-smi" in host.sources and len(host.gpus) != count:
        yield f"lspci lists {count} GPUs, nvidia-smi {len(host.gpus)}"


def _driver_mismatch(host: Host) -> Evidence:
    if host.nvidia_smi_failure and "mismatch" in host.nvidia_smi_failure:
        yield host.nvidia_smi_failure


def _mig(host: Host) -> Evidence:
    for gpu in host.gpus:
        if gpu.mig:
            yield f"GPU {gpu.index} is in MIG mode"


def _compute_mode(host: Host) -> Evidence:
    for gpu in host.gpus:
        mode = gpu.compute_mode or ""
        if "exclusive" in mode.lower() or "prohibited" in mode.lower() or mode.startswith("E."):
            yield f"GPU {gpu.index}: compute mode {mode}"


def _ecc(host: Host) -> Evidence:
    for gpu in host.gpus:
        if gpu.ecc_uncorrected:
            yield f"GPU {gpu.index}: {gpu.ecc_uncorrected} uncorrected errors since the driver was loaded"


def _row_remap(host: Host) -> Evidence:
    for gpu in host.gpus:
        if gpu.row_remap_pending or gpu.row_remap_failure:
            yield f"GPU {gpu.index}: row remapping {'failed' if gpu.row_remap_failure else 'pending'}"


def _throttle(host: Host) -> Evidence:
    for gpu in host.gpus:
        bad = [reason for reason in gpu.throttle_reasons if reason in BAD_THROTTLES]
        if bad:
            yield f"GPU {gpu.index}: {', '.join(bad)}"


def _persistence_off(host: Host) -> Evidence:
    off = [str(gpu.index) for gpu in host.gpus if gpu.persistence_mode is False]
    if off:
        yield f"GPU {', '.join(off)}"


def _nvlink_inactive(host: Host) -> Evidence:
    for gpu in host.gpus:
        if gpu.nvlinks_up is not None and gpu.nvlinks_total is not None and gpu.nvlinks_up < gpu.nvlinks_total:
            yield f"GPU {gpu.index}: {gpu.nvlinks_up} of {gpu.nvlinks_total} NVLinks up"


def _fabric(host: Host) -> Evidence:
    """`N/A` and `Not Supported`: the GPU is on no NVSwitch."""
    manager = f", fabric manager {host.fabric_manager}" if host.fabric_manager else ""
    for gpu in host.gpus:
        unfinished = gpu.fabric_state not in (None, "Completed", *NO_FABRIC)
        if unfinished or gpu.fabric_status not in (None, "Success", *NO_FABRIC):
            yield f"GPU {gpu.index}: fabric state {gpu.fabric_state}, status {gpu.fabric_status}{manager}"


def _inforom(host: Host) -> Evidence:
    for line in host.warnings:
        if "inforom" in line.lower():
            yield line


def _xids(host: Host) -> Iterable[tuple[int | None, str]]:
    for line in host.warnings:
        if "Xid" in line:
            match = re.search(r"Xid \([^)]*\): (\d+)", line)
            yield int(match.group(1)) if match else None, line


def _fatal_xid(host: Host) -> Evidence:
    yield from (line for number, line in _xids(host) if number in FATAL_XIDS)


def _xid(host: Host) -> Evidence:
    yield from (line for number, line in _xids(host) if number not in FATAL_XIDS)


def _peermem_errors(host: Host) -> Evidence:
    for line in host.warnings:
        if "nvidia-peermem" in line and "invalid context" in line:
            yield line


def _busy(host: Host) -> Evidence:
    for process in host.gpu_processes or ():
        gpu = "a GPU" if process.gpu is None else f"GPU {process.gpu}"
        held = "" if process.memory_bytes is None else f", {format_memory(process.memory_bytes)}"
        yield f"{gpu}: process {process.pid} ({process.name or 'name not known'}){held}"


def _no_peermem(host: Host) -> Evidence:
    has_gpu = bool(host.gpus) or _has_module(host, "nvidia")
    if has_gpu and host.peermem is False and not host.open_gpu_driver:
        yield "neither nvidia_peermem nor nv_peer_mem is loaded"


def _degraded(link: PciLink, speed_counts: bool) -> str | None:
    """What a PCI Express link lacks, None if nothing or not known."""
    if link.width and link.max_width and link.width < link.max_width:
        return f"width x{link.width} of x{link.max_width}"
    if speed_counts and link.speed_gts and link.max_speed_gts and link.speed_gts < link.max_speed_gts:
        return f"{link.speed_gts:g} GT/s of {link.max_speed_gts:g}"
    return None


def _pci_link(host: Host) -> Evidence:
    """GPU speed counts only under load: idle links save power by a lower one. Small on-board NICs carry no job."""
    seen = set()
    for device in host.pci:
        counts = device.what != "bridge" and (device.link.max_width or 0) >= FEWEST_LANES
        lack = _degraded(device.link, speed_counts=device.what == "nic") if counts else None
        if lack:
            seen.add(device.address)
            yield f"{device.what} {device.address}: {lack}"
    for nic in host.nics:
        lack = _degraded(nic.pci, speed_counts=True)
        if lack and nic.pci_address not in seen:
            yield f"{nic.device} ({nic.pci_address or 'address not known'}): {lack}"


def _small_reads(host: Host) -> Evidence:
    fast = {nic.pci_address for nic in host.nics if (nic.rate_gbps or 0) >= LARGE_READS_FROM_GBPS and nic.pci_address}
    for device in host.pci:
        if (
            device.address in fast
            and device.max_read_request_bytes is not None
            and device.max_read_request_bytes <= 512
        ):
            yield f"{device.address}: largest read request {device.max_read_request_bytes} bytes"


def _acs_on_path(host: Host) -> Evidence:
    """Only bridges that a GPU and a NIC share count: there ACS sends their traffic to the root and back."""
    bridges = {device.address: device for device in host.pci if device.what == "bridge"}
    above: dict[str, set[str]] = {"gpu": set(), "nic": set()}
    for device in host.pci:
        parent = device.parent if device.what in above else None
        while parent in bridges:
            above[device.what].add(parent)
            parent = bridges[parent].parent
    for address in sorted(above["gpu"] & above["nic"]):
        below = [d for d in host.pci if d.what == "bridge" and d.parent == address and d.acs_redirects]
        if below:
            yield f"below {address}: ACS redirects at {', '.join(device.address for device in below)}"


def _iommu(host: Host) -> Evidence:
    line = host.kernel_command_line
    if host.iommu_groups and host.virtual_machine is False and line is not None and "iommu=pt" not in line:
        yield f"{host.iommu_groups} IOMMU groups, no `iommu=pt` on the kernel command line"


def _flat_pci(host: Host) -> Evidence:
    addresses = [gpu.pci_address for gpu in host.gpus if gpu.pci_address]
    domains = {address.split(":")[0] for address in addresses}
    if len(addresses) > 1 and len(domains) == len(addresses):
        yield f"every one of {len(addresses)} GPUs is in a PCI domain of its own"


def _far_nic(host: Host) -> Evidence:
    far = [str(gpu.index) for gpu in host.gpus if gpu.nearest_path == "SYS" and gpu.nearest_nics]
    if far:
        yield f"GPU {', '.join(far)}: the nearest NIC is across the socket link (SYS)"


def _has_module(host: Host, name: str) -> bool:
    return name in (host.kernel_modules or ())


def _drivers_differ(peers: Sequence[Host]) -> PeerEvidence:
    versions: dict[str, object] = {host.name: host.gpu_driver_version for host in peers}
    yield from differing(versions, "GPU driver")


def _rails_mismatch(peers: Sequence[Host]) -> PeerEvidence:
    orders: dict[str, object] = {}
    for host in peers:
        order = [", ".join(gpu.nearest_nics) for gpu in host.gpus]
        orders[host.name] = " | ".join(order) if any(order) else None
    yield from differing(orders, "nearest NICs by GPU")


HOST_RULES = (
    Rule("GPU-NONE", "F", "nothing to train on", "load the driver, or use `device: cpu` in job.yaml", _gpu_none),
    Rule("GPU-COUNT", "F", "a GPU has fallen off the bus, or its driver", "look at the kernel log; reboot", _gpu_count),
    Rule(
        "GPU-DRIVER-MISMATCH", "F", "no GPU can be used", "reload the module or reboot; pin packages", _driver_mismatch
    ),
    Rule(
        "GPU-MIG-ENABLED",
        "F",
        "NCCL has no path between instances of one GPU",
        "`nvidia-smi -mig 0`, or leave the GPU out",
        _mig,
    ),
    Rule("GPU-COMPUTE-MODE", "W", "a second process on the GPU fails", "`nvidia-smi -c 0`", _compute_mode),
    Rule("GPU-ECC-UNCORR", "F", "wrong results or a crash", "reset the GPU or drain the host", _ecc),
    Rule("GPU-ROW-REMAP", "F", "memory errors may return", "reset the GPU; if it failed, replace it", _row_remap),
    Rule("GPU-XID", "F", "the GPU needs a reset or is lost", "reset or drain; NVIDIA's Xid catalogue", _fatal_xid),
    Rule("GPU-XID", "W", "the driver reported an error", "look it up in NVIDIA's Xid catalogue", _xid),
    Rule("GPU-THROTTLE", "W", "slow GPU, and all wait for it", "cooling, power", _throttle),
    Rule("GPU-PERSISTENCE-OFF", "I", "slow first use", "`nvidia-smi -pm 1`", _persistence_off),
    Rule(
        "GPU-NVLINK-INACTIVE",
        "F",
        "NCCL goes over PCI Express for some pairs",
        "reset; drain the host",
        _nvlink_inactive,
    ),
    Rule("GPU-FABRIC", "F", "NVSwitch is not set up; CUDA fails", "match and restart nvidia-fabricmanager", _fabric),
    Rule("GPU-INFOROM", "W", "the GPU may fail", "replace it", _inforom),
    Rule("GPU-BUSY", "W", "less memory and a slow rank, and all wait for it", "wait, or choose other GPUs", _busy),
    Rule("GDR-PEERMEM-ERRORS", "W", "GPUDirect RDMA fails or hangs", "update the GPU driver", _peermem_errors),
    Rule(
        "GDR-NO-PEERMEM",
        "W",
        "RDMA goes through host memory",
        "`modprobe nvidia-peermem`, or the open kernel module (DMA-BUF)",
        _no_peermem,
    ),
    Rule("PCI-LINK-DEGRADED", "F", "less bandwidth to the device", "reseat; look at BIOS and riser", _pci_link),
    Rule("PCI-MPS-SMALL", "I", "less RDMA bandwidth", "4096 by setpci, if the vendor says so", _small_reads),
    Rule(
        "PCI-ACS-ON-PATH",
        "W",
        "GPU to NIC traffic goes through the root complex",
        "disable ACS on bare metal (`setpci ECAP_ACS+0x6.w=0000`); in a VM use ATS",
        _acs_on_path,
    ),
    Rule("PCI-IOMMU-ON", "W", "every DMA is translated", "`iommu=pt` on the kernel command line", _iommu),
    Rule("TOPO-FLAT-PCI", "W", "NCCL cannot see which NIC is near", "NCCL_TOPO_FILE of the vendor", _flat_pci),
    Rule("TOPO-FAR-NIC", "W", "RDMA crosses the sockets", "place ranks by rail; NCCL_NET_GDR_LEVEL", _far_nic),
)

PEER_RULES = (
    PeerRule("GPU-DRIVER-DIFFERS", "W", "uneven behaviour", "one driver version", _drivers_differ),
    PeerRule(
        "TOPO-RAIL-MISMATCH",
        "W",
        "GPU i reaches another rail on another host",
        "order NCCL_IB_HCA for each host; rail fields of NCCL 2.30",
        _rails_mismatch,
    ),
)
