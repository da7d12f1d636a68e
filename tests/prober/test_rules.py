"""Every rule of the audit fires where it should and is quiet where it should not."""

from __future__ import annotations

from typing import Any

import pytest

from holmes_core.records.access import Access
from holmes_core.records.devices import BondSlave, Gid, Gpu, GpuProcess, PciDevice, PciLink
from holmes_core.records.inventory import Conflict, Host, LibfabricDomain, NcclSetting, OfiPlugin, Software
from prober.fabrics.clusters import find_clusters, find_shared_network
from prober.facts.rdma.verbs_library import CANNOT_OPEN
from prober.findings.audit import HOST_RULES, PEER_RULES, audit, joined
from prober.rules.rule import PeerRule, Rule
from tests.builders.host_facts import GOOD, gpu, gpus, host, netdev, nic, nics, roce, roce_host

V1, V2 = Gid(index=0, gid="fe80::1", type="RoCE v1"), Gid(index=3, gid="::ffff:a02:1", type="RoCE v2", ipv4="10.2.0.1")
GEN5, GEN6 = PciLink(speed_gts=32, width=8), PciLink(speed_gts=64, width=16)
V6 = Gid(index=1, gid="fd00::1", type="RoCE v2")
NARROW = PciLink(speed_gts=32, width=8, max_speed_gts=32, max_width=16)
SLOW = PciLink(speed_gts=2.5, width=16, max_speed_gts=32, max_width=16)
FULL = PciLink(speed_gts=32, width=16, max_speed_gts=32, max_width=16)


def host_with_subnets(name: str, *subnets: int, number: int = 1, mask: int = 24) -> Host:
    """A host with RoCE rails, the i-th in the i-th of the subnets 10.2.x."""
    ports = tuple(roce(f"mlx5_{rail}", f"eth{rail}") for rail in range(len(subnets)))
    own = tuple(netdev(f"eth{rail}", f"10.2.{subnet}.{number}/{mask}") for rail, subnet in enumerate(subnets))
    return host(name, nics=ports, netdevs=own)


def ipoib(name: str, subnet: int) -> Host:
    return host(name, nics=(nic(netdev="ib0"),), netdevs=(netdev("ib0", f"10.3.{subnet}.{ord(name)}/24"),))


EFA = nic("efa_0", "EFA", usable_by_nccl_ib=False)
PLUGIN = OfiPlugin(path="/opt/amazon/ofi-nccl/lib/libnccl-net.so", version="1.14.0")


def pci(acs_below: bool) -> tuple[PciDevice, ...]:
    """A GPU and a NIC below two ports of one switch."""
    ports = [PciDevice(address=f"0:{i}", what="bridge", parent="0:0", acs_redirects=acs_below) for i in ("1", "2")]
    below = (PciDevice(address="1:0", what="gpu", parent="0:1"), PciDevice(address="2:0", what="nic", parent="0:2"))
    return (PciDevice(address="0:0", what="bridge"), *ports, *below)


BAD_CABLE = "mlx5_core 0000:9c:00.0: Port module event[error]: module 0, Cable error, Bad or shorted cable/module"

COLLNET = NcclSetting(where="environment", name="NCCL_COLLNET_ENABLE", value="1")

