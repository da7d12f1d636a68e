"""Which network each group uses, and the environment that goes with it."""

from __future__ import annotations

from typing import Any

import pytest

from holmes_core.errors import HolmesError
from holmes_core.node_settings import CONSTANT
from holmes_core.records.inventory import FabricKind, Inventory
from holmes_core.records.link import Security
from holmes_core.records.plan import TUNNEL_NETDEV
from planner.cost.collectives import tcp_payload_share
from planner.problem.networks import Networks
from tests.planner.fleets import GBPS, bed_job, cpu_inventory, gpt_7b, gpu_inventory, plan_for
from tests.planner.measured_links import measured, with_links, with_trunk

CONSTANTS = {setting.name: setting.value for setting in CONSTANT}
SMALL = {"num_layers": 8, "hidden_size": 1024, "num_heads": 16, "seq_length": 512, "vocab_size": 1000}


def gpu_job(**changes: Any) -> Any:
    """A small GPT on GPUs."""
    return gpt_7b(**({"model": SMALL, "global_batch_size": 64} | changes))


def variables(inventory: Inventory) -> dict[str, dict[str, str]]:
    """By host, the environment of a plan that uses all hosts, two GPUs each."""
    plan = plan_for(inventory, gpu_job(parallel={"pp": 2, "dp": 4}))
    return {node.host: {v.name: v.value for v in node.environment} for node in plan.nodes}


def mixed(second: FabricKind = "RoCE") -> Inventory:
    """Two hosts on InfiniBand, two on `second`, two GPUs each."""
    return gpu_inventory([2, 2], gpus_per_host=2, kinds=("InfiniBand", second))


def test_rdma_is_used_inside_clusters_and_sockets_between() -> None:
    plan = plan_for(mixed(), gpu_job(parallel={"pp": 2, "dp": 4, "schedule": "1f1b"}))
    used = {(group.axis, group.network, group.net_name) for group in plan.groups}
    assert {("dp", "a", "IB"), ("dp", "b", "IB"), ("pp_forward", "shared", "Socket")} <= used


def test_rdma_bandwidth_counts_inside_a_cluster() -> None:
    assert Networks(mixed(), gpu_job()).route(["a1", "a2"]).bandwidths == (1600 * GBPS, 1600 * GBPS)


def test_sockets_of_an_ethernet_cluster_use_the_shared_network_on_cuda() -> None:
    # NCCL takes one list of socket interfaces for the whole process.
    path = Networks(mixed("Ethernet"), gpu_job()).route(["b1", "b2"])
    assert (path.network, path.net_name, path.interfaces) == ("shared", "Socket", ("eth0", "eth0"))


def test_gloo_of_an_ethernet_cluster_uses_its_fabric() -> None:
    path = Networks(cpu_inventory([2, 2]), bed_job()).route(["b1", "b2"])
    assert (path.network, path.net_name, path.interfaces) == ("b", None, ("eth1", "eth1"))


def test_unknown_rdma_rate_falls_back_to_sockets() -> None:
    inventory = mixed()
    fabric = inventory.clusters[0].fabric
    ports = tuple(port.model_copy(update={"rdma_bandwidth_bytes_per_s": None}) for port in fabric.ports)
    cluster = inventory.clusters[0].model_copy(update={"fabric": fabric.model_copy(update={"ports": ports})})
    inventory = inventory.model_copy(update={"clusters": (cluster, inventory.clusters[1])})
    assert Networks(inventory, gpu_job()).route(["a1", "a2"]).net_name == "Socket"


def test_replicas_of_one_host_share_its_nic() -> None:
    plan = plan_for(cpu_inventory([1, 1]), bed_job(slots_per_host=2))
    edges = [group.bandwidth_bytes_per_s for group in plan.groups if group.axis == "pp_forward"]
    assert edges == pytest.approx([tcp_payload_share(1500) * 0.1 * GBPS / 2] * 2)


def test_host_without_an_interface_on_the_network_is_named() -> None:
    inventory = cpu_inventory([2, 2])
    assert inventory.shared is not None
    shared = inventory.shared.model_copy(update={"ports": inventory.shared.ports[:3]})
    with pytest.raises(HolmesError, match="host b2: no interface on network shared"):
        plan_for(inventory.model_copy(update={"shared": shared}), bed_job())


