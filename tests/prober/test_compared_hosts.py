"""Faults that show only beside other hosts, or beside the other GPUs and rails of the host."""

from __future__ import annotations

from typing import Any

import pytest

from holmes_core.records.devices import PciDevice
from holmes_core.records.inventory import Finding, Host, NcclSetting
from tests.builders.host_facts import GOOD, audited, gpu, gpus, host, netdev, nic, nics, roce, severities


def found(rule: str, *hosts: Host, one_cluster: bool = False) -> list[Finding]:
    return [finding for finding in audited(*hosts, one_cluster=one_cluster) if finding.rule == rule]


def connectx_host(name: str, count: int = 8, rate_gbps: float = 400.0, **facts: Any) -> Host:
    """A host with ConnectX-7 rails, and its GPUs with NVLink."""
    ports = [nic(f"mlx5_{number}", hca_type="MT4129", rate_gbps=rate_gbps) for number in range(count)]
    return nics(*ports, name=name, **facts)


def test_a_host_all_of_whose_rails_are_half_as_fast_as_its_peers_is_told() -> None:
    (finding,) = found(
        "NIC-RATE-BELOW-CLASS", connectx_host("a"), connectx_host("b", rate_gbps=200.0), connectx_host("c")
    )
    assert (finding.severity, finding.hosts) == ("W", ("b",))
    assert finding.evidence == "rails (MT4129): 200 Gbit/s here, 400 Gbit/s on most hosts of the cluster"


def test_of_two_hosts_the_slower_one_is_told() -> None:
    (finding,) = found("NIC-RATE-BELOW-CLASS", connectx_host("a", rate_gbps=200.0), connectx_host("b"))
    assert finding.hosts == ("a",)


def test_hosts_without_rdma_compare_the_netdevs_of_their_fabric() -> None:
    slow = host("b", netdevs=(netdev(address="10.2.0.2/24", speed_bytes_per_s=1.25e9),))
    (finding,) = found("NIC-RATE-BELOW-CLASS", host("a", netdevs=(netdev(),)), slow)
    assert finding.hosts == ("b",)


def test_a_rail_that_vanished_is_told() -> None:
    (finding,) = found("NIC-COUNT-DIFFERS", connectx_host("a"), connectx_host("b", count=7), connectx_host("c"))
    assert (finding.hosts, finding.evidence) == (("b",), "rails: 7 here, 8 on most hosts of the cluster")


def test_a_gpu_that_vanished_is_told_and_a_pod_with_one_is_not() -> None:
    full = [gpu(index) for index in range(8)]
    machines = [gpus(*full, name="a"), gpus(*full[:7], name="b"), gpus(*full, name="c")]
    (finding,) = found("GPU-COUNT-DIFFERS", *machines, gpus(gpu(), name="d", container="docker"), one_cluster=True)
    assert finding.hosts == ("b",)


def test_one_gpu_of_eight_without_nvlink_refuses() -> None:
    """nvidia-smi then prints `all links are inActive`, which leaves the total unknown."""
    cards = [gpu(index, name="NVIDIA H100 80GB HBM3", nvlinks_up=18, nvlinks_total=18) for index in range(7)]
    dead = gpu(7, name="NVIDIA H100 80GB HBM3", nvlinks_up=0)
    (finding,) = found("GPU-NVLINK-INACTIVE", gpus(*cards, dead))
    assert (finding.severity, finding.evidence) == ("F", "GPU 7: 0 NVLinks up, others here 18")


def test_a_card_of_another_model_without_nvlink_beside_them_is_sound() -> None:
    board = gpu(0, name="NVIDIA A100-SXM4-80GB", nvlinks_up=12, nvlinks_total=12)
    assert severities("GPU-NVLINK-INACTIVE", gpus(board, gpu(1, name="NVIDIA T4", nvlinks_up=0, nvlinks_total=0))) == []


def test_a_host_without_nvlink_among_peers_that_have_it_refuses() -> None:
    def machine(name: str, up: int) -> Host:
        return gpus(*(gpu(index, name="NVIDIA H100 80GB HBM3", nvlinks_up=up) for index in range(8)), name=name)

    (finding,) = found("GPU-NVLINK-INACTIVE", machine("a", 18), machine("b", 0), one_cluster=True)
    assert (finding.severity, finding.hosts) == ("F", ("b",))


@pytest.mark.parametrize(("address", "severity"), [("10.2.0.1/24", "W"), (None, "I")])
def test_a_live_card_without_a_link_is_told(address: str | None, severity: str) -> None:
    """Every parser makes `up` false without a carrier."""
    dead = netdev(address=address, kind="physical", link_detected=False, up=False)
    assert severities("NIC-LINK-DOWN", host(netdevs=(dead,))) == [severity]


def test_the_netdev_of_an_rdma_port_is_told_as_a_port_alone() -> None:
    dead = netdev(kind="physical", link_detected=False, up=False)
    machine = host(nics=(roce(state="Down"),), netdevs=(dead,))
    assert severities("NIC-LINK-DOWN", machine) == []
    assert severities("NIC-PORT-DOWN", machine) == ["W"]


def crossed(name: str, first: str, second: str) -> Host:
    """GPU 0 beside mlx5_0 and GPU 1 beside mlx5_1, whose netdevs have these addresses."""
    return host(
        name,
        gpus=(gpu(nearest_path="PIX", nearest_nics=("mlx5_0",)), gpu(1, nearest_path="PIX", nearest_nics=("mlx5_1",))),
        nics=(roce("mlx5_0", "ens1"), roce("mlx5_1", "ens2")),
        netdevs=(netdev("ens1", first), netdev("ens2", second)),
    )


