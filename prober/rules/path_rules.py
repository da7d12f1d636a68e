"""Rules on the path between GPUs and NICs: the distance to rails, their order on peers, and GPUDirect."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Sequence

from holmes_core.records.devices import Gpu, Nic
from holmes_core.records.inventory import Host
from prober.facts.machine.pci_paths import bridges_above, path_between
from prober.rails.choose_rails import rails_of
from prober.rules.gpu_rules import has_module
from prober.rules.rule import Evidence, PeerEvidence, PeerRule, Rule, differing, together


def _is_far(host: Host, gpu: Gpu) -> bool:
    """Return True if the GPU's nearest rail is across the socket link. A nearer front-end card is of no use."""
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
    """Yield hosts without peer memory for verbs. EFA has its own DMA-BUF, and without RDMA nothing is registered."""
    has_gpu = bool(host.gpus) or has_module(host, "nvidia")
    verbs = [nic for nic in rails_of(host) if nic.kind != "EFA"]
    if has_gpu and verbs and host.peermem is False and not host.open_gpu_driver:
        yield "neither nvidia_peermem nor nv_peer_mem is loaded"


def _rails_crossed(peers: Sequence[Host]) -> PeerEvidence:
    """Compare the subnets of each GPU's nearest rails, or the rails' names if subnets are not known or all equal.

    A subnet of a single host, as between a rail and its switch port, says nothing about peers. Nor does a host that
    lost a GPU or a rail, where neighbours take over.
    """
    sizes = {host.name: (len(host.gpus), len(rails_of(host))) for host in peers}
    usual = max(sizes.values(), key=list(sizes.values()).count, default=None)
    peers = [host for host in peers if sizes[host.name] == usual]
    subnets = {host.name: [_subnets(host, gpu) for gpu in host.gpus] for host in peers}
    apart = {host: order for host, order in subnets.items() if len(set(order)) > 1 and all(order)}
    hosts_in = Counter(subnet for order in apart.values() for subnet in set(order))
    apart = {host: order for host, order in apart.items() if all(hosts_in[subnet] > 1 for subnet in order)}
    if apart:
        known = (host for host in peers if host.name in apart)
        yield from differing(known, "subnet of the rail by GPU", lambda host: " | ".join(apart[host.name]))
    elif not any(any(order) for order in subnets.values()):
        yield from differing(peers, "nearest NICs by GPU", _nearest_nics)


def _nearest_nics(host: Host) -> str | None:
    order = [", ".join(gpu.nearest_nics) for gpu in host.gpus]
    return " | ".join(order) if any(order) else None


def _subnets(host: Host, gpu: Gpu) -> str:
    """Return the IPv4 subnets of the rails nearest to the GPU, or "" if none is known."""
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
        lambda host: (line for line in host.warnings if "nvidia-peermem" in line and "invalid context" in line),
    ),
    Rule(
        "TOPO-FAR-NIC",
        "W",
        "the nearest rail of a GPU is across the link between sockets",
        "RDMA crosses the sockets, and NCCL stages it in host memory there",
        "nothing by settings: card and GPU want to be below one socket; NCCL_NET_GDR_LEVEL=SYS tries GPUDirect all the "
        "same; if nearer ports are the rails, name them by `rails:` in hosts.yaml",
        "NCCL user guide, environment variables (NCCL_NET_GDR_LEVEL); NVIDIA/nccl#1591",
        lambda host: together(
            "GPU {}: the nearest rail is across the socket link (SYS)",
            (str(gpu.index) for gpu in host.gpus if _is_far(host, gpu)),
        ),
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
        _rails_crossed,
    ),
)
