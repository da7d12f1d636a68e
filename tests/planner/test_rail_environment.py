"""What the nodes' environment says of their rails, and that a user's own word comes first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holmes_core.records.devices import Gid, Nic
from holmes_core.records.inventory import Inventory, NcclSetting
from holmes_core.records.job import Job
from launcher.prepare.prepare import Attempt, prepare
from launcher.prepare.user_variables import UserVariables
from planner.layout.rail_environment import rail_environment
from tests.planner.fleets import gpt_7b, gpu_inventory, plan_for
from tests.planner.railed_fleets import railed_inventory, with_host


def said(inventory: Inventory, *names: str, **job: Any) -> dict[str, dict[str, str]]:
    """By host, the variables and their values."""
    found = rail_environment(inventory, gpt_7b(**job), names or ("a1", "a2"))
    return {name: {variable.name: variable.value for variable in of_host} for name, of_host in found.items()}


def with_nics(inventory: Inventory, name: str, change: Callable[[Nic], Nic]) -> Inventory:
    return with_host(inventory, name, nics=tuple(change(nic) for nic in inventory.host(name).nics))


def vlan_first(nic: Nic) -> Nic:
    """An IPv4 address on a VLAN, whose GIDs come before those of the port's own address."""
    of_vlan = {"gid": "::ffff:a09:1", "ipv4": "10.9.0.1", "netdev": f"{nic.netdev}.9"}
    vlan = [gid.model_copy(update=of_vlan) for gid in nic.gids[2:]]
    moved = [gid.model_copy(update={"index": gid.index + 2}) for gid in nic.gids[2:]]
    return nic.model_copy(update={"gids": (*nic.gids[:2], *vlan, *moved)})


def only_ipv6(nic: Nic, address: str = "fd00::1") -> Nic:
    kept = [gid.model_copy(update={"gid": address, "ipv4": None}) for gid in nic.gids[2:]]
    return nic.model_copy(update={"gids": (*nic.gids[:2], *kept), "gid_choice": None})


def both_families(nic: Nic) -> Nic:
    sixth = Gid(index=5, gid="fd00::2", type="RoCE v2", netdev=nic.netdev)
    return nic.model_copy(update={"gids": (*nic.gids, sixth)})


def test_rails_apart_in_one_cluster_are_told_to_all_nodes() -> None:
    inventory = railed_inventory([2, 2])
    b = inventory.clusters[1]
    joined = b.model_copy(update={"fabric": b.fabric.model_copy(update={"rails_apart": False})})
    inventory = inventory.model_copy(update={"clusters": (inventory.clusters[0], joined)})
    found = rail_environment(inventory, gpt_7b(), ("a1", "a2", "b1"))
    assert {name: [v.value for v in of if v.name == "NCCL_CROSS_NIC"] for name, of in found.items()} == {
        "a1": ["0"],
        "a2": ["0"],
        "b1": ["0"],
    }
    assert "rails of cluster a do not reach one another" in found["b1"][0].reason


@pytest.mark.parametrize("apart", [None, False])
def test_nothing_is_said_of_rails_that_may_reach_one_another(apart: bool | None) -> None:
    assert said(railed_inventory([2], apart=apart)) == {"a1": {}, "a2": {}}


def test_a_host_alone_in_its_cluster_has_no_rails_to_keep() -> None:
    assert said(railed_inventory([2, 1], bond=True), "a1", "b1") == {"a1": {}, "b1": {}}


def test_hosts_of_a_cluster_open_as_many_queue_pairs_as_one_bond_among_them_needs() -> None:
    inventory = railed_inventory([3, 2], num_rails=1, apart=None)
    inventory = with_nics(inventory, "a2", lambda nic: nic.model_copy(update={"bond": True}))
    assert said(inventory, "a1", "a2", "b1", "b2") == {
        "a1": {"NCCL_IB_QPS_PER_CONNECTION": "2"},
        "a2": {"NCCL_IB_QPS_PER_CONNECTION": "2"},
        "b1": {},
        "b2": {},
    }


def test_a_bond_that_is_no_rail_needs_no_queue_pairs() -> None:
    inventory = railed_inventory([2], num_rails=9, apart=None)
    storage = inventory.host("a1").nics[8].model_copy(update={"bond": True, "rail": None})
    inventory = with_host(inventory, "a1", nics=(*inventory.host("a1").nics[:8], storage))
    assert said(inventory) == {"a1": {}, "a2": {}}


def test_a_host_where_a_vlan_comes_first_takes_the_ports_own_gid_as_the_others_do() -> None:
    inventory = with_nics(railed_inventory([2], apart=None), "a1", vlan_first)
    assert said(inventory) == {"a1": {"NCCL_IB_GID_INDEX": "5"}, "a2": {}}


def test_where_all_rails_take_a_vlans_gid_nccl_is_left_alone() -> None:
    inventory = with_nics(railed_inventory([2], apart=None), "a1", vlan_first)
    assert said(with_nics(inventory, "a2", vlan_first)) == {"a1": {}, "a2": {}}


def test_no_index_is_said_where_one_rail_has_its_own_gid_elsewhere() -> None:
    inventory = railed_inventory([2], apart=None)
    first = inventory.host("a1").nics[0]
    assert said(with_host(inventory, "a1", nics=(vlan_first(first), *inventory.host("a1").nics[1:]))) == {
        "a1": {},
        "a2": {},
    }