HOST_CASES: dict[str, tuple[Host, Host]] = {
    "HOST-OS-LIB": (
        host(python_asked=True, software=Software(python="3.11.7", torch=None)),
        host(software=Software(python=None, torch=None)),
    ),
    "HOST-MEMLOCK": (nics(nic(), memlock_bytes=65536), nics(nic(), memlock_bytes=-1)),
    "HOST-NOFILE": (host(nofile=1024), host(nofile=-1)),
    "HOST-SHM": (host(shm_bytes=64 * 1024**2), host(shm_bytes=2**34)),
    "HOST-TIME-SKEW": (host(clock_skew_s=-2.0), host(clock_skew_s=0.4)),
    "PROBE-SLOW-SSH": (host(round_trip_s=3.0), host(round_trip_s=0.2)),
    "HOST-NAME-LOOPBACK": (host(name_resolves_to=("127.0.1.1",)), host(name_resolves_to=("10.0.0.1",))),
    "HOST-NCCL-CONF": (
        host(nccl_settings=(NcclSetting(where="/etc/nccl.conf", name="NCCL_NET", value="IB"),)),
        host(nccl_settings=(NcclSetting(where="/etc/nccl.conf", name="NCCL_DEBUG", value="WARN"),)),
    ),
    "HOST-NCCL-VERSION": (
        nics(roce(), software=Software(python="3", torch="2", nccl="2.18.5")),
        nics(nic(), software=Software(python="3", torch="2", nccl="2.18.5")),
    ),
    "NET-INTERFACE-DOWN": (
        host(nics=(nic(netdev="ib0"),), netdevs=(netdev("ib0", "10.3.0.1/24", up=False),)),
        host(nics=(nic(netdev="ib0"),), netdevs=(netdev("ib0", "10.3.0.1/24"), netdev("ib1", up=False))),
    ),
    "NET-DOCKER-CANDIDATE": (host(netdevs=(netdev("docker0", "172.17.0.1/16"),)), host(netdevs=(netdev(),))),
    "NIC-NONE-USABLE": (nics(nic(state="Down")), nics(nic())),
    "NIC-NO-SM": (nics(nic(state="Initializing", phys_state="LinkUp")), nics(nic(state="Down"))),
    "NIC-PORT-DOWN": (nics(nic(), nic("mlx5_1", state="Down")), nics(nic())),
    "NIC-LINK-DOWN": (
        host(netdevs=(netdev(kind="physical", link_detected=False, up=False),)),
        host(netdevs=(netdev(kind="physical", link_detected=True),)),
    ),
    "NIC-MIXED-LINK-LAYER": (nics(nic(), roce("mlx5_1")), nics(nic(), roce("mlx5_1", state="Down"))),
    "NIC-RATE-OUTLIER": (nics(nic(), nic("mlx5_1", rate_gbps=100.0)), nics(nic(), nic("mlx5_1"))),
    "NIC-RATE-BELOW-CLASS": (
        nics(nic(hca_type="MT4129"), nic("mlx5_1", hca_type="MT4129", rate_gbps=200.0)),
        nics(nic(hca_type="MT4129"), nic("mlx5_1", hca_type="MT4125", rate_gbps=200.0)),
    ),
    "NIC-RATE-CONFLICT": (roce_host(own=netdev(speed_bytes_per_s=12.5e9)), roce_host()),
    "NIC-FLAP": (nics(nic(counters=(("link_downed", 7),))), nics(nic(counters=(("link_downed", 3),)))),
    "NIC-ERRORS": (
        nics(nic(counter_growth=(("symbol_error", 2),)), counter_interval_s=10.2),
        nics(nic(counters=(("symbol_error", 9000),), counter_growth=(("port_xmit_discards", 4),))),
    ),
    "NIC-SOFT-RDMA": (nics(nic("rxe0", "SoftRoCE")), nics(nic())),
    "NIC-EFA-NEEDS-PLUGIN": (nics(EFA), nics(nic())),
    "EFA-NOT-IN-LIBFABRIC": (
        nics(EFA, ofi_plugins=(PLUGIN,), libfabric=()),
        nics(EFA, ofi_plugins=(PLUGIN,), libfabric=(LibfabricDomain(provider="efa", device="efa_0"),)),
    ),
    "EFA-RATE-NOT-KNOWN": (
        nics(EFA.model_copy(update={"rate_gbps": None}), ofi_plugins=(PLUGIN,)),
        nics(EFA.model_copy(update={"rate_gbps": None}), ofi_plugins=()),
    ),
    "NIC-ERDMA": (nics(roce("erdma_0")), nics(roce())),
    "NIC-SLINGSHOT": (host(netdevs=(netdev("hsn0"),)), host(netdevs=(netdev("hsn0"),), nics=(roce(netdev="hsn0"),))),
    "NIC-GVNIC": (host(netdevs=(netdev(driver="gve"),)), host(netdevs=(netdev(driver="virtio_net"),))),
    "GPU-NOT-SUPPORTED": (host(other_accelerators=("AMD Instinct MI300X",) * 8), gpus(gpu())),
    "NVLINK-SEVERAL-CLIQUES": (
        gpus(gpu(nvlink_cluster="9c6f", nvlink_clique=1), gpu(1, nvlink_cluster="9c6f", nvlink_clique=2)),
        gpus(gpu(nvlink_clique=0), gpu(1, nvlink_clique=0)),
    ),
    "NIC-OMNIPATH": (nics(nic("hfi1_0", "Omni-Path")), nics(nic())),
    "NIC-IWARP": (nics(nic("irdma0", "iWARP")), nics(nic())),
    "NIC-TWO-FABRICS": (nics(nic(), nic("mlx5_1", sm_lid=9)), nics(nic(), nic("mlx5_1"))),
    "NIC-DUPLICATE-FACE": (
        nics(nic(sys_image_guid="1", pci=GEN5), nic("mlx5_1", sys_image_guid="1", pci=GEN5)),
        nics(nic(sys_image_guid="1", pci=GEN6), nic("mlx5_1", sys_image_guid="1", pci=GEN6)),
    ),
    "NIC-NVLINK-BRIDGE": (nics(nic(nvlink_management=True)), nics(nic())),
    "NIC-VERBS-LIBRARY": (nics(nic(why=f"{CANNOT_OPEN}it finds no device")), nics(nic(state="Down"))),
    "NIC-BOND-ONE-QP": (nics(nic("mlx5_bond_0", bond=True)), nics(nic())),
    "NIC-BOND-DEGRADED": (
        host(netdevs=(netdev("bond0", bond_slaves=(BondSlave(name="e1", mii_status="down"),)),)),
        host(netdevs=(netdev("bond0", bond_slaves=(BondSlave(name="e1", mii_status="up"),)),)),
    ),
    "NIC-NO-NETDEV-IN-NS": (
        nics(nic(kind="RoCE", node_type="ca", usable_by_nccl_ib=False)),
        nics(nic(kind="RoCE")),
    ),
    "NIC-RAILS-NOT-TOLD": (
        nics(nic(), *(nic(f"mlx5_{i}", "unknown", usable_by_nccl_ib=None, why="link layer not known") for i in (1, 2))),
        nics(nic(), nic("mlx5_1", "unknown", usable_by_nccl_ib=None)),
    ),
    "NIC-NO-UVERBS": (nics(nic(), uverbs=4, uverbs_openable=0), nics(nic(), uverbs=4, uverbs_openable=4)),
    "IB-IPOIB-BOOTSTRAP": (host(netdevs=(netdev("ib0"),)), host(netdevs=(netdev("ib0", None),))),
    "ROCE-NO-V2-GID": (roce_host(roce(gids=(V1,))), roce_host(roce(gids=(V1, V2)))),
    "ROCE-GID-NOT-3": (roce_host(roce(gid_choice=7)), roce_host(roce(gid_choice=3))),
    "ROCE-GID-IPV6-ONLY": (roce_host(roce(gids=(V1, V6))), roce_host(roce(gids=(V2, V6)))),
    "ROCE-MTU-SMALL": (roce_host(own=netdev(mtu=1500)), roce_host(roce(active_mtu=4096), netdev(mtu=1500))),
    "ROCE-PFC-OFF": (
        roce_host(own=netdev(pfc_enabled_priorities=(), trust="pcp")),
        roce_host(own=netdev(pfc_enabled_priorities=(), trust="dscp")),
    ),
    "ROCE-RP-FILTER": (
        host(
            nics=(roce(), roce("mlx5_1", "ens2")),
            netdevs=(netdev(rp_filter=1), netdev("ens2", "10.2.0.2/24", rp_filter=1)),
        ),
        host(
            nics=(roce(), roce("mlx5_1", "ens2")),
            netdevs=(netdev(rp_filter=1), netdev("ens2", "10.3.0.2/24", rp_filter=1)),
        ),
    ),
    "GPU-NONE": (
        host(kernel_modules=("mlx5_core",), kernel_modules_complete=True),
        host(kernel_modules=("mlx5_core",), kernel_modules_complete=False),
    ),
    "GPU-COUNT": (
        gpus(gpu(), gpu_count_lspci=8, sources=("nvidia-smi",)),
        gpus(gpu(), gpu_count_lspci=1, sources=("nvidia-smi",)),
    ),
    "GPU-DRIVER-MISMATCH": (
        host(nvidia_smi_failure="Failed to initialize NVML: Driver/library version mismatch"),
        host(nvidia_smi_failure="NVIDIA-SMI has failed because it couldn't communicate with the driver"),
    ),
    "GPU-MIG-ENABLED": (gpus(gpu(mig=True)), gpus(gpu(mig=False))),
    "GPU-COMPUTE-MODE": (gpus(gpu(compute_mode="E. Process")), gpus(gpu(compute_mode="Default"))),
    "GPU-ECC-UNCORR": (gpus(gpu(ecc_uncorrected=1)), gpus(gpu(ecc_uncorrected=0))),
    "GPU-ROW-REMAP": (gpus(gpu(row_remap_pending=True)), gpus(gpu(row_remap_pending=False))),
    "GPU-XID": (host(warnings=("NVRM: Xid (PCI:0000:01:00): 79",)), host(warnings=("other",))),
    "GPU-THROTTLE": (gpus(gpu(throttle_reasons=("hw_slowdown",))), gpus(gpu(throttle_reasons=("sw_power_cap",)))),
    "GPU-PERSISTENCE-OFF": (gpus(gpu(persistence_mode=False)), gpus(gpu(persistence_mode=True))),
    "GPU-NVLINK-INACTIVE": (gpus(gpu(nvlinks_up=4, nvlinks_total=6)), gpus(gpu(nvlinks_up=6, nvlinks_total=6))),
    "GPU-IMEX": (gpus(gpu(name="NVIDIA GB200"), imex="inactive"), gpus(gpu(name="NVIDIA GB200"), imex="active")),
    "GPU-FABRIC": (gpus(gpu(fabric_state="In Progress")), gpus(gpu(fabric_state="Completed", fabric_status="Success"))),
    "GPU-INIT-FAILED": (
        gpus(
            gpu(pci_address="0000:1b:00.0"), warnings=("NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x22:0x38:667)",)
        ),
        gpus(
            gpu(pci_address="0000:3b:00.0"), warnings=("NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x22:0x38:667)",)
        ),
    ),
    "NVSWITCH-SXID": (
        host(warnings=("nvidia-nvswitch3: SXid (PCI:0000:c3:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",)),
        host(warnings=("nvidia-nvswitch3: open (major=510)",)),
    ),
    "NIC-SLOT-POWER": (
        host(warnings=("mlx5_core 0000:5c:00.0: Detected insufficient power on the PCIe slot (27W).",)),
        host(warnings=("mlx5_core 0000:13:00.0: PCIe slot power capability was not advertised.",)),
    ),
    "NIC-MODULE-FAULT": (
        host(warnings=(BAD_CABLE,)),
        host(warnings=(BAD_CABLE, "mlx5_core 0000:9c:00.0: Port module event: module 0, Cable plugged")),
    ),
    "NIC-CARD-HEALTH": (
        host(warnings=("mlx5_core 0000:5e:00.0: device's health compromised - reached miss count",)),
        host(warnings=("mlx5_core 0000:5e:00.0: firmware version: 28.39.1002",)),
    ),
    "PCI-AER": (
        host(warnings=("pcieport 0000:64:01.0: AER: Uncorrected (Fatal) error received: 0000:65:00.0",)),
        host(warnings=("pcieport 0000:64:01.0: AER: Corrected error received: 0000:65:00.0",) * 3),
    ),
    "HOST-CGROUP-LIMIT": (
        gpus(gpu(), gpu(1), memory_limit_bytes=2**34, memory_bytes=2**41),
        gpus(gpu(), gpu(1), memory_limit_bytes=2**34, memory_bytes=2**33, cpu_limit=16.0),
    ),
    "HOST-CPU-GOVERNOR": (
        gpus(gpu(), cpu_governor="powersave", cpu_frequency_driver="acpi-cpufreq"),
        gpus(gpu(), cpu_governor="performance"),
    ),
    "HOST-NUMA-BALANCING": (gpus(gpu(), numa_balancing=True), gpus(gpu(), numa_balancing=False)),
    "NET-CONNTRACK-FULL": (host(conntrack_share=0.95), host(conntrack_share=0.5)),
    "NET-FIREWALL": (host(packet_filter="firewalld is active"), host()),
    "NCCL-ADAPTIVE-ROUTING": (
        nics(nic(), nccl_settings=(NcclSetting(where="environment", name="NCCL_IB_ADAPTIVE_ROUTING", value="0"),)),
        nics(nic(), nccl_settings=(NcclSetting(where="environment", name="NCCL_IB_ADAPTIVE_ROUTING", value="1"),)),
    ),
    "NCCL-SERVICE-LEVEL": (
        roce_host(nccl_settings=(NcclSetting(where="environment", name="NCCL_IB_SL", value="3"),)),
        nics(nic(), nccl_settings=(NcclSetting(where="environment", name="NCCL_IB_SL", value="3"),)),
    ),
    "NCCL-SHARP": (
        host(nccl_settings=(COLLNET,), nccl_net_plugins=()),
        host(nccl_settings=(COLLNET,), nccl_net_plugins=("/opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so",)),
    ),
    "ROCE-TRUST": (
        roce_host(own=netdev(pfc_enabled_priorities=(3,), trust="pcp")),
        roce_host(own=netdev(pfc_enabled_priorities=(3,), trust="dscp")),
    ),
    "ROCE-TRAFFIC-CLASS": (
        roce_host(own=netdev(pfc_enabled_priorities=(3,), trust="dscp"), sources=("env",)),
        roce_host(roce(traffic_class=106), netdev(pfc_enabled_priorities=(3,), trust="dscp"), sources=("env",)),
    ),
    "NIC-BIT-ERRORS": (nics(nic(effective_ber=3e-9)), nics(nic(effective_ber=1.5e-254, raw_ber=1e-7))),
    "PCI-RELAXED-ORDERING": (
        nics(nic(pci_address="1:0"), pci=(PciDevice(address="1:0", what="nic", relaxed_ordering=False),)),
        nics(nic(pci_address="1:0"), pci=(PciDevice(address="2:0", what="nic", relaxed_ordering=False),)),
    ),
    "GPU-INFOROM": (host(warnings=("WARNING: infoROM is corrupted at gpu 0000:3B:00.0",)), host()),
    "GPU-BUSY": (
        gpus(gpu(), gpu_processes=(GpuProcess(pid=7, gpu=0, name="python", memory_bytes=2**30),)),
        gpus(gpu(), gpu_processes=()),
    ),
    "GDR-PEERMEM-ERRORS": (host(warnings=("nvidia-peermem: invalid context",)), host(warnings=("NVRM: Xid",))),
    "GDR-NO-PEERMEM": (
        gpus(gpu(), nics=(nic(),), peermem=False),
        gpus(gpu(), nics=(nic(),), peermem=False, open_gpu_driver=True),
    ),
    "PCI-LINK-DEGRADED": (nics(nic(pci=NARROW)), host(pci=(PciDevice(address="1:0", what="gpu", link=SLOW),))),
    "PCI-MPS-SMALL": (
        nics(nic(pci_address="2:0"), pci=(PciDevice(address="2:0", what="nic", max_read_request_bytes=512),)),
        nics(nic(pci_address="2:0"), pci=(PciDevice(address="2:0", what="nic", max_read_request_bytes=4096),)),
    ),
    "PCI-ACS-ON-PATH": (host(pci=pci(acs_below=True)), host(pci=pci(acs_below=False))),
    "PCI-IOMMU-ON": (
        host(iommu_groups=9, virtual_machine=False, iommu_group_types=("DMA",)),
        host(iommu_groups=9, virtual_machine=False, iommu_group_types=("identity",)),
    ),
    "TOPO-FLAT-PCI": (
        gpus(gpu(pci_address="0001:00:00.0"), gpu(1, pci_address="0002:00:00.0")),
        gpus(gpu(pci_address="0000:01:00.0"), gpu(1, pci_address="0000:02:00.0")),
    ),
    "TOPO-FAR-NIC": (
        gpus(gpu(nearest_path="SYS", nearest_nics=("mlx5_0",))),
        gpus(gpu(nearest_path="PIX", nearest_nics=("mlx5_0",))),
    ),
}


