"""Each check finds its own fault, names host and value, and finds nothing on healthy nodes."""

from __future__ import annotations

from typing import Any

import pytest

from holmes_core.errors import HostError
from holmes_core.records.plan import EnvironmentVariable, Plan
from holmes_runtime.config.messages import NodeCheckpointFolder, NodeGpu, NodeGpuProcess, NodeInterface, NodeNcclSetting
from launcher.nodes.node_checks import check_facts
from launcher.nodes.preflight import CHECKS, Fault, Preflight, host_fault, remedy_of
from tests.launcher.plans import cpu_plan, gpu_plan, healthy_answers

PLAN = gpu_plan()
HOST = PLAN.nodes[1].host
UP = NodeInterface(up=True, address=None)
READ_ONLY = NodeCheckpointFolder("/data", writable=False, free_bytes=1)
NET_IB = NodeNcclSetting("~/.bashrc", "NCCL_NET", "IB")
DOCKER0 = NodeNcclSetting("/etc/nccl.conf", "NCCL_SOCKET_IFNAME", "docker0")
UUID = f"GPU-{HOST}-0"
PYTHON = NodeGpuProcess(UUID, "4711", "python")


def faults(plan: Plan, **facts: Any) -> list[Fault]:
    """What is found when node 1 says these facts."""
    answers = healthy_answers(plan)
    answers[1] = answers[1]._replace(facts=answers[1].facts._replace(**facts))
    return list(check_facts(plan, None, answers))


@pytest.mark.parametrize("plan", [PLAN, cpu_plan()], ids=["gpus", "cpus"])
def test_healthy_nodes_have_no_fault(plan: Plan) -> None:
    assert faults(plan) == []


@pytest.mark.parametrize(
    ("check", "evidence", "facts"),
    [
        ("torch", "/usr/bin/python3 has no torch", {"torch": None}),
        ("versions", "python 3.11, where most have 3.12", {"python": "3.11.2"}),
        ("versions", "nccl 2.26.2, where most have 2.27.5", {"nccl": "2.26.2"}),
        ("gpus", "no GPU 1; there are 0", {"gpus": (NodeGpu(0, UUID, "A100"),)}),
        ("gpus", "nvidia-smi does not answer", {"gpus": None}),
        ("gpus-free", "process 4711 (python) is on GPU 0", {"gpu_processes": (PYTHON,)}),
        ("interfaces", "no interface eth0; there are lo, eth1", {"interfaces": {"lo": UP, "eth1": UP}}),
        ("interfaces", "is no address of this host", {"local_addresses": ()}),
        ("disk", "10 MiB free for the run's logs", {"free_bytes": 10 << 20}),
        ("disk", "/data, where checkpoints go, is not writable", {"checkpoint": READ_ONLY}),
        ("shared-memory", "64 MiB free in /dev/shm, 2 ranks want 256 MiB", {"shm_free_bytes": 64 << 20}),
        ("memlock", "memlock is 8 MiB", {"memlock_bytes": 8 << 20}),
        ("nccl-settings", "~/.bashrc sets NCCL_NET=IB", {"nccl_settings": (NET_IB,)}),
        ("nccl-settings", "sets NCCL_SOCKET_IFNAME=docker0, the plan =eth0", {"nccl_settings": (DOCKER0,)}),
    ],
)  # fmt: skip
def test_check_finds_its_fault_on_its_host_alone(check: str, evidence: str, facts: dict[str, Any]) -> None:
    found = [fault for fault in faults(PLAN, **facts) if not (check != "versions" and fault.check == "versions")]
    assert {(fault.check, fault.host) for fault in found} == {(check, HOST)}
    assert evidence in found[0].evidence
    assert remedy_of(found[0])


def test_inactive_rdma_port_is_found() -> None:
    found = faults(PLAN, rdma_ports={f"mlx5_{index}:1": "INIT" if index == 3 else "ACTIVE" for index in range(8)})
    assert [(fault.check, fault.evidence) for fault in found] == [("rdma-ports", "port mlx5_3:1 is INIT")]


def test_a_network_plugin_that_is_not_there_is_found_with_its_path() -> None:
    library = EnvironmentVariable(name="NCCL_NET_PLUGIN", value="/opt/x/libnccl-net.so", reason="")
    nodes = tuple(node.model_copy(update={"environment": (*node.environment, library)}) for node in PLAN.nodes)
    (fault,) = faults(PLAN.model_copy(update={"nodes": nodes}), net_plugin_there=False)
    assert (fault.check, fault.host) == ("net-plugin", HOST)
    assert "/opt/x/libnccl-net.so is no file here" in fault.evidence
    assert remedy_of(fault)


def test_no_free_port_is_found_on_the_first_node() -> None:
    answers = healthy_answers(PLAN)
    answers[0] = answers[0]._replace(master_port=None)
    (fault,) = check_facts(PLAN, None, answers)
    assert (fault.check, fault.host) == ("rendezvous", PLAN.nodes[0].host)


def test_forced_check_does_not_refuse_but_is_still_told() -> None:
    preflight = Preflight((Fault("disk", "a1", "full"),), frozenset({"disk"}))
    assert preflight.passed
    assert [fault.check for fault in preflight.faults] == ["disk"]
    assert not Preflight((Fault("disk", "a1", "full"),), frozenset({"memlock"})).passed


def test_check_that_nothing_can_do_without_is_not_forced() -> None:
    assert not Preflight((Fault("torch", "a1", "none"),), frozenset({"torch"})).passed


def test_unknown_host_key_is_a_fault_of_its_own_check() -> None:
    fault = host_fault(HostError("a1", "key unknown", "not known", "trust it"))
    assert (fault.check, fault.host, remedy_of(fault)) == ("host-keys", "a1", "trust it")


def test_names_of_checks_are_unique() -> None:
    names = [check.name for check in CHECKS]
    assert len(names) == len(set(names))
