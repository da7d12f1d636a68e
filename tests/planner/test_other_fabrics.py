"""Plans on fabrics other than InfiniBand and RoCE: EFA by NCCL's plugin, NVLink between hosts."""

from __future__ import annotations

from typing import Any

import pytest

from holmes_core.records.devices import Gpu
from holmes_core.records.inventory import Inventory, NvlinkDomain
from holmes_core.records.job import Job
from holmes_core.records.plan import Plan
from holmes_runtime.config.run_config import RunConfig
from launcher.prepare.bundle import RUN_CONFIG_FILE
from launcher.prepare.prepare import Attempt, prepare
from launcher.prepare.user_variables import UserVariables
from planner.advice.explain import nic_loads
from planner.cost.slot import INSIDE_EFFICIENCY
from planner.problem.networks import Networks
from tests.planner.fleets import GBPS, gpt_7b, gpu_inventory, plan_for

SMALL = {"num_layers": 8, "hidden_size": 1024, "num_heads": 16, "seq_length": 512, "vocab_size": 1000}
LIBRARY = "/opt/amazon/ofi-nccl/lib/libnccl-net.so"
GB200_NVLINK_BYTES_PER_S = INSIDE_EFFICIENCY * 18 * 50e9


def small(**changes: Any) -> Job:
    """A small GPT whose GPUs' speed is stated."""
    return gpt_7b(**({"model": SMALL, "global_batch_size": 64, "compute": {"flops_per_s": 1e14}} | changes))


def on_efa(sizes: tuple[int, ...] = (2, 2), rdma_gbps: float = 400.0) -> Inventory:
    """A cluster of EFA hosts, and one on InfiniBand where two sizes are given, two GPUs a host."""
    inventory = gpu_inventory(sizes, gpus_per_host=2, kinds=("EFA", "InfiniBand"), rdma_gbps=rdma_gbps)
    efa, *others = inventory.clusters
    ports = tuple(port.model_copy(update={"net_plugin": LIBRARY}) for port in efa.fabric.ports)
    fabric = efa.fabric.model_copy(update={"ports": ports, "net_name": "Libfabric"})
    return inventory.model_copy(update={"clusters": (efa.model_copy(update={"fabric": fabric}), *others)})


def rack(hosts: int = 2, imex: str | None = "active", in_domain: int | None = None) -> Inventory:
    """Trays of four GB200 on an InfiniBand fabric of 1600 Gbit/s a host, the first `in_domain` one NVLink domain."""
    inventory = gpu_inventory((hosts,), gpus_per_host=4, gpu_name="NVIDIA GB200", kinds=("InfiniBand",))
    gpus = tuple(
        Gpu(index=i, name="NVIDIA GB200", uuid=None, memory_bytes=186 * 2**30, pci_address=None, nvlinks_up=18)
        for i in range(4)
    )
    trays = tuple(host.model_copy(update={"gpus": gpus, "imex": imex}) for host in inventory.hosts)
    names = tuple(host.name for host in trays[: in_domain or hosts])
    domain = NvlinkDomain(name="nvlink-1", hosts=names, cluster_uuid="9c6f5af3", clique=4026)
    return inventory.model_copy(update={"hosts": trays, "nvlink_domains": (domain,)})


def environments(plan: Plan) -> dict[str, dict[str, str]]:
    return {node.host: {each.name: each.value for each in node.environment} for node in plan.nodes}


def test_groups_inside_an_efa_cluster_use_the_plugin_s_network_and_those_between_clusters_sockets() -> None:
    plan = plan_for(on_efa(), small(parallel={"pp": 2, "dp": 4}))
    used = {(group.axis, group.network, group.net_name) for group in plan.groups}
    assert {("dp", "a", "Libfabric"), ("dp", "b", "IB"), ("pp_forward", "shared", "Socket")} <= used


def test_efa_is_priced_at_the_rate_of_its_adapters() -> None:
    path = Networks(on_efa(rdma_gbps=400.0), small()).route(["a1", "a2"])
    assert (path.net_name, path.bandwidths) == ("Libfabric", (400 * GBPS, 400 * GBPS))


def test_efa_without_a_rate_falls_back_to_sockets() -> None:
    assert Networks(on_efa(rdma_gbps=0.0), small()).route(["a1", "a2"]).net_name == "Socket"


