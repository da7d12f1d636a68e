"""Rules on fabrics other than InfiniBand and RoCE, and on accelerators of other vendors."""

from __future__ import annotations

import re
from collections.abc import Sequence

from holmes_core.records.inventory import Host
from prober.rails.efa import efa_plugin, efa_rails
from prober.rules.rule import Evidence, PeerRule, Rule, differing

SPEEDS = "`speeds_gbps` in hosts.yaml"


def _efa_not_in_libfabric(host: Host) -> Evidence:
    if efa_plugin(host) is None or host.libfabric is None:
        return
    rails = {nic.device for nic in efa_rails(host)}
    unseen = [nic.device for nic in host.nics if nic.kind == "EFA" and nic.device not in rails]
    if unseen:
        yield f"`fi_info -p efa` does not list {_listed(unseen)}"


def _efa_rate_not_known(host: Host) -> Evidence:
    unknown = [nic.device for nic in efa_rails(host) if not nic.rate_gbps]
    if unknown:
        yield f"no rate of {_listed(unknown)} is known"


def _slingshot(host: Host) -> Evidence:
    names = [
        netdev.name
        for netdev in host.netdevs
        if re.fullmatch(r"hsn\d+", netdev.name) or (netdev.driver or "").startswith("cxi")
    ]
    verbs = {nic.netdev for nic in host.nics if nic.kind == "RoCE"}  # the first Slingshot had ConnectX cards
    if names and not verbs & set(names):
        yield f"{_listed(names)} are Slingshot"


def _gvnic(host: Host) -> Evidence:
    names = [netdev.name for netdev in host.netdevs if netdev.driver in ("gve", "gvnic")]  # older drivers say gvnic
    if names:
        yield f"{_listed(names)} are gVNIC, Google's virtual NIC"


def _not_supported(host: Host) -> Evidence:
    kinds = dict.fromkeys(host.other_accelerators)
    if kinds and not host.gpus and not host.gpu_count_lspci:
        yield ", ".join(f"{host.other_accelerators.count(kind)} x {kind}" for kind in kinds)


def _several_cliques(host: Host) -> Evidence:
    cliques = {(gpu.nvlink_cluster, gpu.nvlink_clique) for gpu in host.gpus}
    if len(cliques) > 1 and any(cluster for cluster, _ in cliques):
        yield "; ".join(f"GPU {gpu.index}: {gpu.nvlink_cluster or 'none'} {gpu.nvlink_clique}" for gpu in host.gpus)


def _plugin_version(host: Host) -> str | None:
    plugin = efa_plugin(host)
    return None if plugin is None else plugin.version or "built from its sources"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) < 5 else f"{', '.join(names[:3])} and {len(names) - 3} more"


HOST_RULES = (
    Rule(
        "EFA-NOT-IN-LIBFABRIC",
        "W",
        "aws-ofi-nccl is installed, and `fi_info -p efa` does not list an EFA adapter",
        "the plugin will not find these adapters, and the plan leaves them out",
        "`fi_info -p efa` as this user: /dev/infiniband/uverbs*, locked memory, in a container the devices passed in",
        "libfabric, fi_efa(7)",
        _efa_not_in_libfabric,
    ),
    Rule(
        "EFA-RATE-NOT-KNOWN",
        "W",
        "NCCL can use an EFA adapter, and no tool says its rate",
        "they count as 0 in the plan, which takes TCP where none is known",
        f"{SPEEDS} by device, such as {{rdmap16s27: 100}}, from the instance type's data sheet",
        "Linux, drivers/infiniband/hw/efa: /sys/class/infiniband/*/ports/1/rate has it",
        _efa_rate_not_known,
    ),
    Rule(
        "NIC-ERDMA",
        "I",
        "a port is Alibaba Cloud's eRDMA",
        "NCCL's verbs transport takes it as RoCE, from NCCL 2.19 on",
        "nothing; its rate is that of the instance type, not of a cable",
        "Alibaba Cloud, PAI user guide: eRDMA, use high-performance networks for distributed training",
        lambda host: (
            f"{nic.hca} is Alibaba Cloud's eRDMA"
            for nic in host.nics
            if nic.device.startswith("erdma") or nic.driver == "erdma"
        ),
    ),
    Rule(
        "NIC-SLINGSHOT",
        "W",
        "an interface is Slingshot's, by its name hsn0 or its driver cxi, without RDMA verbs",
        "NCCL itself has only TCP on it, and the plan counts on that",
        "aws-ofi-nccl over libfabric's cxi provider reaches its rate; Holmes does not plan for it yet",
        "HPE Slingshot host software guide; libfabric, fi_cxi(7); CSCS documentation, NCCL",
        _slingshot,
    ),
    Rule(
        "NIC-GVNIC",
        "I",
        "an interface is Google's virtual NIC",
        "NCCL has TCP on it, and the plan counts on that; GPUDirect-TCPX and TCPXO need Google's plugin and its daemon",
        f"{SPEEDS} by interface: the driver reports none",
        "Google Cloud, GPUDirect-TCPX and TCPXO; GoogleCloudPlatform/compute-virtual-ethernet-linux",
        _gvnic,
    ),
    Rule(
        "GPU-NOT-SUPPORTED",
        "W",
        "a host has accelerators of another maker than NVIDIA, and no GPU of NVIDIA's",
        "Holmes trains on NVIDIA GPUs: the plan leaves this host out",
        "nothing, or take the host out of hosts.yaml; with `device: cpu` in job.yaml its processors can train",
        "docs/planning.md of this project",
        _not_supported,
    ),
    Rule(
        "NVLINK-SEVERAL-CLIQUES",
        "W",
        "the GPUs of a host are in several cliques of an NVLink fabric, or only some of them in one",
        "these GPUs cannot all reach the same peers by NVLink; the plan counts on the NICs",
        "look at the partitions of the NVLink switches, and at `nvidia-smi -q` for GPUs whose fabric is not Completed",
        "NVIDIA/nccl issue 1301; NVML API, nvmlGpuFabricInfo",
        _several_cliques,
    ),
)

PEER_RULES = (
    PeerRule(
        "EFA-PLUGIN-DIFFERS",
        "W",
        "hosts have aws-ofi-nccl in different versions",
        "different versions may be incompatible; hosts with another name for the plugin's network are another cluster",
        "one version of aws-ofi-nccl and libfabric on all hosts",
        "aws/aws-ofi-nccl, RELEASENOTES",
        lambda hosts: differing(hosts, "aws-ofi-nccl", _plugin_version),
        scope="job",
    ),
)