def front_end(name: str, speed_bytes_per_s: float | None) -> Host:
    """A host whose default route goes over another card than its rail."""
    own = netdev("eno1", "10.9.0.1/24", speed_bytes_per_s=speed_bytes_per_s)
    return roce_host(name=name).model_copy(update={"netdevs": (netdev(), own), "default_route_netdev": "eno1"})


PEER_CASES: dict[str, tuple[tuple[Host, Host], tuple[Host, Host]]] = {
    "HOST-OS-LIB": (
        (host(), host("b", software=Software(python="3.11.9", torch="2.12.0"))),
        (host(), host("b", software=Software(python="3.11.9", torch="2.13.0"))),
    ),
    "HOST-NCCL-VERSION": ((host(), host("b", software=GOOD.model_copy(update={"nccl": "2.28"}))), (host(), host("b"))),
    "NIC-FW-MISMATCH": (
        (nics(nic(hca_type="A", firmware="1")), nics(nic(hca_type="A", firmware="2"), name="b")),
        (nics(nic(hca_type="A", firmware="1")), nics(nic(hca_type="B", firmware="2"), name="b")),
    ),
    "NIC-DRIVER-MISMATCH": ((host(kernel="6.1"), host("b", kernel="6.8")), (host(kernel="6.1"), host("b"))),
    "NIC-SET-DIFFERS": ((nics(nic()), nics(nic("mlx5_1"), name="b")), (nics(nic()), nics(nic(), name="b"))),
    "ROCE-GID-DIFFERS-BY-HOST": (
        (roce_host(roce(gid_choice=3)), roce_host(roce(gid_choice=5), name="b")),
        (roce_host(roce(gid_choice=3)), roce_host(roce(), name="b")),
    ),
    "ROCE-MTU-DIFFERS": (
        (roce_host(roce(active_mtu=4096)), roce_host(roce(active_mtu=1024), name="b")),
        (roce_host(roce(active_mtu=4096)), roce_host(roce(active_mtu=4096), name="b")),
    ),
    "ROCE-PFC-DIFFERS": (
        (
            roce_host(own=netdev(pfc_enabled_priorities=(3,))),
            roce_host(own=netdev(pfc_enabled_priorities=()), name="b"),
        ),
        (roce_host(own=netdev(pfc_enabled_priorities=(3,))), roce_host(name="b")),
    ),
    "GPU-DRIVER-DIFFERS": (
        (host(gpu_driver_version="550"), host("b", gpu_driver_version="560")),
        (host(gpu_driver_version="550"), host("b")),
    ),
    "GPU-COUNT-DIFFERS": (
        (gpus(gpu(), gpu(1)), gpus(gpu(), name="b")),
        (gpus(gpu(), gpu(1)), gpus(gpu(), name="b", container="docker")),
    ),
    "GPU-NVLINK-INACTIVE": (
        (gpus(gpu(nvlinks_up=18)), gpus(gpu(nvlinks_up=0), name="b")),
        (gpus(gpu(nvlinks_up=18)), gpus(gpu(), name="b")),
    ),
    "NIC-COUNT-DIFFERS": (
        (nics(nic(), nic("mlx5_1")), nics(nic(), name="b")),
        (nics(nic(), nic("mlx5_1")), nics(nic(), nic("mlx5_2"), name="b")),
    ),
    "NIC-PORT-DOWN": (
        (nics(nic(hca_type="MT4129")), nics(nic(hca_type="MT4129", state="Down"), name="b")),
        (nics(nic(hca_type="MT4129")), nics(nic(hca_type="MT4129"), name="b")),
    ),
    "GPU-FABRIC": (
        (gpus(gpu(), fabric_manager="active"), gpus(gpu(), name="b", fabric_manager="failed")),
        (gpus(gpu(), fabric_manager="inactive"), gpus(gpu(), name="b", fabric_manager="inactive")),
    ),
    "NIC-PKEY": (
        (nics(nic(pkeys=(0x7FFF,))), nics(nic(pkeys=(0x7FFF,)), name="b")),
        (nics(nic(pkeys=(0x7FFF,))), nics(nic(pkeys=(0xFFFF,)), name="b")),
    ),
    "NIC-RATE-BELOW-CLASS": (
        (nics(nic(hca_type="MT4129")), nics(nic(hca_type="MT4129", rate_gbps=200.0), name="b")),
        (nics(nic(hca_type="MT4129")), nics(nic(hca_type="MT4123", rate_gbps=200.0), name="b")),
    ),
    "PCI-LINK-DEGRADED": (
        (gpus(gpu(pci_width=16)), gpus(gpu(pci_width=8), name="b")),
        (gpus(gpu(pci_width=16)), gpus(gpu(), name="b")),
    ),
    "TOPO-RAIL-SWAPPED": (
        (host_with_subnets("a", 1, 2), host_with_subnets("b", 2, 1)),
        (host_with_subnets("a", 1, 2), host_with_subnets("b", 1, 2)),
    ),
    "NIC-FEC-DIFFERS": (
        (nics(nic(fec="No FEC")), nics(nic(fec="Standard_RS-FEC - RS(544,514)"), name="b")),
        (nics(nic(fec="No FEC")), nics(nic(), name="b")),
    ),
    "NET-MASK-DIFFERS": (
        (host_with_subnets("a", 1), host_with_subnets("b", 1, mask=16)),
        (host_with_subnets("a", 1), host_with_subnets("b", 1)),
    ),
    "NET-IPOIB-DIFFERS": ((ipoib("a", 1), ipoib("b", 2)), (ipoib("a", 1), ipoib("b", 1))),
    "NET-ADDRESS-TWICE": (
        (host_with_subnets("a", 1, 2), host_with_subnets("b", 1, 3)),
        (host_with_subnets("a", 1, 2), host_with_subnets("b", 1, 2, number=2)),
    ),
    "EFA-PLUGIN-DIFFERS": (
        (host(ofi_plugins=(PLUGIN,)), host("b", ofi_plugins=(PLUGIN.model_copy(update={"version": "1.9.1"}),))),
        (host(ofi_plugins=(PLUGIN,)), host("b", ofi_plugins=())),
    ),
    "HOST-NCCL-CONF": (
        (host("a"), host("b", nccl_settings=(NcclSetting(where="environment", name="NCCL_ALGO", value="Ring"),))),
        (host("a"), host("b", nccl_settings=(NcclSetting(where="environment", name="NCCL_DEBUG", value="INFO"),))),
    ),
    "HOST-SMALLER": (
        (host("a", cpu_count=192), host("b", cpu_count=96)),
        (host("a", cpu_count=192), host("b", cpu_count=96, slurm_job_id="4711")),
    ),
    "GPU-MODEL-DIFFERS": ((gpus(gpu()), gpus(gpu(name="H200"), name="b")), (gpus(gpu()), gpus(gpu(), name="b"))),
    "NET-FRONT-END-DIFFERS": (
        (front_end("a", 3.125e9), front_end("b", 1.25e8)),
        (front_end("a", 3.125e9), front_end("b", None)),
    ),
    "TOPO-RAIL-MISMATCH": (
        (gpus(gpu(nearest_nics=("mlx5_0",))), gpus(gpu(nearest_nics=("mlx5_1",)), name="b")),
        (gpus(gpu(nearest_nics=("mlx5_0",))), gpus(gpu(), name="b")),
    ),
}