def test_swapped_rail_cables_are_told_by_their_subnets() -> None:
    straight = (crossed("a", "10.1.0.1/24", "10.2.0.1/24"), crossed("c", "10.1.0.3/24", "10.2.0.3/24"))
    (finding,) = found("TOPO-RAIL-MISMATCH", *straight, crossed("b", "10.2.0.2/24", "10.1.0.2/24"))
    assert finding.hosts == ("b",)


def test_rails_of_other_names_in_the_same_subnets_are_straight() -> None:
    other = host(
        "b",
        gpus=(gpu(nearest_path="PIX", nearest_nics=("mlx5_4",)), gpu(1, nearest_path="PIX", nearest_nics=("mlx5_5",))),
        nics=(roce("mlx5_4", "ens1"), roce("mlx5_5", "ens2")),
        netdevs=(netdev("ens1", "10.1.0.2/24"), netdev("ens2", "10.2.0.2/24")),
    )
    assert severities("TOPO-RAIL-MISMATCH", crossed("a", "10.1.0.1/24", "10.2.0.1/24"), other) == []


def two_sockets(*ports: tuple[str, str, float]) -> Host:
    """A GPU at socket 0 and ports (device, address, Gbit/s), those of address 00 at socket 0, of 80 at socket 1."""
    bridges = [PciDevice(address=f"0000:{bus}:01.0", what="bridge") for bus in ("00", "80")]
    cards = [PciDevice(address=address, what="nic", parent=f"0000:{address[5:7]}:01.0") for _, address, _ in ports]
    card = PciDevice(address="0000:01:00.0", what="gpu", parent="0000:00:01.0")
    rdma = [
        nic(device, pci_address=address, rate_gbps=rate, numa_node=int(address[5] == "8"))
        for device, address, rate in ports
    ]
    near = [device for device, address, _ in ports if address[5] == "0"]
    seen = gpu(
        pci_address="0000:01:00.0",
        numa_node=0,
        nearest_path="PIX" if near else "SYS",
        nearest_nics=tuple(near or [device for device, _, _ in ports]),
    )
    return host(gpus=(seen,), nics=tuple(rdma), pci=(*bridges, card, *cards))


def test_a_front_end_card_beside_the_gpu_does_not_hide_that_the_rails_are_far() -> None:
    machine = two_sockets(("mlx5_0", "0000:00:02.0", 100), ("mlx5_1", "0000:80:02.0", 400))
    assert severities("TOPO-FAR-NIC", machine) == ["W"]


def test_a_rail_beside_the_gpu_is_near_whatever_else_is_far() -> None:
    machine = two_sockets(("mlx5_0", "0000:00:02.0", 400), ("mlx5_1", "0000:80:02.0", 400))
    assert severities("TOPO-FAR-NIC", machine) == []


def test_versions_of_the_job_are_compared_across_clusters() -> None:
    other = GOOD.model_copy(update={"torch": "2.12.1", "nccl": "2.28.9", "python": "3.10.4"})
    one = nics(nic(sm_lid=1), name="a", gpus=(gpu(),), gpu_driver_version="570.1")
    two = nics(nic(sm_lid=9), name="b", gpus=(gpu(),), gpu_driver_version="580.1", software=other)
    rules = {finding.rule: finding.severity for finding in audited(one, two) if finding.hosts == ("a", "b")}
    assert rules["HOST-NCCL-VERSION"] == "F"
    assert rules["GPU-DRIVER-DIFFERS"] == "W"
    assert severities("HOST-OS-LIB", one, two) == ["F", "W"]


def test_builds_of_one_torch_do_not_refuse() -> None:
    built = GOOD.model_copy(update={"torch": "2.13.1+cu128"})
    assert severities("HOST-OS-LIB", host("a"), host("b", software=built)) == ["W"]


def test_versions_are_compared_where_clusters_are_not_known() -> None:
    """Hosts whose networks nobody knows are a cluster each."""
    hosts = [host(name, nics=(roce(gid_choice=index),)) for name, index in (("a", 3), ("b", 5))]
    assert severities("ROCE-GID-DIFFERS-BY-HOST", *hosts) == ["W"]


def test_the_odd_host_is_named_and_not_the_many() -> None:
    odd = host("d", gpu_driver_version="550.1")
    (finding,) = found("GPU-DRIVER-DIFFERS", *(host(name, gpu_driver_version="570.1") for name in "abc"), odd)
    assert finding.hosts == ("d",)
    assert finding.evidence == "GPU driver: 550.1 on d; 570.1 on the other 3"


LIMITED, FULL, OTHER = 0x7FFF, 0xFFFF, 0x8005
PKEY_1 = (NcclSetting(where="environment", name="NCCL_IB_PKEY", value="0x1"),)


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ((FULL,), (FULL,), []),
        ((LIMITED,), (FULL,), []),
        ((LIMITED,), (LIMITED,), ["F"]),
        ((FULL, OTHER), (OTHER, FULL), ["F"]),
        ((FULL,), None, []),
        ((LIMITED, 0x8001), (LIMITED, 0, 0x8001), ["I"]),
        ((LIMITED, 0x8001, 0x8002), (LIMITED, 0x8001, 0x8002), ["F"]),
        ((FULL, 0x8001), (LIMITED, 0x8001), []),
    ],
)
def test_ports_talk_if_their_keys_agree_and_one_of_both_is_a_full_member(
    ours: tuple[int, ...], theirs: tuple[int, ...] | None, expected: list[str]
) -> None:
    assert severities("NIC-PKEY", nics(nic(pkeys=ours)), nics(nic(pkeys=theirs), name="b")) == expected


def test_the_index_that_is_set_for_nccl_chooses_the_key() -> None:
    hosts = [nics(nic(pkeys=(LIMITED, OTHER)), name=name, nccl_settings=PKEY_1) for name in "ab"]
    assert severities("NIC-PKEY", *hosts) == []
