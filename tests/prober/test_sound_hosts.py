"""No sound host is refused: of each fault that once was seen on sound machines, the sound one and the broken one."""

from __future__ import annotations

from typing import Any

import pytest

from holmes_core.records.access import Access, Container
from holmes_core.records.devices import Gid, PciDevice, PciLink
from holmes_core.records.inventory import Host
from tests.builders.host_facts import audited, gpu, gpus, host, netdev, nic, nics, roce, roce_host, severities

IPC_LOCK = 1 << 14
DISTRIBUTION_MEMLOCK = 8 * 1024**2
GEN4, GEN5 = PciLink(speed_gts=16, width=16, max_speed_gts=16, max_width=16), PciLink(max_speed_gts=32, max_width=16)
EFA = nic("efa_0", "EFA", usable_by_nccl_ib=False)


def eight_in_lspci(found: int, **facts: Any) -> Host:
    """A machine with eight GPUs in /sys, of which nvidia-smi shows some."""
    cards = [gpu(index) for index in range(found)]
    return gpus(*cards, gpu_count_lspci=8, sources=("nvidia-smi",), **facts)


def test_a_pod_with_one_of_eight_gpus_is_not_refused() -> None:
    assert severities("GPU-COUNT", eight_in_lspci(1, container="kubernetes", gpu_device_files=1)) == ["I"]


def test_a_slurm_job_with_one_of_eight_gpus_is_not_refused() -> None:
    job = eight_in_lspci(1, container="none", slurm_job_id="4711", gpu_device_files=8)
    assert severities("GPU-COUNT", job) == ["I"]


def test_a_gpu_that_is_kept_from_the_driver_is_told_and_does_not_refuse() -> None:
    assert severities("GPU-COUNT", eight_in_lspci(7, container="none", gpu_device_files=7)) == ["W"]


def test_a_gpu_whose_device_file_is_left_over_refuses() -> None:
    assert severities("GPU-COUNT", eight_in_lspci(7, container="none", gpu_device_files=8)) == ["F"]


def gen5_card(slot: PciLink, link: PciLink) -> Host:
    """A rail whose card hangs below a port of the given capability."""
    port = PciDevice(address="0000:00:01.0", what="bridge", link=slot)
    card = PciDevice(address="0000:01:00.0", what="nic", parent=port.address, link=link)
    return nics(nic(pci_address=card.address, pci=link), pci=(port, card))


def gen4_link(**facts: Any) -> PciLink:
    return PciLink.model_validate({"speed_gts": 16, "width": 16, "max_speed_gts": 32, "max_width": 16, **facts})


def test_a_gen5_card_in_a_gen4_slot_runs_as_fast_as_it_can() -> None:
    assert severities("PCI-LINK-DEGRADED", gen5_card(slot=GEN4, link=gen4_link())) == []


def test_a_rail_below_what_its_slot_can_do_refuses() -> None:
    assert severities("PCI-LINK-DEGRADED", gen5_card(slot=GEN5, link=gen4_link())) == ["F"]
    assert severities("PCI-LINK-DEGRADED", gen5_card(slot=GEN4, link=gen4_link(width=8))) == ["F"]


def test_a_front_end_card_below_its_slot_warns() -> None:
    port = PciDevice(address="0000:00:01.0", what="bridge", link=GEN5)
    card = PciDevice(address="0000:01:00.0", what="nic", parent=port.address, link=gen4_link())
    assert severities("PCI-LINK-DEGRADED", nics(nic(pci_address="0000:02:00.0"), pci=(port, card))) == ["W"]


def test_a_card_whose_slot_is_not_known_warns() -> None:
    assert severities("PCI-LINK-DEGRADED", nics(nic(pci=gen4_link()))) == ["W"]


def test_a_switch_whose_uplink_lost_lanes_is_told() -> None:
    narrow = PciLink(speed_gts=32, width=8, max_speed_gts=32, max_width=16)
    tree = (
        PciDevice(address="0000:00:01.0", what="bridge", link=narrow),
        PciDevice(address="0000:01:00.0", what="bridge", parent="0000:00:01.0", link=narrow),
        PciDevice(address="0000:02:00.0", what="bridge", parent="0000:01:00.0", link=GEN4),
        PciDevice(address="0000:03:00.0", what="gpu", parent="0000:02:00.0", link=GEN4),
    )
    (found,) = [finding for finding in audited(host(pci=tree)) if finding.rule == "PCI-LINK-DEGRADED"]
    assert found.evidence == "switch 0000:01:00.0: width x8 of x16 towards 0000:00:01.0"