def fired(rule_id: str, *hosts: Host) -> bool:
    rules = [rule for rule in HOST_RULES if rule.id == rule_id]
    return any(list(rule.findings(one)) for rule in rules for one in hosts)


def peers_fired(rule_id: str, hosts: tuple[Host, Host]) -> list[tuple[str, ...]]:
    rules = [rule for rule in PEER_RULES if rule.id == rule_id]
    return [finding.hosts for rule in rules for finding in rule.findings(hosts)]


@pytest.mark.parametrize("rule_id", sorted(HOST_CASES))
def test_host_rule_fires_on_the_fault_and_on_nothing_else(rule_id: str) -> None:
    faulty, healthy = HOST_CASES[rule_id]
    assert fired(rule_id, faulty)
    assert not fired(rule_id, healthy)
    assert not fired(rule_id, host())


@pytest.mark.parametrize("rule_id", sorted(PEER_CASES))
def test_peer_rule_fires_on_the_difference_and_names_the_hosts(rule_id: str) -> None:
    differing, alike = PEER_CASES[rule_id]
    (concerned,) = peers_fired(rule_id, differing)
    assert concerned in (("a", "b"), ("b",))
    assert peers_fired(rule_id, alike) == []


def test_every_rule_has_a_case() -> None:
    assert {rule.id for rule in HOST_RULES} == set(HOST_CASES)
    assert {rule.id for rule in PEER_RULES} == set(PEER_CASES)