def test_hosts_with_ipv6_alone_and_peers_that_have_it_too_take_ipv6() -> None:
    inventory = with_nics(railed_inventory([2], apart=None), "a1", only_ipv6)
    inventory = with_nics(inventory, "a2", both_families)
    assert said(inventory) == {name: {"NCCL_IB_ADDR_FAMILY": "AF_INET6"} for name in ("a1", "a2")}


def test_ipv6_that_a_peer_lacks_or_that_is_link_local_is_not_asked_for() -> None:
    inventory = with_nics(railed_inventory([2], apart=None), "a1", only_ipv6)
    assert said(inventory) == {"a1": {}, "a2": {}}
    inventory = with_nics(inventory, "a1", lambda nic: only_ipv6(nic, "fe80::1"))
    assert said(with_nics(inventory, "a2", both_families)) == {"a1": {}, "a2": {}}


def infiniband(*tables: tuple[int, ...]) -> Inventory:
    """Hosts whose rails have these P_Keys, host by host."""
    inventory = gpu_inventory([len(tables)])
    for host, table in zip(inventory.hosts, tables, strict=True):
        rails = railed_inventory([1]).host("a1").nics
        update = {"kind": "InfiniBand", "pkeys": table, "gids": ()}
        inventory = with_host(inventory, host.name, nics=tuple(nic.model_copy(update=update) for nic in rails))
    return inventory


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((0x7FFF, 0x8001), (0x7FFF, 0, 0x8001), ["1", "2"]),
        ((0x8001,), (0x7FFF, 0x8001), ["", "1"]),
        ((0xFFFF, 0x8001), (0xFFFF, 0x8001), ["", ""]),
        ((0xFFFF, 0x8001), (0x7FFF, 0x8001), ["", ""]),
        ((0x7FFF, 0x8001, 0x8002), (0x7FFF, 0x8001, 0x8002), ["", ""]),
        ((0x7FFF, 0x8001), (0x7FFF,), ["", ""]),
    ],
)
def test_hosts_use_the_partition_in_which_all_are_full_members(
    first: tuple[int, ...], second: tuple[int, ...], expected: list[str]
) -> None:
    found = said(infiniband(first, second))
    assert [found[name].get("NCCL_IB_PKEY", "") for name in ("a1", "a2")] == expected


def test_gids_nobody_read_say_nothing() -> None:
    inventory = with_nics(railed_inventory([2], apart=None), "a1", vlan_first)
    assert said(with_nics(inventory, "a2", lambda nic: nic.model_copy(update={"gids": ()}))) == {"a1": {}, "a2": {}}


def test_what_the_user_sets_is_left_to_the_user() -> None:
    inventory = railed_inventory([2], bond=True)
    launch = {"environment": {"NCCL_CROSS_NIC": "1"}}
    assert said(inventory, launch=launch)["a1"] == {"NCCL_IB_QPS_PER_CONNECTION": "2"}


def test_what_a_host_has_set_already_is_left_to_the_site() -> None:
    inventory = railed_inventory([2], bond=True)
    settings = tuple(
        NcclSetting(where="/etc/nccl.conf", name=name, value="4")
        for name in ("NCCL_IB_QPS_PER_CONNECTION", "NCCL_CROSS_NIC")
    )
    inventory = with_host(inventory, "a2", nccl_settings=settings)
    assert said(inventory) == {"a1": {"NCCL_CROSS_NIC": "0"}, "a2": {"NCCL_CROSS_NIC": "0"}}


def launched(inventory: Inventory, **job: Any) -> list[str]:
    """What each node's own files say, as one text."""
    plan = plan_for(inventory, gpt_7b(parallel={"pp": 4, "dp": 4}, **job))
    variables = UserVariables(job.get("launch", {}).get("environment", {}), {})
    return ["\n".join(bundle.files.values()) for bundle in prepare(plan, Attempt("r"), variables)]


@pytest.mark.slow
def test_a_dry_run_sends_each_node_what_its_rails_need() -> None:
    inventory = with_nics(railed_inventory([2], bond=True), "a1", vlan_first)
    first, second = launched(inventory)
    for text in (first, second):
        assert "NCCL_CROSS_NIC=0" in text
        assert "NCCL_IB_QPS_PER_CONNECTION=2" in text
    assert "NCCL_IB_GID_INDEX=5" in first
    assert "NCCL_IB_GID_INDEX" not in second


@pytest.mark.slow
def test_a_dry_run_sends_the_users_value_where_there_is_one() -> None:
    texts = launched(railed_inventory([2]), launch={"environment": {"NCCL_CROSS_NIC": "1"}})
    assert all("NCCL_CROSS_NIC=1" in text and "NCCL_CROSS_NIC=0" not in text for text in texts)


def test_fabrics_without_rails_and_jobs_on_cpus_get_nothing() -> None:
    assert said(gpu_inventory([2], kinds=("Ethernet",))) == {"a1": {}, "a2": {}}
    job: Job = gpt_7b().model_copy(update={"device": "cpu"})
    assert rail_environment(railed_inventory([2]), job, ("a1",)) == {"a1": ()}


def test_plans_carry_what_is_said_with_its_reason() -> None:
    plan = plan_for(railed_inventory([2], bond=True), gpt_7b(parallel={"pp": 4, "dp": 4}))
    (variables,) = {node.environment[-2:] for node in plan.nodes}
    assert [(v.name, v.value) for v in variables] == [("NCCL_CROSS_NIC", "0"), ("NCCL_IB_QPS_PER_CONNECTION", "2")]
    assert all(variable.reason for variable in variables)