def limited(memlock_bytes: int, **facts: Any) -> Host:
    return nics(nic(), memlock_bytes=memlock_bytes, **facts)


def test_root_with_the_distributions_memlock_is_exempt() -> None:
    exempt = limited(DISTRIBUTION_MEMLOCK, user_is_root=True, capabilities_effective=0x1FFFFFFFFFF)
    assert severities("HOST-MEMLOCK", exempt) == []
    assert severities("HOST-MEMLOCK", limited(DISTRIBUTION_MEMLOCK, user_is_root=True, container="none")) == []


def test_root_of_a_container_without_the_capability_refuses() -> None:
    bound = limited(65536, user_is_root=True, container="docker", capabilities_effective=0xA80425FB)
    assert severities("HOST-MEMLOCK", bound) == ["F"]


def test_root_of_whom_capabilities_are_not_known_warns() -> None:
    assert severities("HOST-MEMLOCK", limited(65536, user_is_root=True)) == ["W"]


def test_a_user_with_the_distributions_memlock_refuses_and_with_a_large_one_warns() -> None:
    assert severities("HOST-MEMLOCK", limited(DISTRIBUTION_MEMLOCK, capabilities_effective=0)) == ["F"]
    assert severities("HOST-MEMLOCK", limited(2**37, capabilities_effective=0)) == ["W"]


@pytest.mark.parametrize(("engine", "expected"), [("docker", []), ("apptainer", ["F"])])
def test_memlock_counts_unless_holmes_starts_docker_without_a_limit(engine: str, expected: list[str]) -> None:
    access = Access(container=Container.model_validate({"engine": engine, "image": "torch"}))
    assert severities("HOST-MEMLOCK", limited(65536, capabilities_effective=0, access=access)) == expected


def virtual(device: str, **facts: Any) -> Any:
    waiting = {"state": "Down", "phys_state": "LinkUp", "hca_type": "MT4124", "virtual_function": True}
    return nic(device, **{**waiting, **facts})


def test_unused_virtual_functions_beside_their_card_do_not_refuse() -> None:
    machine = nics(nic(hca_type="MT4123"), virtual("mlx5_1"), virtual("mlx5_2"))
    assert severities("NIC-NO-SM", machine) == ["I"]


def test_a_pod_whose_only_port_is_a_virtual_function_without_service_refuses() -> None:
    assert severities("NIC-NO-SM", nics(virtual("mlx5_7"))) == ["F"]


def test_a_rail_without_subnet_manager_refuses() -> None:
    rails = (nic(hca_type="MT4129"), nic("mlx5_1", hca_type="MT4129", state="Initializing", phys_state="LinkUp"))
    assert severities("NIC-NO-SM", nics(*rails)) == ["F"]


def rails_and(slow: str, near: bool) -> Host:
    """A rail at 400 beside a GPU, and a port of its model at 200, near a GPU of its own or none."""
    ports = (nic(hca_type="MT4129"), nic(slow, hca_type="MT4129", rate_gbps=200.0))
    second = gpu(1, nearest_path="PIX", nearest_nics=(slow,) if near else ("mlx5_0",))
    return nics(*ports, gpus=(gpu(nearest_path="PIX", nearest_nics=("mlx5_0",)), second))


def test_a_storage_port_of_the_rails_model_at_its_own_speed_does_not_refuse() -> None:
    assert severities("NIC-RATE-BELOW-CLASS", rails_and("mlx5_4", near=False)) == []


def test_a_port_beside_a_gpu_at_half_speed_refuses() -> None:
    assert severities("NIC-RATE-BELOW-CLASS", rails_and("mlx5_4", near=True)) == ["F"]


def test_a_slow_port_that_stands_nobody_knows_where_warns() -> None:
    ports = (nic(hca_type="MT4129"), nic("mlx5_1", hca_type="MT4129", rate_gbps=200.0))
    assert severities("NIC-RATE-BELOW-CLASS", nics(*ports)) == ["W"]


def test_a_board_of_another_speed_is_not_slow() -> None:
    boards = (
        nic(hca_type="MT4129", board_id="MT_0000000838"),
        nic("mlx5_1", hca_type="MT4129", board_id="MT_0000000834", rate_gbps=200.0),
    )
    assert severities("NIC-RATE-BELOW-CLASS", nics(*boards)) == []