def test_efa_nodes_load_the_plugin_and_keep_verbs_out_of_it() -> None:
    found = environments(plan_for(on_efa(), small(parallel={"pp": 2, "dp": 4})))
    assert found["a1"]["NCCL_NET_PLUGIN"] == LIBRARY
    assert not {"NCCL_IB_HCA", "NCCL_IB_DISABLE", "NCCL_NET"} & set(found["a1"])
    assert "NCCL_NET_PLUGIN" not in found["b1"]
    assert found["a1"]["NCCL_SOCKET_IFNAME"] == "=eth0"


def test_a_dry_run_on_efa_sends_each_rank_its_group_s_network() -> None:
    plan = plan_for(on_efa((2,)), small(parallel={"pp": 1, "dp": 4}))
    bundles = prepare(plan, Attempt("r"), UserVariables({}, {}))
    for bundle in bundles:
        files = {name: text for parcel in bundle.parcels for name, text in parcel.files.items()}
        assert {group.net_name for group in RunConfig.from_json(files[RUN_CONFIG_FILE]).groups} == {"Libfabric"}
    assert all(f"NCCL_NET_PLUGIN={LIBRARY}" in text for text in node_environments(bundles))


def node_environments(bundles: Any) -> list[str]:
    """What each node's own files say, as one text."""
    return ["\n".join(bundle.files.values()) for bundle in bundles]


def test_nvlink_of_one_domain_is_priced_before_the_nics() -> None:
    path = Networks(rack(), small()).route(["a1", "a2"])
    assert path.bandwidths == (GB200_NVLINK_BYTES_PER_S, GB200_NVLINK_BYTES_PER_S)
    assert (path.nvlink, path.net_name) == (True, "IB")


@pytest.mark.parametrize("imex", ["inactive", None])
def test_without_imex_known_to_run_the_nics_are_priced(imex: str | None) -> None:
    path = Networks(rack(imex=imex), small()).route(["a1", "a2"])
    assert (path.nvlink, path.bandwidths) == (False, (1600 * GBPS, 1600 * GBPS))


def test_a_cluster_larger_than_its_nvlink_domain_is_priced_by_nics() -> None:
    networks = Networks(rack(hosts=3, in_domain=2), small())
    assert not networks.route(["a1", "a2"]).nvlink
    assert networks.rates("a1").fabric_bytes_per_s == 1600 * GBPS


@pytest.mark.parametrize(("imex", "value"), [("inactive", "0"), ("active", None), (None, None)])
def test_nccl_is_told_to_leave_nvlink_between_hosts_alone_only_where_imex_is_known_not_to_run(
    imex: str | None, value: str | None
) -> None:
    plan = plan_for(rack(imex=imex), small(parallel={"pp": 1, "dp": 8}))
    assert {found.get("NCCL_MNNVL_ENABLE") for found in environments(plan).values()} == {value}


def test_a_plan_on_a_rack_says_that_nvlink_carries_its_groups_and_at_which_rate() -> None:
    plan = plan_for(rack(), small(parallel={"pp": 1, "dp": 8}))
    (group,) = plan.groups
    assert (group.axis, group.nvlink, group.bandwidth_bytes_per_s) == ("dp", True, GB200_NVLINK_BYTES_PER_S)
    loads = nic_loads(rack(), plan)
    assert {load.bandwidth_bytes_per_s for load in loads} == {GB200_NVLINK_BYTES_PER_S}


def test_a_step_on_a_rack_is_shorter_with_nvlink_than_over_nics() -> None:
    job = small(parallel={"pp": 1, "dp": 8})
    with_nvlink, without = plan_for(rack(), job), plan_for(rack(imex="inactive"), job)
    assert with_nvlink.prediction.step_s < without.prediction.step_s


def test_a_dry_run_on_a_rack_needs_no_variable_for_nvlink() -> None:
    plan = plan_for(rack(), small(parallel={"pp": 2, "dp": 4}))
    bundles = prepare(plan, Attempt("r"), UserVariables({}, {}))
    assert len(bundles) == 2
    assert not any("MNNVL" in text for text in node_environments(bundles))


def test_hosts_of_other_makers_are_left_out_of_the_plan() -> None:
    inventory = on_efa((3,))
    amd = inventory.hosts[2].model_copy(update={"gpus": (), "other_accelerators": ("AMD Instinct MI300X",) * 8})
    plan = plan_for(inventory.model_copy(update={"hosts": (*inventory.hosts[:2], amd)}), small())
    assert {node.host for node in plan.nodes} == {"a1", "a2"}