def test_every_rule_says_what_it_does_and_what_to_do() -> None:
    rules: tuple[Rule | PeerRule, ...] = (*HOST_RULES, *PEER_RULES)
    assert all(rule.effect and rule.remedy for rule in rules)


def test_growth_says_how_many_seconds_lay_between() -> None:
    flapping = nics(nic(counter_growth=(("link_downed", 1), ("symbol_error", 40))), counter_interval_s=10.2)
    found = {finding.rule: finding.evidence for finding in audit([flapping], (), None)}
    assert found["NIC-FLAP"] == "mlx5_0:1: link_downed grew by 1 in 10.2 s"
    assert found["NIC-ERRORS"] == "mlx5_0:1: symbol_error grew by 40 in 10.2 s"


@pytest.mark.parametrize(("number", "severity"), [(79, "F"), (31, "W")])
def test_an_xid_that_needs_a_reset_refuses_launch_and_others_warn(number: int, severity: str) -> None:
    line = f"NVRM: Xid (PCI:0000:3b:00): {number}, pid=1"
    found = [f.severity for f in audit([host(warnings=(line,))], (), None) if f.rule == "GPU-XID"]
    assert found == [severity]


@pytest.mark.parametrize("container", ["none", "docker", None])
@pytest.mark.parametrize("left", [(), (gpu(),)])
def test_gpu_that_fell_off_the_bus_refuses_launch_wherever_it_is_seen(
    container: str | None, left: tuple[Gpu, ...]
) -> None:
    said = "exit 15: Unable to determine the device handle for GPU0000:03:00.0: Unknown Error"
    seen = host(nvidia_smi_failure=said, gpus=left, gpu_count_lspci=8, sources=("nvidia-smi",), container=container)
    found = [(finding.severity, finding.evidence) for finding in audit([seen], (), None) if finding.rule == "GPU-COUNT"]
    assert found == [("F", f"nvidia-smi: {said}")]


