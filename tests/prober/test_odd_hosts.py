"""Faults of one host among many: the host is named, its peers are not, and what it is not is not said."""

from __future__ import annotations

from typing import Any

import pytest

from holmes_core.records.devices import PciDevice, PciLink
from holmes_core.records.inventory import Finding, Host, NcclSetting
from prober.asking.merge import filled, updated
from prober.facts.netdev.partial_netdev import PartialNetdev
from tests.builders.host_facts import GOOD, audited, gpu, gpus, host, netdev, nic, nics, roce

NAMES = "abcde"
H100 = "NVIDIA H100 80GB HBM3"


def found(rule: str, *hosts: Host, one_cluster: bool = True) -> list[Finding]:
    return [finding for finding in audited(*hosts, one_cluster=one_cluster) if finding.rule == rule]


def machine(name: str, number: int, *subnets: str, mask: int = 24) -> Host:
    """RoCE rails of names mlx5_0 and on, each in 10.SUBNET.0.0/24; without a subnet there is no such rail."""
    ports = [(index, subnet) for index, subnet in enumerate(subnets) if subnet]
    return host(
        name,
        nics=tuple(roce(f"mlx5_{index}", f"ens{index}", hca_type="MT4129") for index, _ in ports),
        netdevs=tuple(netdev(f"ens{index}", f"10.{subnet}.0.{number}/{mask}") for index, subnet in ports),
    )


def fleet_with_odd(odd: Host, *subnets: str) -> tuple[Host, ...]:
    """Four sound machines, and the odd one in place of the last."""
    return (*(machine(name, number, *subnets) for number, name in enumerate("abcd", start=1)), odd)


def test_rails_behind_a_lost_one_are_not_called_swapped() -> None:
    hosts = fleet_with_odd(machine("e", 5, "", "2", "3", "4"), "1", "2", "3", "4")
    assert found("TOPO-RAIL-SWAPPED", *hosts) == []
    assert [finding.hosts for finding in found("NIC-COUNT-DIFFERS", *hosts)] == [("e",)]


def test_swapped_rails_of_a_host_that_lost_one_are_told() -> None:
    (finding,) = found("TOPO-RAIL-SWAPPED", *fleet_with_odd(machine("e", 5, "", "3", "2", "4"), "1", "2", "3", "4"))
    assert finding.hosts == ("e",)


@pytest.mark.parametrize("length", [16, 25])
def test_of_many_hosts_the_one_with_another_mask_is_named(length: int) -> None:
    (finding,) = found("NET-MASK-DIFFERS", *fleet_with_odd(machine("e", 5, "1", mask=length), "1"))
    assert finding.hosts == ("e",)


def test_where_no_mask_is_the_usual_one_all_hosts_are_named() -> None:
    (finding,) = found("NET-MASK-DIFFERS", machine("a", 1, "1"), machine("b", 2, "1", mask=16))
    assert finding.hosts == ("a", "b")


def test_the_port_that_is_left_out_of_the_rails_is_named_with_the_reason() -> None:
    ports = [nic(f"mlx5_{number}", hca_type="MT4129") for number in range(2)]
    short = nics(ports[0], nic("mlx5_1", hca_type="MT4129", sm_lid=9, rail_why="below SM lid 9"), name="b")
    (finding,) = found("NIC-COUNT-DIFFERS", nics(*ports), _with_one_rail(short), nics(*ports, name="c"))
    assert finding.evidence == "rails: 1 here, 2 on most hosts of the cluster; mlx5_1:1: below SM lid 9"


def _with_one_rail(short: Host) -> Host:
    first, *rest = short.nics
    return short.model_copy(update={"nics": (first.model_copy(update={"rail": 0, "rail_why": "a rail"}), *rest)})


def ethernet(name: str, **facts: Any) -> Host:
    """A GPU machine with a front end alone."""
    return gpus(gpu(), name=name, nics=(nic("eno1", "Ethernet", port=0, usable_by_nccl_ib=False),), **facts)


def test_a_host_whose_cards_are_gone_is_told_beside_hosts_with_the_same_gpus() -> None:
    railed = [gpus(gpu(), name=name, nics=(nic(),)) for name in "abc"]
    (finding,) = found("NIC-COUNT-DIFFERS", *railed, ethernet("d"), one_cluster=False)
    assert (finding.severity, finding.hosts) == ("W", ("d",))


def test_hosts_of_another_kind_without_rdma_are_sound() -> None:
    railed = [gpus(gpu(name="B200"), name=name, nics=(nic(),)) for name in "abc"]
    assert found("NIC-COUNT-DIFFERS", *railed, ethernet("d"), one_cluster=False) == []


def test_a_host_in_a_partition_of_its_own_is_told_and_one_that_shares_a_partition_is_not() -> None:
    def keyed(name: str, *pkeys: int) -> Host:
        return nics(nic(pkeys=pkeys, subnet_prefix="fe80::"), name=name)

    sound = [keyed(name, 0xFFFF) for name in "abc"]
    (finding,) = found("NIC-PKEY", *sound, keyed("d", 0x8005), one_cluster=False)
    assert (finding.severity, finding.hosts) == ("W", ("d",))
    assert found("NIC-PKEY", *sound, keyed("d", 0xFFFF, 0x8005), one_cluster=False) == []