@pytest.mark.parametrize(("mtus", "expected"), [((4096, 4096), ["I"]), ((4096, 1024), ["W", "I"])])
def test_netdevs_of_9000_and_4200_have_one_rdma_mtu(mtus: tuple[int, int], expected: list[str]) -> None:
    hosts = (
        roce_host(roce(active_mtu=mtus[0]), netdev(mtu=9000)),
        roce_host(roce(active_mtu=mtus[1]), netdev(address="10.2.0.2/24", mtu=4200), name="b"),
    )
    assert severities("ROCE-MTU-DIFFERS", *hosts) == expected


@pytest.mark.parametrize("name", ["NVIDIA A100 80GB PCIe", "NVIDIA H100 NVL", "NVIDIA RTX A6000", "NVIDIA H200 NVL"])
def test_cards_without_a_bridge_do_not_refuse(name: str) -> None:
    cards = [gpu(index, name=name, nvlinks_up=0, nvlinks_total=12) for index in range(2)]
    assert severities("GPU-NVLINK-INACTIVE", gpus(*cards)) == ["I", "I"]


@pytest.mark.parametrize(
    "name", ["NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA B200", "NVIDIA GB200"]
)
def test_boards_wired_by_nvlink_without_it_refuse(name: str) -> None:
    cards = [gpu(index, name=name, nvlinks_up=0, nvlinks_total=12) for index in range(2)]
    assert severities("GPU-NVLINK-INACTIVE", gpus(*cards)) == ["F"]


def test_half_a_board_given_to_a_virtual_machine_does_not_refuse() -> None:
    cards = [gpu(index, name="Tesla V100-SXM2-16GB", nvlinks_up=4, nvlinks_total=6) for index in range(4)]
    assert severities("GPU-NVLINK-INACTIVE", gpus(*cards, virtual_machine=True)) == ["I"] * 4


def test_efa_with_its_plugin_is_sound_and_without_refuses() -> None:
    assert severities("NIC-EFA-NEEDS-PLUGIN", nics(EFA, nccl_net_plugins=("/opt/lib/libnccl-net.so",))) == []
    assert severities("NIC-EFA-NEEDS-PLUGIN", nics(EFA, nccl_net_plugins=())) == ["F"]
    assert severities("NIC-EFA-NEEDS-PLUGIN", nics(EFA)) == ["I"]


def test_an_amd_host_is_told_that_holmes_needs_nvidia_and_not_to_load_a_driver() -> None:
    machine = host(kernel_modules=("amdgpu", "ib_core"), kernel_modules_complete=True)
    (found,) = [finding for finding in audited(machine) if finding.rule == "GPU-NONE"]
    assert "AMD" in found.evidence
    assert "modprobe" not in found.remedy


def test_a_foreign_rdma_device_that_is_no_rail_does_not_refuse() -> None:
    foreign = nic("mlx5_9", "RoCE", node_type="ca", usable_by_nccl_ib=False)
    machine = host(nics=(roce(), foreign), netdevs=(netdev(),))
    assert severities("NIC-NO-NETDEV-IN-NS", machine) == ["I"]


@pytest.mark.parametrize("name", ["NVIDIA GB200", "NVIDIA GB300", "NVIDIA GH200 480GB"])
def test_a_domain_a_gpu_is_the_board_on_grace(name: str) -> None:
    cards = [gpu(0, name=name, pci_address="0008:01:00.0"), gpu(1, name=name, pci_address="0009:01:00.0")]
    assert severities("TOPO-FLAT-PCI", gpus(*cards)) == []


def test_peer_memory_is_not_missed_without_rdma_nor_on_efa() -> None:
    assert severities("GDR-NO-PEERMEM", gpus(gpu(), peermem=False)) == []
    assert severities("GDR-NO-PEERMEM", gpus(gpu(), peermem=False, nics=(EFA,))) == []


@pytest.mark.parametrize(
    "line", ["iommu.passthrough=1", "intel_iommu=on iommu=pt", "quiet", "iommu.passthrough=on intel_iommu=on"]
)
def test_an_iommu_that_passes_through_is_sound(line: str) -> None:
    machine = host(iommu_groups=9, virtual_machine=False, kernel_command_line=line)
    assert severities("PCI-IOMMU-ON", machine) == []