def test_python_that_does_not_run_says_what_its_shell_said() -> None:
    access = Access(activate="source /opt/conda/bin/activate train")
    said = "bash: line 1: /opt/conda/bin/activate: No such file or directory"
    failing = host(python_asked=True, python_failure=said, software=Software(python=None, torch=None), access=access)
    (finding,) = (found for found in audit([failing], (), None) if found.rule == "HOST-OS-LIB")
    assert finding.evidence == f"`python3` after `{access.activate}` does not run: {said}"
    assert "activate" in finding.remedy


@pytest.mark.parametrize(
    ("failure", "facts", "remedy"),
    [
        ("exit 6: No devices were found", {}, "modprobe"),
        ("exit 6: No devices were found", {"kernel_modules": ("nvidia",)}, "dmesg"),
        (
            "No devices were found",
            {"warnings": ("NVRM: GPU memory zone movable auto onlining failed!",)},
            "memhp_default_state=online_movable",
        ),
        ("Failed to initialize NVML: Unknown Error", {"container": "docker"}, "start it anew"),
        ("Failed to initialize NVML: Insufficient Permissions", {}, "/dev/nvidia*"),
        ("exit 9: NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", {}, "dkms"),
        ("exit 12: NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.", {}, "nvidia-container-toolkit"),
    ],
)
def test_nvidia_smi_without_a_gpu_refuses_with_the_remedy_of_its_cause(
    failure: str, facts: dict[str, Any], remedy: str
) -> None:
    (finding,) = (
        found for found in audit([host(nvidia_smi_failure=failure, **facts)], (), None) if found.severity == "F"
    )
    assert (finding.rule, remedy in finding.remedy) == ("GPU-NONE", True)