def test_neighbours_of_a_lost_gpu_are_no_crossed_rails() -> None:
    def near(name: str, *nearest: str) -> Host:
        cards = (gpu(index, nearest_path="PIX", nearest_nics=(device,)) for index, device in enumerate(nearest))
        return gpus(*cards, name=name)

    sound = [near(name, "mlx5_0", "mlx5_1", "mlx5_2") for name in "abc"]
    assert found("TOPO-RAIL-MISMATCH", *sound, near("d", "mlx5_1", "mlx5_2")) == []
    (finding,) = found("TOPO-RAIL-MISMATCH", *sound, near("d", "mlx5_1", "mlx5_0", "mlx5_2"))
    assert finding.hosts == ("d",)


def test_a_slot_that_is_set_to_a_lower_speed_is_told_beside_its_peers() -> None:
    """An idle link runs slower too: only what the bridges say they can do counts."""

    def below(name: str, speed: float, max_speed: float) -> Host:
        link = PciLink(speed_gts=speed, width=16, max_speed_gts=max_speed, max_width=16)
        root = PciDevice(address="0000:00:01.0", what="bridge", link=link)
        card = PciDevice(address="0000:01:00.0", what="gpu", parent=root.address)
        return host(name, pci=(root, card))

    sound = [below(name, 2.5, 32.0) for name in "abc"]
    (finding,) = found("PCI-LINK-DEGRADED", *sound, below("d", 16.0, 16.0))
    assert finding.hosts == ("d",)
    assert finding.evidence.startswith("PCI Express speed that the bridges above allow: 16 GT/s here, 32 GT/s")


def test_a_memory_module_that_is_gone_is_told_and_what_the_kernel_keeps_is_not() -> None:
    sizes = {"a": 2000, "b": 1990, "c": 2010, "d": 1875}
    hosts = [host(name, memory_bytes=size * 2**30) for name, size in sizes.items()]
    (finding,) = found("HOST-SMALLER", *hosts)
    assert finding.hosts == ("d",)


def told(name: str, **variables: str) -> Host:
    settings = tuple(NcclSetting(where="environment", name=key, value=value) for key, value in variables.items())
    return host(name, nccl_settings=settings)


def test_a_host_on_which_nccl_is_told_otherwise_is_named() -> None:
    hosts = [told(name, NCCL_IB_TC="106") for name in "abc"]
    (finding,) = found("HOST-NCCL-CONF", *hosts, told("d", NCCL_IB_TC="106", NCCL_ALGO="Ring"))
    assert finding.hosts == ("d",)
    assert found("HOST-NCCL-CONF", *hosts, told("d", NCCL_IB_TC="106", NCCL_DEBUG="INFO")) == []


def test_a_torch_for_another_cuda_is_told() -> None:
    built = GOOD.model_copy(update={"cuda": "12.1"})
    usual = GOOD.model_copy(update={"cuda": "12.4"})
    hosts = [host(name, software=usual) for name in "abc"]
    assert [f.hosts for f in found("HOST-OS-LIB", *hosts, host("d", software=built))] == [("d",)]


def test_a_host_without_ofed_beside_hosts_with_it_is_told_if_it_was_asked() -> None:
    with_it = [host(name, software=GOOD.model_copy(update={"ofed": "OFED-24.04"})) for name in "abc"]
    assert [f.hosts for f in found("NIC-DRIVER-MISMATCH", *with_it, host("d", python_asked=True))] == [("d",)]
    assert found("NIC-DRIVER-MISMATCH", *with_it, host("d")) == []


def test_a_rail_that_trusts_another_field_is_told() -> None:
    def trusting(name: str, word: str) -> Host:
        return host(name, nics=(roce(),), netdevs=(netdev(pfc_enabled_priorities=(3,), trust=word),))

    hosts = [trusting(name, "dscp") for name in "abc"]
    assert [f.hosts for f in found("ROCE-PFC-DIFFERS", *hosts, trusting("d", "pcp"))] == [("d",)]


def test_the_front_end_is_compared_and_a_netdev_that_carries_the_job_is_not_told_twice() -> None:
    def fronted(name: str, speed: float, *rails: Any) -> Host:
        own = netdev("eno1", "10.9.0.1/24", speed_bytes_per_s=speed, mtu=1500)
        return host(name, nics=rails, netdevs=(own,), default_route_netdev="eno1")

    hosts = [fronted(name, 3.125e9, nic()) for name in "abc"]
    (finding,) = found("NET-FRONT-END-DIFFERS", *hosts, fronted("d", 1.25e8, nic()))
    assert (finding.severity, finding.hosts) == ("W", ("d",))
    sockets = [fronted(name, 3.125e9) for name in "abc"]
    assert found("NET-FRONT-END-DIFFERS", *sockets, fronted("d", 1.25e8)) == []


def test_a_fabric_manager_that_runs_nowhere_is_not_missed() -> None:
    def board(name: str, state: str) -> Host:
        return gpus(gpu(name=H100), name=name, fabric_manager=state)

    assert [f.hosts for f in found("GPU-FABRIC", *(board(n, "active") for n in "abc"), board("d", "failed"))] == [
        ("d",)
    ]
    assert found("GPU-FABRIC", *(board(n, "inactive") for n in "abc")) == []


def test_that_no_priority_has_pfc_is_knowledge_and_stays() -> None:
    """`()` of a field that is None where nothing is known; addresses are () there."""
    ours, more = PartialNetdev(name="ens1"), PartialNetdev(name="ens1", pfc_enabled_priorities=())
    assert filled(ours, more).pfc_enabled_priorities == ()
    assert filled(more, PartialNetdev(name="ens1", pfc_enabled_priorities=(3,))).pfc_enabled_priorities == ()
    addressed = PartialNetdev(name="ens1", addresses=("10.0.0.1/24",))
    assert updated(addressed, more).addresses == ("10.0.0.1/24",)
