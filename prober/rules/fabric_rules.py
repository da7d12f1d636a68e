"""Fabrics other than InfiniBand and RoCE, and accelerators of other makers: what they are, and what NCCL does there."""

from __future__ import annotations

import re
from collections.abc import Sequence

from holmes_core.records.devices import Nic
from holmes_core.records.inventory import Host
from prober.efa import efa_plugin, efa_rails
from prober.rules.rule import Evidence, PeerEvidence, PeerRule, Rule, differing

SPEEDS = "`speeds_gbps` in hosts.yaml"


def _efa_names(host: Host) -> list[str]:
    return [nic.device for nic in host.nics if nic.kind == "EFA"]


def _efa_without_plugin(host: Host) -> Evidence:
    names = _efa_names(host)
    if names and host.ofi_plugins == ():
        yield f"EFA adapters {_listed(names)}, and no library of aws-ofi-nccl where installers put it"


def _efa_plugin_not_known(host: Host) -> Evidence:
    names = _efa_names(host)
    if names and host.ofi_plugins is None:
        yield f"EFA adapters {_listed(names)}; whether aws-ofi-nccl is installed is not known"


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


def _omni_path(host: Host) -> Evidence:
    for nic in host.nics:
        if nic.kind == "Omni-Path":
            yield f"{nic.hca} is Omni-Path, though tools call it InfiniBand"


def _iwarp(host: Host) -> Evidence:
    for nic in host.nics:
        if nic.kind == "iWARP" and not nic.device.startswith("siw") and not _is_intel(nic):
            yield f"{nic.hca} speaks iWARP"


def _intel_iwarp(host: Host) -> Evidence:
    for nic in host.nics:
        if nic.kind == "iWARP" and _is_intel(nic):
            yield f"{nic.hca} speaks iWARP, and could speak RoCE"


def _is_intel(nic: Nic) -> bool:
    return nic.vendor_id == "0x8086" or nic.driver == "irdma" or nic.device.startswith(("irdma", "iwp"))


def _erdma(host: Host) -> Evidence:
    for nic in host.nics:
        if nic.device.startswith("erdma") or nic.driver == "erdma":
            yield f"{nic.hca} is Alibaba Cloud's eRDMA"


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
    names = [netdev.name for netdev in host.netdevs if netdev.driver == "gve"]
    if names:
        yield f"{_listed(names)} are gVNIC, Google's virtual NIC"


def _not_supported(host: Host) -> Evidence:
    kinds = dict.fromkeys(host.other_accelerators)
    if kinds:
        yield ", ".join(f"{host.other_accelerators.count(kind)} x {kind}" for kind in kinds)


def _several_cliques(host: Host) -> Evidence:
    cliques = {(gpu.nvlink_cluster, gpu.nvlink_clique) for gpu in host.gpus}
    if len(cliques) > 1 and any(cluster for cluster, _ in cliques):
        yield "; ".join(f"GPU {gpu.index}: {gpu.nvlink_cluster or 'none'} {gpu.nvlink_clique}" for gpu in host.gpus)


def _plugins_differ(peers: Sequence[Host]) -> PeerEvidence:
    versions: dict[str, object] = {}
    for host in peers:
        plugin = efa_plugin(host)
        versions[host.name] = None if plugin is None else plugin.version or "built from its sources"
    yield from differing(versions, "aws-ofi-nccl")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) < 5 else f"{', '.join(names[:3])} and {len(names) - 3} more"


PLUGIN_REMEDY = "install aws-ofi-nccl (AWS's efa_installer.sh brings it to /opt/amazon/ofi-nccl) and probe again"

HOST_RULES = (
    Rule(
        "NIC-EFA-NEEDS-PLUGIN",
        "F",
        "NCCL's own transports cannot use EFA: it would run over TCP, at a fraction of the rate",
        PLUGIN_REMEDY,
        _efa_without_plugin,
    ),
    Rule(
        "NIC-EFA-NEEDS-PLUGIN",
        "W",
        "NCCL uses EFA by that plugin alone; the plan counts on TCP",
        PLUGIN_REMEDY,
        _efa_plugin_not_known,
    ),
    Rule(
        "EFA-NOT-IN-LIBFABRIC",
        "W",
        "the plugin will not find these adapters, and the plan leaves them out",
        "`fi_info -p efa` as this user: /dev/infiniband/uverbs*, locked memory, in a container the devices passed in",
        _efa_not_in_libfabric,
    ),
    Rule(
        "EFA-RATE-NOT-KNOWN",
        "W",
        "they count as 0 in the plan, which takes TCP where none is known",
        f"{SPEEDS} by device, such as {{rdmap16s27: 100}}, from the instance type's data sheet",
        _efa_rate_not_known,
    ),
    Rule(
        "NIC-OMNIPATH",
        "W",
        "NCCL takes it for InfiniBand: its verbs run on the processor, without GPUDirect; the plan counts on TCP",
        "aws-ofi-nccl over libfabric's OPX provider reaches its rate; Holmes does not plan for it yet",
        _omni_path,
    ),
    Rule(
        "NIC-IWARP",
        "W",
        "NCCL lists the port and cannot connect over it",
        "by hand, leave it out of NCCL_IB_HCA, or NCCL_IB_DISABLE=1; Holmes leaves it out and plans for TCP",
        _iwarp,
    ),
    Rule(
        "NIC-IWARP",
        "W",
        "NCCL lists the port and cannot connect over it",
        "`devlink dev param set pci/ADDRESS name enable_roce value true cmode driverinit`, then `devlink dev reload`",
        _intel_iwarp,
    ),
    Rule(
        "NIC-ERDMA",
        "I",
        "NCCL's verbs transport takes it as RoCE, from NCCL 2.19 on",
        "nothing; rates below what the instance type has are the cloud's own limit",
        _erdma,
    ),
    Rule(
        "NIC-SLINGSHOT",
        "W",
        "NCCL itself has only TCP on it, and the plan counts on that",
        "aws-ofi-nccl over libfabric's cxi provider reaches its rate; Holmes does not plan for it yet",
        _slingshot,
    ),
    Rule(
        "NIC-GVNIC",
        "I",
        "NCCL has TCP on it, and the plan counts on that; GPUDirect-TCPX and TCPXO need Google's plugin and its daemon",
        f"{SPEEDS} by interface: the driver reports none",
        _gvnic,
    ),
    Rule(
        "GPU-NOT-SUPPORTED",
        "W",
        "Holmes trains on NVIDIA GPUs: the plan leaves this host out",
        "nothing, or take the host out of hosts.yaml; with `device: cpu` in job.yaml its processors can train",
        _not_supported,
    ),
    Rule(
        "NVLINK-SEVERAL-CLIQUES",
        "W",
        "these GPUs cannot all reach the same peers by NVLink; the plan counts on the NICs",
        "look at the partitions of the NVLink switches, and at `nvidia-smi -q` for GPUs whose fabric is not Completed",
        _several_cliques,
    ),
)

PEER_RULES = (
    PeerRule(
        "EFA-PLUGIN-DIFFERS",
        "W",
        "peers of unlike versions may not understand each other",
        "one version of aws-ofi-nccl and libfabric on all hosts",
        _plugins_differ,
    ),
)