def test_a_switch_whose_links_are_all_up_again_warns_and_no_longer_refuses() -> None:
    line = "nvidia-nvswitch3: SXid (PCI:0000:c3:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
    for up, severity in ((18, "W"), (17, "F"), (None, "F")):
        cards = [gpu(index, nvlinks_up=up, nvlinks_total=18) for index in range(2)]
        found = audit([gpus(*cards, warnings=(line,))], (), None)
        assert [finding.severity for finding in found if finding.rule == "NVSWITCH-SXID"] == [severity]


@pytest.mark.parametrize(
    ("health", "found"),
    [
        (("Summary: Unhealthy", "Route Unhealthy: True"), ["F"]),
        (("Bandwidth: Degraded",), ["W"]),
        (("Route Recovery in progress: True",), ["W"]),
        (("Route Unhealthy: Insufficient Permissions",), ["W"]),  # not known, and no fault that refuses
        (("Incorrect Configuration: No Partition",), ["F"]),
        ((), []),
    ],
)
def test_health_of_the_fabric_counts_though_its_state_is_completed(health: tuple[str, ...], found: list[str]) -> None:
    sick = gpu(fabric_state="Completed", fabric_status="Success", fabric_faults=health)
    assert [finding.severity for finding in audit([gpus(sick)], (), None) if finding.rule == "GPU-FABRIC"] == found


