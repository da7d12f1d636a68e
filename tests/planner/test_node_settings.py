"""The variables that plans set: all of one table, each with its reason, and the user's where nothing counts on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from holmes_core.errors import HolmesError
from holmes_core.node_settings import CONSTANT, QUEUES, SETTINGS
from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import Plan
from holmes_runtime.node.near_cpus import RANK_CPUS
from launcher.prepare.prepare import node_environment
from launcher.prepare.user_variables import UserVariables
from planner.advice.unused_fabric import unused_fabric_sentences
from tests import doc_settings
from tests.planner.fleets import bed_job, cpu_inventory, gpt_7b, gpu_inventory, plan_for
from tests.planner.railed_fleets import railed_inventory
from tests.seeds import few_of

SMALL = {"num_layers": 8, "hidden_size": 1024, "num_heads": 16, "seq_length": 512, "vocab_size": 1000}
FIRST, SECOND = "0-15,32-47", "16-31,48-63"
TWO_RANKS = {"tp": 1, "pp": 2, "dp": 1}


def small_gpu_plan(inventory: Inventory, **job: Any) -> Plan:
    """Two hosts of two GPUs, pp 2."""
    return plan_for(inventory, gpt_7b(**{"model": SMALL, "global_batch_size": 64, "parallel": {"pp": 2}, **job}))


def with_near_cpus(cpus: Sequence[str | None]) -> Inventory:
    """Two hosts whose GPUs have these CPUs near them."""
    inventory = gpu_inventory([1, 1], gpus_per_host=len(cpus))
    gpus = tuple(gpu.model_copy(update={"cpus": near}) for gpu, near in zip(inventory.hosts[0].gpus, cpus, strict=True))
    hosts = tuple(host.model_copy(update={"gpus": gpus}) for host in inventory.hosts)
    return inventory.model_copy(update={"hosts": hosts})


def values(plan: Plan) -> dict[str, str]:
    """Of the first node, by name."""
    return {variable.name: variable.value for variable in plan.nodes[0].environment}


@pytest.mark.parametrize(
    "planned",
    [
        lambda: plan_for(cpu_inventory([2, 2]), bed_job()),
        lambda: small_gpu_plan(with_near_cpus([FIRST, SECOND])),
        lambda: small_gpu_plan(gpu_inventory([1, 1], gpus_per_host=2, kinds=("Ethernet", "RoCE"))),
        lambda: small_gpu_plan(railed_inventory([2], bond=True), parallel={"pp": 2, "dp": 8}),
    ],
    ids=["cpus", "gpus", "ethernet", "rails"],
)
def test_every_variable_of_a_plan_is_in_the_table_and_has_a_reason(planned: Callable[[], Plan]) -> None:
    plan = planned()
    for node in plan.nodes:
        names = [variable.name for variable in node.environment]
        assert set(names) <= set(SETTINGS)
        assert len(names) == len(set(names))
        assert all(variable.reason for variable in node.environment)


def test_every_node_with_gpus_has_the_constant_settings_and_no_node_without() -> None:
    constant = {setting.name: setting.value for setting in CONSTANT}
    assert constant.items() <= values(small_gpu_plan(gpu_inventory([1, 1], gpus_per_host=2))).items()
    assert not constant.keys() & values(plan_for(cpu_inventory([2, 2]), bed_job())).keys()


def test_the_page_of_settings_is_the_table() -> None:
    text = doc_settings.PAGE.read_text(encoding="utf-8")
    assert text == doc_settings.page(text)


def test_ranks_stay_on_the_cpus_near_their_gpus() -> None:
    plan = small_gpu_plan(with_near_cpus([FIRST, SECOND]), parallel=TWO_RANKS)
    assert values(plan)[RANK_CPUS] == f"{FIRST};{SECOND}"
    assert [rank.cpus for rank in plan.ranks] == [FIRST, SECOND]


def test_ranks_of_one_numa_node_divide_its_cpus_with_their_hardware_threads() -> None:
    plan = small_gpu_plan(with_near_cpus([FIRST, FIRST]), parallel=TWO_RANKS)
    assert [rank.cpus for rank in plan.ranks] == ["0-7,32-39", "8-15,40-47"]
    assert values(plan)[RANK_CPUS] == "0-7,32-39;8-15,40-47"


@pytest.mark.parametrize("cpus", [(None, FIRST), ("N/A", FIRST), ("", ""), ("0-15", "15-31"), ("3-1", "3-1")])
def test_ranks_stay_nowhere_where_it_is_not_known_or_cannot_be(cpus: tuple[str | None, ...]) -> None:
    plan = small_gpu_plan(with_near_cpus(cpus), parallel=TWO_RANKS)
    assert RANK_CPUS not in values(plan)
    assert [rank.cpus for rank in plan.ranks] == [None, None]


def test_an_older_name_of_the_user_s_leaves_ours_out() -> None:
    launch = {"environment": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}}
    found = values(small_gpu_plan(gpu_inventory([1, 1], gpus_per_host=2), launch=launch))
    assert "PYTORCH_ALLOC_CONF" not in found
    assert "NCCL_LAUNCH_ORDER_IMPLICIT" in found


def test_the_user_s_value_counts_where_the_plan_does_not_count_on_its_own() -> None:
    node, *_ = small_gpu_plan(gpu_inventory([1, 1], gpus_per_host=2)).nodes
    users = {"NCCL_LAUNCH_ORDER_IMPLICIT": "0", "PYTORCH_ALLOC_CONF": "max_split_size_mb:512"}
    assert users.items() <= node_environment(node, UserVariables(users, {})).items()


def test_a_value_that_contradicts_the_plan_is_refused_and_the_same_one_is_not() -> None:
    node, *_ = small_gpu_plan(gpu_inventory([1, 1], gpus_per_host=2)).nodes
    same = UserVariables({"NCCL_SOCKET_IFNAME": "=eth0"}, {})
    assert node_environment(node, same)["NCCL_SOCKET_IFNAME"] == "=eth0"
    for users in (UserVariables({"NCCL_SOCKET_IFNAME": "eth1"}, {}), UserVariables({}, {"NCCL_SOCKET_IFNAME": "x"})):
        with pytest.raises(HolmesError, match="launch sets NCCL_SOCKET_IFNAME, which the plan sets to '=eth0' on a1"):
            node_environment(node, users)


def test_a_faster_network_that_nccl_cannot_use_is_told() -> None:
    inventory = gpu_inventory([1, 2], gpus_per_host=2, kinds=("InfiniBand", "Ethernet"))
    plan = small_gpu_plan(inventory, parallel={"pp": 1, "dp": 6}, global_batch_size=48)
    across = unused_fabric_sentences(plan, inventory)
    inventory = gpu_inventory([2, 2], gpus_per_host=2, kinds=("InfiniBand", "Ethernet"))
    (sentence,) = unused_fabric_sentences(small_gpu_plan(inventory, parallel={"pp": 2, "dp": 4}), inventory)
    assert across == ()  # no group of several hosts stays inside b
    assert sentence.startswith("Cluster b's own network, eth1 of b")
    assert "also use eth0" in sentence


def test_clusters_on_rdma_leave_nothing_unused() -> None:
    inventory = gpu_inventory([2, 2], gpus_per_host=2)
    assert unused_fabric_sentences(small_gpu_plan(inventory, parallel={"pp": 2, "dp": 4}), inventory) == ()


@pytest.mark.parametrize(
    ("engine", "tp", "gpu", "queues"),
    few_of(
        1,
        [
            ("megatron", 2, "NVIDIA H100 80GB HBM3", "1"),
            ("megatron", 1, "NVIDIA H100 80GB HBM3", None),
            ("megatron", 2, "NVIDIA B200", None),
            ("megatron", 2, "NVIDIA GB200", None),
            ("torchtitan", 1, "NVIDIA H100 80GB HBM3", "8"),
            ("deepspeed", 1, "NVIDIA H100 80GB HBM3", None),
        ],
    ),
)
def test_a_trainer_has_its_engine_s_settings_and_not_the_bundled_runtime_s(
    engine: str, tp: int, gpu: str, queues: str | None
) -> None:
    trainer = {"engine": engine, "command": ["python", "train.py"]}
    inventory = gpu_inventory([1, 1], gpus_per_host=2, gpu_name=gpu)
    found = values(small_gpu_plan(inventory, trainer=trainer, data=None, parallel={"pp": 2, "tp": tp}))
    assert found.pop(QUEUES, None) == queues
    assert not found.keys() & {"OMP_NUM_THREADS", *(setting.name for setting in CONSTANT)}
    assert found["NCCL_SOCKET_IFNAME"] == "=eth0"


def test_a_trainer_on_cpus_has_the_network_alone() -> None:
    trainer = {"engine": "torch", "command": ["python", "train.py"]}
    plan = plan_for(cpu_inventory([2, 2]), bed_job(trainer=trainer, data=None, parallel={}))
    assert values(plan) == {"GLOO_SOCKET_IFNAME": "eth0"}