def test_each_node_gets_its_own_adapters_and_exact_interfaces() -> None:
    found = variables(mixed("Ethernet"))
    hcas = ",".join(f"mlx5_{index}:1" for index in range(8))
    assert found["a1"] == {
        "GLOO_SOCKET_IFNAME": "eth0",
        "OMP_NUM_THREADS": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "NCCL_SOCKET_IFNAME": "=eth0",
        "NCCL_IB_HCA": f"={hcas}",
        **CONSTANTS,
    }
    assert found["b1"] == {
        "GLOO_SOCKET_IFNAME": "eth0",
        "OMP_NUM_THREADS": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "NCCL_SOCKET_IFNAME": "=eth0",
        "NCCL_IB_DISABLE": "1",
        **CONSTANTS,
    }


def test_cpu_nodes_get_no_nccl_variables() -> None:
    plan = plan_for(cpu_inventory([2, 2]), bed_job(threads_per_slot=3))
    names = {variable.name: variable.value for variable in plan.nodes[0].environment}
    assert names == {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "3"}


def test_nodes_carry_their_shared_address() -> None:
    plan = plan_for(cpu_inventory([2, 2]), bed_job())
    assert [(node.host, node.shared_address) for node in plan.nodes][:2] == [("a1", "10.0.0.1"), ("a2", "10.0.0.2")]


def encrypting(inventory: Inventory, tunnel_gbps: float | None = None) -> Inventory:
    """The inventory of a site that asks for encryption between clusters."""
    return inventory.model_copy(update={"security": Security(between_clusters="wireguard", tunnel_gbps=tunnel_gbps)})


def test_what_crosses_clusters_goes_through_the_tunnel_and_nothing_else_does() -> None:
    plan = plan_for(encrypting(mixed()), gpu_job(parallel={"pp": 2, "dp": 4, "schedule": "1f1b"}))
    used = {(group.network, group.net_name, *group.interfaces) for group in plan.groups if len(group.ranks) == 2}
    assert ("shared", "Socket", TUNNEL_NETDEV, TUNNEL_NETDEV) in used
    assert {interface for group in plan.groups if group.net_name == "IB" for interface in group.interfaces} == {"eth1"}
    environment = {variable.name: variable.value for variable in plan.nodes[0].environment}
    assert environment["NCCL_SOCKET_IFNAME"] == f"={TUNNEL_NETDEV}"
    assert environment["GLOO_SOCKET_IFNAME"] == TUNNEL_NETDEV


def test_nodes_reach_each_other_at_tunnel_addresses_and_the_tunnel_at_theirs() -> None:
    nodes = plan_for(encrypting(cpu_inventory([2, 2])), bed_job()).nodes
    assert [node.shared_address for node in nodes] == [f"198.18.0.{number}" for number in range(1, 5)]
    assert sorted(str(node.tunnel_endpoint) for node in nodes) == ["10.0.0.1", "10.0.0.2", "10.0.1.1", "10.0.1.2"]


def test_one_cluster_needs_no_tunnel() -> None:
    nodes = plan_for(encrypting(cpu_inventory([4])), bed_job()).nodes
    assert {(node.shared_netdev, node.tunnel_endpoint) for node in nodes} == {("eth0", None)}


@pytest.mark.parametrize(
    ("gbps", "payload_bytes_per_s"),
    # 1368 of 1518 bytes of a frame are payload; 0.05 Gbit/s of payload is less than that of 0.1 Gbit/s on the wire
    [(None, 0.1e9 / 8 * 1368 / 1518), (0.05, 0.05e9 / 8), (10.0, 0.1e9 / 8 * 1368 / 1518)],
)
def test_a_tunnel_has_its_headers_off_the_wire_and_no_more_than_hosts_encrypt(
    gbps: float | None, payload_bytes_per_s: float
) -> None:
    path = Networks(encrypting(cpu_inventory([2, 2]), gbps), bed_job()).route(["a1", "b1"])
    assert path.bandwidths == pytest.approx((payload_bytes_per_s, payload_bytes_per_s))


def test_a_measured_link_and_a_trunk_carry_as_much_less_in_a_tunnel() -> None:
    inventory = with_links(with_trunk(cpu_inventory([2, 2]), "ab", 8e6), measured(("a1", "b1"), 5e6))
    plain, tunnelled = (Networks(each, bed_job()).connection("a", "b") for each in (inventory, encrypting(inventory)))
    less = (1368 / 1518) / tcp_payload_share(1500)
    assert plain.median.bytes_per_s == pytest.approx(5e6)
    assert tunnelled.median.bytes_per_s == pytest.approx(5e6 * less)
    assert tunnelled.trunk_bytes_per_s == pytest.approx(8e6 * less)
    limited = Networks(encrypting(inventory, 0.024), bed_job()).connection("a", "b")
    assert limited.median.bytes_per_s == pytest.approx(3e6)
