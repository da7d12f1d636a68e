"""The path between GPUs and NICs: how near the rails are, whether peers have the same, and GPUDirect."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Sequence

from holmes_core.records.devices import Gpu, Nic
from holmes_core.records.inventory import Host
from prober.facts.machine.pci_paths import bridges_above, path_between
from prober.rails.choose_rails import rails_of
from prober.rules.gpu_rules import has_module
from prober.rules.rule import Evidence, PeerEvidence, PeerRule, Rule, differing


def _far_rails(host: Host) -> Evidence:
    """A near front-end card is of no use: the nearest rail counts."""
    far = [str(gpu.index) for gpu in host.gpus if _is_far(host, gpu)]
    if far:
        yield f"GPU {', '.join(far)}: the nearest rail is across the socket link (SYS)"


def _is_far(host: Host, gpu: Gpu) -> bool:
    rails = rails_of(host)
    if not rails:
        bridges = {nic.device for nic in host.nics if nic.nvlink_management}
        return gpu.nearest_path == "SYS" and bool(set(gpu.nearest_nics) - bridges)
    return {_path(host, gpu, nic) for nic in rails} == {"SYS"}


def _path(host: Host, gpu: Gpu, nic: Nic) -> str | None:
    if nic.device in gpu.nearest_nics:
        return gpu.nearest_path
    tree = {device.address: device for device in host.pci}
    ours, theirs = (bridges_above(tree, address or "") for address in (gpu.pci_address, nic.pci_address))
    return path_between(ours, theirs, (gpu.numa_node, nic.numa_node))


def _no_peermem(host: Host) -> Evidence:
    """EFA has DMA-BUF of its own, and without RDMA there is nothing to register."""
    has_gpu = bool(host.gpus) or has_module(host, "nvidia")
    verbs = [nic for nic in rails_of(host) if nic.kind != "EFA"]
    if has_gpu and verbs and host.peermem is False and not host.open_gpu_driver:
        yield "neither nvidia_peermem nor nv_peer_mem is loaded"


def _peermem_errors(host: Host) -> Evidence:
    for line in host.warnings:
        if "nvidia-peermem" in line and "invalid context" in line:
            yield line


def _rails_crossed(peers: Sequence[Host]) -> PeerEvidence:
    """By the subnet of each GPU's nearest rails; by their names where subnets are not known or are all the same.

    A subnet that one host alone is in, as between a rail and its switch port, says nothing of its peers. Nor does a
    host that lost a GPU or a rail: there the neighbours serve.
    """
    sizes = {host.name: (len(host.gpus), len(rails_of(host))) for host in peers}
    usual = max(sizes.values(), key=list(sizes.values()).count, default=None)
    peers = [host for host in peers if sizes[host.name] == usual]
    subnets = {host.name: [_subnets(host, gpu) for gpu in host.gpus] for host in peers}
    apart = {host: order for host, order in subnets.items() if len(set(order)) > 1 and all(order)}
    hosts_in = Counter(subnet for order in apart.values() for subnet in set(order))
    apart = {host: order for host, order in apart.items() if all(hosts_in[subnet] > 1 for subnet in order)}
    if apart:
        yield from differing({host: " | ".join(order) for host, order in apart.items()}, "subnet of the rail by GPU")
        return
    if any(any(order) for order in subnets.values()):
        return
    orders: dict[str, object] = {}
    for host in peers:
        order = [", ".join(gpu.nearest_nics) for gpu in host.gpus]
        orders[host.name] = " | ".join(order) if any(order) else None
    yield from differing(orders, "nearest NICs by GPU")


def _subnets(host: Host, gpu: Gpu) -> str:
    """The IPv4 subnets of the rails nearest to the GPU, "" if none is known."""
    names = {nic.netdev for nic in rails_of(host) if nic.device in gpu.nearest_nics}
    addresses = [address for netdev in host.netdevs if netdev.name in names for address in netdev.addresses]
    return ", ".join(sorted({str(ipaddress.ip_interface(address).network) for address in addresses}))


HOST_RULES = (
    Rule(
        "GDR-NO-PEERMEM",
        "W",
        "a host with GPUs and rails has neither nvidia-peermem nor the open driver, which has DMA-BUF",
        "RDMA goes through host memory",
        "`modprobe nvidia-peermem`, at each boot; or the open kernel module, by which NCCL uses DMA-BUF",
        "NCCL user guide, GPU troubleshooting (GPU-to-NIC communication)",
        _no_peermem,
    ),
    Rule(
        "GDR-PEERMEM-ERRORS",
        "W",
        "the kernel log has `nvidia-peermem ... invalid context`",
        "GPUDirect RDMA fails or hangs",
        "update the GPU driver, or use DMA-BUF",
        "leptonai/gpud, peermem component",
        _peermem_errors,
    ),
    Rule(
        "TOPO-FAR-NIC",
        "W",
        "the nearest rail of a GPU is across the link between sockets",
        "RDMA crosses the sockets, and NCCL stages it in host memory there",
        "nothing by settings: card and GPU want to be below one socket; NCCL_NET_GDR_LEVEL=SYS tries GPUDirect all the "
        "same; if nearer ports are the rails, name them by `rails:` in hosts.yaml",
        "NCCL user guide, environment variables (NCCL_NET_GDR_LEVEL); NVIDIA/nccl#1591",
        _far_rails,
    ),
)

PEER_RULES = (
    PeerRule(
        "TOPO-RAIL-MISMATCH",
        "W",
        "GPU i is next to a rail of another subnet (or name, where subnets are not known) than on its peers",
        "GPU i reaches another rail on another host: its traffic crosses the spine, or does not arrive",
        "swap the rails' cables or addresses, so that GPU i has the same rail everywhere; the order in NCCL_IB_HCA has "
        "no effect; if other ports are the rails, name them by `rails:` in hosts.yaml",
        "NVIDIA/nccl#1277; NCCL user guide, environment variables (NCCL_IB_HCA, NCCL_CROSS_NIC)",
        "cluster",
        _rails_crossed,
    ),
)