def nvlinks(name: str, *up: int | None, total: int | None = None, **facts: Any) -> list[str]:
    """The severities of GPU-NVLINK-INACTIVE of one host with GPUs of that name."""
    cards = [gpu(index, name=name, nvlinks_up=links, nvlinks_total=total) for index, links in enumerate(up)]
    return [found.severity for found in audit([gpus(*cards, **facts)], (), None) if found.rule == "GPU-NVLINK-INACTIVE"]


def test_a_board_without_any_nvlink_refuses_and_a_card_or_a_lone_gpu_does_not() -> None:
    assert nvlinks("NVIDIA H100 80GB HBM3", *[0] * 8) == ["F"]
    assert nvlinks("NVIDIA H100 80GB HBM3", *[0] * 8, virtual_machine=True) == ["F"]
    assert nvlinks("NVIDIA H100 80GB HBM3", 0, 0, virtual_machine=True) == []
    assert nvlinks("NVIDIA GH200 480GB", 0) == nvlinks("NVIDIA H100 80GB HBM3", 0) == []
    for name in ("NVIDIA GH200 144G HBM3e", "NVIDIA GH200 96GB HBM3"):
        assert nvlinks(name, 0, total=18) == ["I"]
    assert nvlinks("NVIDIA RTX A6000", 0, 0) == []
    assert nvlinks("NVIDIA H100 80GB HBM3", 18, 18, 0) == ["F"]


def test_a_card_without_a_bridge_among_bridged_ones_does_not_refuse() -> None:
    assert nvlinks("NVIDIA RTX A6000", 4, 4, 0, total=4) == ["I"]
    assert nvlinks("NVIDIA RTX A6000", 4, 4, 0) == []
    assert nvlinks("NVIDIA RTX A6000", 4, 4, 2, total=4) == ["F"]


def test_rail_that_is_down_refuses_launch_and_a_spare_port_informs() -> None:
    down = nic("mlx5_1", state="Down", hca_type="MT4129", phys_state="Disabled")
    rail = nic(hca_type="MT4129")
    spare = nic("mlx5_2", "RoCE", state="Down", hca_type="MT4125")
    found = [(f.rule, f.severity) for f in audit([nics(rail, down, spare)], (), None) if f.rule == "NIC-PORT-DOWN"]
    assert found == [("NIC-PORT-DOWN", "F"), ("NIC-PORT-DOWN", "I")]


def test_conflicting_rates_are_shown_with_their_sources() -> None:
    conflict = Conflict(
        subject="mlx5_0:1", fact="rate_gbps", source_a="sysfs", value_a="400", source_b="ibstat", value_b="200"
    )
    (finding,) = [f for f in audit([nics(nic(), conflicts=(conflict,))], (), None) if f.rule == "NIC-RATE-CONFLICT"]
    assert finding.evidence == "mlx5_0:1: sysfs says 400, ibstat 200 Gbit/s"


def test_container_bridge_over_a_peer_is_a_conflict() -> None:
    bridge = netdev("br-1", "10.9.0.254/16")
    hosts = [
        host("a", netdevs=(netdev("eth0", "10.9.0.1/24"), bridge)),
        host("b", netdevs=(netdev("eth0", "10.9.0.2/24"),)),
    ]
    clusters, _ = find_clusters(hosts, {})
    findings = audit(hosts, clusters, find_shared_network(hosts))
    (conflict,) = [finding for finding in findings if finding.rule == "NET-SUBNET-CONFLICT"]
    assert conflict.evidence == "br-1 (10.9.0.254/16) covers the address of a, b"


def test_equal_findings_of_several_hosts_are_one_row() -> None:
    findings = joined(audit([nics(EFA, name=name) for name in "abc"], (), None))
    assert [finding.hosts for finding in findings if finding.rule == "NIC-EFA-NEEDS-PLUGIN"] == [("a", "b", "c")]


def test_a_gpu_that_topo_shows_without_nvlink_refuses_where_others_are_a_board() -> None:
    def found(*peers: int, name: str | None = "NVIDIA B200") -> list[str]:
        cards = [gpu(index, name=name, nvlink_peers=count) for index, count in enumerate(peers)]
        return [each.severity for each in audit([gpus(*cards)], (), None) if each.rule == "GPU-NVLINK-INACTIVE"]

    assert found(6, 6, 0, 6, 6, 6, 6, 6) == ["F"]
    assert found(6, 6, 0, 6, 6, 6, 6, 6, name=None) == ["W"]
    assert found(1, 1, 0, 0) == found(0, 0) == []
