"""Rails are the ports that serve the GPUs; storage, front end and foreign devices are left out, and it is said why."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holmes_core.records.devices import Nic
from holmes_core.records.inventory import Host, OfiPlugin
from prober.fabrics.clusters import find_clusters
from prober.facts.rdma.nvlink_bridge import with_bridges_marked
from prober.findings.audit import audit
from prober.rails.choose_rails import rails_of, undecided_ports, with_rails
from prober.rails.stated_rails import stated_rail_findings
from tests.builders.host_facts import nic
from tests.builders.railed_hosts import gid, gpus_beside, host, infiniband_port, netdev_with, roce_port, switch

COMPUTE = tuple(infiniband_port(f"mlx5_{i}") for i in range(8))


def rails(machine: Host, stated: tuple[str, ...] | None = None) -> list[str]:
    return [nic.device for nic in rails_of(with_rails(machine, stated))]


def why(machine: Host, device: str) -> str:
    return next(nic.rail_why for nic in with_rails(machine).nics if nic.device == device)


def names(count: int, start: int = 0) -> list[str]:
    return [f"mlx5_{i}" for i in range(start, start + count)]


def storage_below_another_sm() -> Host:
    """Eight compute and two storage ports, all of 400 Gbit/s: the usual DGX H100."""
    return host(nics=(*COMPUTE, infiniband_port("mlx5_8", sm_lid=7), infiniband_port("mlx5_9", sm_lid=7)))


def test_storage_below_another_subnet_manager_is_no_rail() -> None:
    machine = storage_below_another_sm()
    assert rails(machine) == names(8)
    assert why(machine, "mlx5_8") == "below SM lid 7, where the 8 rails have another"
    assert undecided_ports(with_rails(machine)) == ()


def front_end_bond() -> Host:
    """Eight rails of 200 Gbit/s beside a front-end bond of 400 Gbit/s, all RoCE."""
    ports = [roce_port(f"mlx5_{i}", f"eth{i}", 200) for i in range(8)]
    own = [netdev_with(f"eth{i}", f"10.1.{i}.5/24") for i in range(8)]
    bond = roce_port("mlx5_bond_0", "bond0", 400, bond=True)
    return host(nics=(*ports, bond), netdevs=(*own, netdev_with("bond0", "10.9.0.5/24")), default_route_netdev="bond0")


def test_a_front_end_bond_is_no_rail_though_it_is_the_fastest_port() -> None:
    machine = front_end_bond()
    assert rails(machine) == names(8)
    assert why(machine, "mlx5_bond_0") == "the default route goes over its netdev bond0: front end"
    assert why(machine, "mlx5_3") == "one of 8 RoCE ports of 200 Gbit/s alike, each in a subnet of its own"


def test_the_bond_is_no_rail_even_where_the_default_route_is_not_known() -> None:
    assert rails(front_end_bond().model_copy(update={"default_route_netdev": None})) == names(8)


@pytest.mark.parametrize("default", ["bond0", "bond0.100", "br0"])
def test_members_of_the_bond_below_the_default_route_are_no_rails(default: str) -> None:
    machine = host(
        nics=(roce_port("mlx5_0", "eth0"), roce_port("mlx5_1", "eth1"), roce_port("mlx5_2", "eth2")),
        netdevs=(
            *(
                netdev_with("eth0", master="bond0"),
                netdev_with("eth1", master="bond0"),
                netdev_with("eth2", "10.1.0.5/24"),
            ),
            netdev_with("bond0", *(() if default == "br0" else ("10.9.0.5/24",)), master="br0"),
            *(netdev_with("bond0.100", "10.8.0.5/24", parent="bond0"), netdev_with("br0", "10.7.0.5/24")),
        ),
        default_route_netdev=default,
    )
    assert rails(machine) == ["mlx5_2"]


def test_ports_without_known_rates_are_told_from_the_front_end_by_the_default_route() -> None:
    ports = [roce_port(f"mlx5_{i}", f"eth{i}", None) for i in range(5)]  # type: ignore[arg-type]
    own = [netdev_with(f"eth{i}", f"10.1.{i}.5/24") for i in range(5)]
    assert rails(host(nics=ports, netdevs=own, default_route_netdev="eth0")) == names(4, start=1)


def test_the_only_port_is_a_rail_though_the_default_route_goes_over_it() -> None:
    one = host(
        nics=(roce_port("mlx5_0", "eth0"),), netdevs=(netdev_with("eth0", "10.1.0.5/24"),), default_route_netdev="eth0"
    )
    assert rails(one) == ["mlx5_0"]
    beside_an_idle_one = one.model_copy(
        update={"nics": (*one.nics, roce_port("mlx5_1", "eth1")), "netdevs": (*one.netdevs, netdev_with("eth1"))}
    )
    assert "mlx5_0" in rails(beside_an_idle_one)


def test_a_default_route_over_ipoib_takes_no_rail_away() -> None:
    ports = tuple(infiniband_port(f"mlx5_{i}", netdev=f"ib{i}") for i in range(4))
    machine = host(nics=ports, netdevs=(netdev_with("ib0", "10.1.0.5/24"),), default_route_netdev="ib0")
    assert rails(machine) == names(4)


def test_a_bluefield_beside_connectx_ports_is_no_rail() -> None:
    machine = host(
        nics=(
            infiniband_port("mlx5_0", 200),
            infiniband_port("mlx5_1", 200),
            infiniband_port("mlx5_2", 400, hca_type="MT41692"),
        )
    )
    assert rails(machine) == names(2)
    assert why(machine, "mlx5_2") == "a BlueField's host port, beside ConnectX ports: storage or front end"


def test_bluefield_ports_are_rails_where_each_gpu_has_one_and_connectx_is_the_front_end() -> None:
    cards = tuple(roce_port(f"mlx5_{i}", f"eth{i}", hca_type="MT41692") for i in range(8))
    front = roce_port("mlx5_8", "eth8", 100, hca_type="MT4125")
    machine = host(nics=(*cards, front), gpus=gpus_beside(*[()] * 8))
    assert rails(machine) == names(8)


def test_ports_beside_the_gpus_are_rails_before_as_many_far_from_them() -> None:
    near = tuple(roce_port(f"mlx5_{i}", f"eth{i}") for i in (2, 3))
    far = tuple(roce_port(f"mlx5_{i}", f"eth{i}") for i in (0, 1))
    own = [netdev_with(f"eth{i}", f"10.{1 + i // 2}.0.5/24") for i in range(4)]
    machine = host(nics=(*far, *near), netdevs=own, gpus=gpus_beside(("mlx5_2",), ("mlx5_3",)))
    assert rails(machine) == ["mlx5_2", "mlx5_3"]
    assert why(machine, "mlx5_0").startswith("farther from the GPUs than the 2 rails")


def test_in_one_subnet_ports_far_from_the_gpus_are_out_where_each_gpu_has_a_rail_of_its_own() -> None:
    machine = host(
        nics=(*COMPUTE, infiniband_port("mlx5_8"), infiniband_port("mlx5_9")),
        gpus=gpus_beside(*[(f"mlx5_{i}",) for i in range(8)]),
    )
    assert rails(machine) == names(8)
    assert why(machine, "mlx5_9") == "far from the GPUs, each of which has a rail beside it"
    fewer = machine.model_copy(update={"gpus": gpus_beside(("mlx5_0",), ("mlx5_0",))})
    assert len(rails(fewer)) == 10


def test_a_slow_front_end_port_beside_a_gpu_is_no_rail_where_the_fast_ones_are_far() -> None:
    machine = host(
        nics=(*COMPUTE, roce_port("mlx5_8", "eth0", 25)),
        gpus=gpus_beside(*[("mlx5_8",)] * 8),
        netdevs=(netdev_with("eth0"),),
    )
    assert rails(machine) == names(8)


def test_a_slower_port_is_no_rail() -> None:
    machine = host(nics=(*COMPUTE[:7], infiniband_port("mlx5_7", 200)))
    assert (rails(machine), why(machine, "mlx5_7")) == (names(7), "200 Gbit/s; the 7 rails have 400 Gbit/s")


def test_one_infiniband_port_in_each_of_several_subnets_is_one_set_of_rails() -> None:
    planes = tuple(infiniband_port(f"mlx5_{i}", subnet_prefix=f"fec0:0000:0000:000{i}") for i in range(8))
    machine = host(nics=planes, gpus=gpus_beside(*[()] * 8))
    assert rails(machine) == names(8)
    assert undecided_ports(with_rails(machine)) == ()


def test_two_ports_below_two_subnet_managers_are_asked_about() -> None:
    machine = with_rails(host(nics=(infiniband_port("mlx5_0"), infiniband_port("mlx5_1", sm_lid=7))))
    found = {finding.rule: finding for finding in audit([machine], (), None)}
    assert "`rails:`" in found["NIC-TWO-FABRICS"].remedy
    named = with_rails(machine, ("mlx5_0",))
    assert "NIC-TWO-FABRICS" not in {finding.rule for finding in audit([named], (), None)}


def test_eight_rails_beside_two_storage_ports_each_on_a_subnet_of_its_own_need_the_gpus_to_be_told_apart() -> None:
    ports = [roce_port(f"mlx5_{i}", f"eth{i}") for i in range(10)]
    own = [netdev_with(f"eth{i}", f"10.1.{i}.5/24") for i in range(10)]
    machine = host(nics=ports, netdevs=own, gpus=gpus_beside(*[(f"mlx5_{i}",) for i in range(8)]))
    assert rails(machine) == names(8)


def test_the_address_on_a_vlan_that_the_gid_table_names_tells_where_a_port_leads() -> None:
    rail = roce_port("mlx5_2", "eth2", gids=(gid(3, "10.1.2.5", "eth2.200"),), gid_choice=3)
    storage = roce_port("mlx5_3", "eth3")
    nets = (netdev_with("eth2"), netdev_with("eth2.200", "10.1.2.5/24", parent="eth2"), netdev_with("eth3"))
    machine = host(nics=(rail, storage), netdevs=nets)
    assert rails(machine)[0] == "mlx5_2"


def test_partitions_tell_ports_apart() -> None:
    ports = [infiniband_port(f"mlx5_{i}", pkeys=(0x8001,)) for i in range(3)]
    assert rails(host(nics=(*ports, infiniband_port("mlx5_3", pkeys=(0x0002,))))) == names(3)


def test_rails_are_numbered_in_order_of_the_gpus_beside_them() -> None:
    machine = host(nics=COMPUTE[:4], gpus=gpus_beside(("mlx5_3",), ("mlx5_2",), ("mlx5_1",), ("mlx5_0",)))
    assert rails(machine) == ["mlx5_3", "mlx5_2", "mlx5_1", "mlx5_0"]
    assert [gpu.rail for gpu in with_rails(machine).gpus] == [0, 1, 2, 3]


def test_gpus_at_the_same_rails_take_turns() -> None:
    both = ("mlx5_0", "mlx5_1")
    machine = with_rails(host(nics=COMPUTE[:2], gpus=gpus_beside(both, both, both, both)))
    assert [gpu.rail for gpu in machine.gpus] == [0, 1, 0, 1]


def test_without_topology_gpus_have_the_rail_of_their_number_where_there_are_as_many() -> None:
    assert [gpu.rail for gpu in with_rails(host(nics=COMPUTE, gpus=gpus_beside(*[()] * 8))).gpus] == list(range(8))
    assert [gpu.rail for gpu in with_rails(host(nics=COMPUTE, gpus=gpus_beside((), ()))).gpus] == [None, None]


def test_gpus_far_from_every_rail_have_none() -> None:
    machine = with_rails(host(nics=COMPUTE[:1], gpus=gpus_beside(("mlx5_0",), path="NODE")))
    assert machine.gpus[0].rail is None


def test_nearness_is_read_off_the_pci_tree() -> None:
    tree = (
        *switch(0x10, ("gpu", "0000:1a:00.0"), ("nic", "0000:1b:00.0")),
        *switch(0x20, ("gpu", "0000:2a:00.0"), ("nic", "0000:2b:00.0"), numa=1),
        *switch(0x30, ("nic", "0000:3b:00.0"), numa=1),
    )
    cards = [gpu.model_copy(update={"pci_address": f"0000:{i}a:00.0"}) for i, gpu in enumerate(gpus_beside((), ()), 1)]
    ports = [infiniband_port(f"mlx5_{i}", pci_address=f"0000:{3 - i}b:00.0") for i in range(3)]
    machine = with_rails(host(nics=ports, gpus=cards, pci=tree))
    assert [nic.device for nic in rails_of(machine)] == ["mlx5_2", "mlx5_1"]
    assert [gpu.rail for gpu in machine.gpus] == [0, 1]


def stated(machine: Host, *patterns: str) -> list[tuple[str, str]]:
    done = with_rails(machine, patterns)
    return [(finding.severity, finding.evidence) for finding in stated_rail_findings(done, patterns)]


def test_hosts_yaml_says_which_ports_are_the_rails() -> None:
    machine = storage_below_another_sm()
    assert rails(machine, ("mlx5_[8-9]",)) == ["mlx5_8", "mlx5_9"]
    assert rails(machine, ("mlx5_0:1", "mlx5_3")) == ["mlx5_0", "mlx5_3"]
    assert rails(machine, ("mlx5_?",)) == names(10)
    assert stated(machine, "mlx5_[8-9]") == []


def test_a_pattern_that_names_nothing_is_a_finding_and_refuses_where_no_rail_is_left() -> None:
    machine = storage_below_another_sm()
    listed = ", ".join(f"{name}:1" for name in names(10))
    assert stated(machine, "mlx5_0", "mlx4_*") == [("W", f"`rails:` names mlx4_*; the host has {listed}")]
    assert [severity for severity, _ in stated(machine, "mlx4_*")] == ["F"]
    assert [severity for severity, _ in stated(host(), "mlx4_*")] == ["I"]


def test_a_port_named_that_nccl_does_not_take_is_a_finding() -> None:
    elsewhere = roce_port("mlx5_8", None, usable_by_nccl_ib=False, why="netdev elsewhere")
    assert stated(host(nics=(*COMPUTE, elsewhere)), "mlx5_*") == [
        ("W", "`rails:` names mlx5_8:1 by mlx5_*: netdev elsewhere")
    ]


def test_stated_rails_are_of_one_kind() -> None:
    machine = host(nics=(*COMPUTE, roce_port("mlx5_8", "eth0")))
    assert rails(machine, ("mlx5_*",)) == names(8)
    assert [severity for severity, _ in stated(machine, "mlx5_*")] == ["W"]


def test_the_inventory_lists_rails_in_order_of_their_numbers() -> None:
    machine = with_rails(host(nics=COMPUTE[:2], gpus=gpus_beside(("mlx5_1",), ("mlx5_0",))))
    ((cluster,), _) = find_clusters([machine], {})
    assert cluster.fabric.ports[0].hcas == ("mlx5_1:1", "mlx5_0:1")


@given(seed=st.integers(0, 2**32))
def test_order_and_names_of_ports_never_change_which_of_them_are_rails(seed: int) -> None:
    choose = random.Random(seed)
    machine = some_machine(choose)
    wanted = {nic.port_guid for nic in rails_of(with_rails(machine))}
    names = [nic.device for nic in machine.nics]
    renamed = dict(zip(names, choose.sample([f"rdma{i}" for i in range(99)], len(names)), strict=True))
    ports = [nic.model_copy(update={"device": renamed[nic.device]}) for nic in machine.nics]
    cards = [
        gpu.model_copy(update={"nearest_nics": tuple(renamed[name] for name in gpu.nearest_nics)})
        for gpu in machine.gpus
    ]
    changed = machine.model_copy(update={"nics": tuple(choose.sample(ports, len(ports))), "gpus": tuple(cards)})
    found = with_rails(changed)
    assert {nic.port_guid for nic in rails_of(found)} == wanted
    assert sorted(nic.rail for nic in found.nics if nic.rail is not None) == list(range(len(wanted)))
    assert all(nic.rail_why for nic in found.nics)


def some_machine(choose: random.Random) -> Host:
    """Rails, storage of another number, front end; PCI addresses known, so that equal groups are told apart."""
    kind: Any = choose.choice(
        [infiniband_port, lambda device, rate=400, **facts: roce_port(device, facts.pop("net"), rate, **facts)]
    )
    count, storage = choose.choice([2, 4, 8]), choose.choice([0, 1, 3])
    ports, nets = [], []
    for number in range(count + storage):
        is_rail = number < count
        rate = 400 if is_rail else choose.choice([100, 400])
        facts: dict[str, Any] = {"pci_address": f"0000:{number:02x}:00.0", "port_guid": str(number)}
        if kind is infiniband_port:
            facts["sm_lid"] = 1 if is_rail else 9
        else:
            facts["net"] = f"eth{number}"
            nets.append(netdev_with(f"eth{number}", f"10.{1 if is_rail else 2}.0.{number + 1}/24"))
        ports.append(kind(f"mlx5_{number}", rate, **facts))
    ports.append(
        roce_port("mlx5_90", "bond0", choose.choice([100, 800]), pci_address="0000:f0:00.0", port_guid="front")
    )
    near = choose.random() < 0.5
    cards = gpus_beside(*[(f"mlx5_{i}",) if near else () for i in range(count)])
    nets.append(netdev_with("bond0", "10.9.0.1/24"))
    return host(nics=ports, netdevs=nets, gpus=cards, default_route_netdev="bond0")


def bridge(
    *lids: int, image: str | None = "b", rate: float = 100, sm_lid: int = 1, card: str = "MT4129"
) -> tuple[Nic, ...]:
    """Functions of a card below a subnet manager at `sm_lid`."""
    return tuple(
        infiniband_port(f"mlx5_{20 + at}", rate, lid=lid, sm_lid=sm_lid, hca_type=card, sys_image_guid=image)
        for at, lid in enumerate(lids)
    )


@pytest.mark.parametrize(
    ("ports", "gpu_name", "told"),
    [
        (bridge(1, 4, 5, 6), "", 4),  # several functions and their own manager
        (bridge(7, 8, 9, sm_lid=2), "NVIDIA B200", 3),  # several functions on such a board, the manager elsewhere
        (bridge(1, 4, image=None), "NVIDIA B300 SXM6 AC", 2),  # no GUID known
        ((*bridge(1, 4), *COMPUTE), "", 2),  # with faster rails
        (bridge(7, 8, sm_lid=2), "NVIDIA B200", 0),  # a storage card with two ports
        (bridge(1, 4, sm_lid=1, rate=400), "NVIDIA B200", 0),  # rails of a host where opensm runs
        (bridge(1), "NVIDIA H100 80GB HBM3", 0),  # two HDR100 hosts back to back
        (
            (*bridge(1, 4, image=None), infiniband_port("mlx5_9", 200)),
            "",
            0,
        ),  # HDR100 rails below opensm, and a faster port
        ((*bridge(1, 4, card="MT4119"), *COMPUTE), "NVIDIA B200", 0),  # EDR cards, which no such board has
        ((*bridge(7, 8, sm_lid=2), nic("efa_0", "EFA")), "", 2),
    ],
)
def test_functions_that_manage_nvswitches_are_told_by_two_signs(
    ports: tuple[Nic, ...], gpu_name: str, told: int
) -> None:
    found = with_bridges_marked(ports, [gpu_name], (), ())
    assert sum(port.nvlink_management for port in found) == told
    assert not any(port.usable_by_nccl_ib for port in found if port.nvlink_management)


def test_efa_adapters_are_rails_beside_slower_verbs_ports_and_not_beside_faster_ones() -> None:
    plugin = (OfiPlugin(path="/opt/amazon/ofi-nccl/lib/libnccl-net.so", version="1.17.1"),)
    adapters = tuple(nic(f"rdmap{i}s0", "EFA", usable_by_nccl_ib=False, rate_gbps=200.0) for i in range(2))
    slow, fast = roce_port("mlx5_0", "eth1", 100), roce_port("mlx5_0", "eth1", 800)
    net = (netdev_with("eth1", "10.1.1.5/24"),)
    assert rails(host(nics=(*adapters, slow), netdevs=net, ofi_plugins=plugin)) == ["rdmap0s0", "rdmap1s0"]
    assert rails(host(nics=(*adapters, fast), netdevs=net, ofi_plugins=plugin)) == ["mlx5_0"]


@pytest.mark.parametrize("driver", [None, "hv_netvsc", "bonding"])
def test_a_function_below_a_paravirtual_netdev_is_no_rail_and_below_a_bond_is(driver: str | None) -> None:
    kind = "bond" if driver == "bonding" else None
    above = netdev_with("eth0", "10.60.0.4/24", driver=driver, kind=kind)
    below = netdev_with("enP31006s1", master="eth0")
    machine = host(nics=(roce_port("mlx5_0", "enP31006s1"),), netdevs=(above, below))
    assert rails(machine) == (["mlx5_0"] if driver == "bonding" else [])