def test_an_iommu_asked_to_translate_is_told_and_the_groups_types_go_first() -> None:
    asked: dict[str, Any] = {"iommu_groups": 9, "virtual_machine": False, "kernel_command_line": "intel_iommu=on"}
    assert severities("PCI-IOMMU-ON", host(**asked)) == ["W"]
    assert severities("PCI-IOMMU-ON", host(**asked, iommu_group_types=("identity",))) == []
    assert severities("PCI-IOMMU-ON", host(**asked, iommu_group_types=("DMA-FQ",))) == ["W"]


def test_contained_memory_errors_and_pending_remaps_leave_the_gpu_usable() -> None:
    machine = gpus(gpu(ecc_uncorrected=1, row_remap_pending=True), gpu(1, row_remap_failure=True))
    assert severities("GPU-ECC-UNCORR", machine) == ["W"]
    assert severities("GPU-ROW-REMAP", machine) == ["F", "W"]


XID = "NVRM: Xid (PCI:0000:3b:00): "
CHANGED = XID + "154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
MENDED = XID + "154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ((XID + "79, GPU has fallen off the bus.",), ["F"]),
        ((XID + "119, pid=1, name=python, Timeout waiting for RPC from GSP!",), ["F"]),
        ((XID + "13, Graphics Exception", XID + "31, pid=2", XID + "43, pid=2", XID + "94, Contained"), ["W"] * 4),
        ((XID + "144, SAW_MVB Nonfatal XC0 i0 Link 0",), ["W"]),
        ((XID + "149, NETIR_LINK_EVT Fatal XC0 i0 Link 00",), ["F"]),
        ((XID + "95, Uncontained", CHANGED), ["F", "F"]),
        ((XID + "95, Uncontained", MENDED), ["W"]),
    ],
)
def test_an_xid_refuses_if_the_driver_needs_a_reset_and_has_not_had_it(
    lines: tuple[str, ...], expected: list[str]
) -> None:
    assert severities("GPU-XID", host(warnings=lines)) == expected


def test_repeated_xids_of_a_gpu_are_one_finding_that_names_the_gpu_to_reset() -> None:
    (found,) = [
        finding for finding in audited(host(warnings=(XID + "119, a", XID + "119, b"))) if finding.rule == "GPU-XID"
    ]
    assert found.evidence == XID + "119, b (2 such lines)"
    assert "`nvidia-smi -r -i 0000:3b:00.0`" in found.remedy


def test_xid_154_brings_the_drivers_own_remedy() -> None:
    (found,) = [finding for finding in audited(host(warnings=(CHANGED,))) if finding.rule == "GPU-XID"]
    assert found.remedy == "reboot the host"


NEAR_THE_RAIL = gpu(nearest_path="PIX", nearest_nics=("mlx5_0",))


def test_a_bond_and_a_front_end_are_no_rails_that_run_slow() -> None:
    bond = roce("mlx5_bond_0", "bond0", rate_gbps=200.0, bond=True)
    assert severities("NIC-RATE-OUTLIER", nics(nic(), bond)) == []
    assert severities("NIC-RATE-OUTLIER", nics(nic(), nic("mlx5_1", rate_gbps=100.0), gpus=(NEAR_THE_RAIL,))) == ["I"]


def test_a_port_beside_a_gpu_that_is_slower_than_the_rails_warns() -> None:
    cards = (NEAR_THE_RAIL, gpu(1, nearest_path="PIX", nearest_nics=("mlx5_1",)))
    assert severities("NIC-RATE-OUTLIER", nics(nic(), nic("mlx5_1", rate_gbps=100.0), gpus=cards)) == ["W"]


def test_a_port_without_a_v2_gid_refuses_only_where_the_run_needs_it() -> None:
    first, second = Gid(index=0, gid="fe80::1", type="RoCE v1"), Gid(index=3, gid="::ffff:a02:1", type="RoCE v2")
    storage = roce("mlx5_1", "ens2", rate_gbps=100.0, gids=(first,))
    rail = roce(gids=(first, second))
    assert severities("ROCE-NO-V2-GID", host(nics=(rail, storage), netdevs=(netdev(),))) == ["W"]
    assert severities("ROCE-NO-V2-GID", host(nics=(nic(), storage))) == ["W"]
    assert severities("ROCE-NO-V2-GID", host(nics=(roce(gids=(first,)), storage), netdevs=(netdev(),))) == ["F", "W"]
    assert severities("ROCE-NO-V2-GID", host(nics=(storage,))) == ["F"]
