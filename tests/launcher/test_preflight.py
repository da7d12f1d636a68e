"""Each check finds its own fault, names host and value, and finds nothing on healthy nodes."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from holmes_core.errors import HostError
from holmes_core.records.access import Access, Container, LaunchSettings
from holmes_core.records.plan import EnvironmentVariable, Plan
from holmes_runtime.config.messages import (
    NodeCheckpointFolder,
    NodeGpu,
    NodeGpuProcess,
    NodeInterface,
    NodeNcclSetting,
)
from holmes_runtime.config.node_config import GpuClaim
from holmes_runtime.config.run_settings import CheckpointSettings, DataSource
from launcher.nodes.node_checks import TORCH_BELOW, TORCH_FROM, check_facts
from launcher.nodes.preflight import CHECKS, Fault, Preflight, PreflightFailed, host_fault, remedy_of
from launcher.prepare.prepare import Attempt, inputs_of, node_environment
from launcher.prepare.user_variables import UserVariables
from tests.launcher.plans import cpu_plan, gpu_plan, healthy_answers, with_access
from tests.test_layers import ROOT

PLAN = gpu_plan()
HOST = PLAN.nodes[1].host
OWN = replace(PLAN.job.model, factory="/own.py:build")
UP = NodeInterface(up=True, address=None)
EMPTY = NodeCheckpointFolder("/data", True, 1 << 40, newest=None, in_cache=False, mount_point="/")
READ_ONLY = EMPTY._replace(writable=False, free_bytes=1)
OTHERS = EMPTY._replace(newest="step-00000040")
FIRST, RESUMING = Attempt("r"), Attempt("r", resume=True)
SAVING = CheckpointSettings(path="/data/ck", every_steps=10)
NET_IB = NodeNcclSetting("~/.bashrc", "NCCL_NET", "IB")
DOCKER0 = NodeNcclSetting("/etc/nccl.conf", "NCCL_SOCKET_IFNAME", "docker0")
LOST = "Unable to determine the device handle for GPU0000:03:00.0: Unknown Error"
UUID = f"GPU-{HOST}-0"
PYTHON = NodeGpuProcess(UUID, "4711", "python")
TAKEN = GpuClaim(UUID, 0, "ann", "r1", 1_700_000_000)


def faults(plan: Plan, **facts: Any) -> list[Fault]:
    """What is found when node 1 says these facts."""
    answers = healthy_answers(plan)
    answers[1] = answers[1]._replace(facts=answers[1].facts._replace(**facts))
    return list(check_facts(plan, FIRST, None, answers))


@pytest.mark.parametrize("plan", [PLAN, cpu_plan()], ids=["gpus", "cpus"])
def test_healthy_nodes_have_no_fault(plan: Plan) -> None:
    assert faults(plan) == []


@pytest.mark.parametrize(
    ("check", "evidence", "facts"),
    [
        ("torch", "/usr/bin/python3 has no torch", {"torch": None}),
        ("torch-build", "torch 2.10.0+cu126, the runtime needs 2.11 or later", {"torch": "2.10.0+cu126"}),
        ("torch-build", "torch 2.16.0, the runtime needs 2.11 or later, and earlier than 2.16", {"torch": "2.16.0"}),
        ("torch-build", "is built without CUDA, and the plan trains on GPUs", {"torch_cuda": None}),
        ("torch-build", "CUDA 13.0, which needs driver 580 or later; it is 575.57.08", {"driver": "575.57.08"}),
        ("torch-build", "CUDA 12.6, which needs driver 525", {"torch_cuda": "12.6", "driver": "470.82.01"}),
        ("versions", "python 3.11, where most have 3.12", {"python": "3.11.2"}),
        ("versions", "nccl 2.26.2, where most have 2.27.5", {"nccl": "2.26.2"}),
        ("gpus", "no GPU 1; there are 0", {"gpus": (NodeGpu(0, UUID, "A100"),)}),
        ("gpus", "nvidia-smi: Unable to determine", {"gpus": None, "gpus_failure": LOST}),
        ("gpus", "nvidia-smi: Unable to determine", {"gpus_failure": LOST}),
        ("gpus-taken", "GPU 0 is taken by run r1 of ann, since 2023-11-14 22:13 UTC", {"gpus_taken": (TAKEN,)}),
        ("gpus-free", "process 4711 (python) is on GPU 0", {"gpu_processes": (PYTHON,)}),
        ("interfaces", "no interface eth0; there are lo, eth1", {"interfaces": {"lo": UP, "eth1": UP}}),
        ("interfaces", "is not an address of this host", {"local_addresses": ()}),
        ("disk", "10 MiB free for the run's logs", {"free_bytes": 10 << 20}),
        ("disk", "/data, where checkpoints go, is not writable", {"checkpoint": READ_ONLY}),
        ("inputs", "/data/x.bin, which job.yaml names, is not there", {"missing_inputs": ("/data/x.bin",)}),
        ("contents", "/data/x.gz is gzip, not text", {"wrong_inputs": ("/data/x.gz is gzip, not text",)}),
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


@pytest.mark.parametrize(
    "facts",
    [
        {"torch_cuda": "12.6", "driver": "550.54.15"},
        {"torch_cuda": "14.0", "driver": "580.65.06"},  # of a CUDA that is not known here nothing is said
        {"driver": None},
        {"torch": "version not known"},
    ],
    ids=str,
)
def test_a_build_that_the_driver_runs_or_of_which_too_little_is_known_passes(facts: dict[str, Any]) -> None:
    assert [fault for fault in faults(PLAN, **facts) if fault.check == "torch-build"] == []


def test_a_host_that_cannot_compile_is_found_where_layers_are_compiled() -> None:
    lacks = "triton, which this Python does not have"
    compiled, own = (PLAN.job.model_copy(update={"compile": True, "model": model}) for model in (PLAN.job.model, OWN))
    found = [faults(PLAN.model_copy(update={"job": job}), compile_lacks=lacks) for job in (compiled, PLAN.job, own)]
    assert [[(each.check, each.host, each.evidence) for each in one] for one in found] == [
        [("compiler", HOST, f"compiled layers need {lacks}")],
        [],
        [],
    ]


def test_a_host_without_torchao_is_found_where_layers_are_in_fp8() -> None:
    lacks = "torchao, which this Python does not have"
    in_fp8 = PLAN.job.model_copy(update={"fp8": True})
    found = [faults(PLAN.model_copy(update={"job": job}), fp8_lacks=lacks) for job in (in_fp8, PLAN.job)]
    assert [[(each.check, each.host, each.evidence) for each in one] for one in found] == [
        [("fp8", HOST, f"layers in FP8 need {lacks}")],
        [],
    ]


def test_inputs_are_data_tokenizer_weights_and_a_model_that_lies_on_the_hosts() -> None:
    blend = (DataSource(path="/a", weight=1.0), DataSource(path="/b", weight=2.0))
    one, two = (replace(PLAN.job.corpus, path=path, tokenizer="/t.json") for path in ("/d", blend))
    travels = replace(PLAN.job.model, factory="own.py:build")
    assert inputs_of(PLAN.job.model_copy(update={"data": one, "model": travels})) == ("/d", "/t.json")
    assert inputs_of(PLAN.job.model_copy(update={"data": one, "weights": "/w"})) == ("/d", "/t.json", "/w")
    assert inputs_of(PLAN.job.model_copy(update={"data": two, "model": OWN})) == ("/a", "/b", "/t.json", "/own.py")


def test_a_build_without_cuda_trains_on_cpus() -> None:
    assert [fault for fault in faults(cpu_plan(), torch_cuda=None, driver=None) if fault.check == "torch-build"] == []


def test_the_range_of_torch_is_that_of_the_requirements() -> None:
    required = re.search(r'"torch>=([\d.]+),<([\d.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert required is not None
    assert [tuple(map(int, bound.split("."))) for bound in required.groups()] == [TORCH_FROM, TORCH_BELOW]


def test_a_host_whose_memory_is_in_use_is_found_before_optimizer_states_fill_it() -> None:
    offloaded = PLAN.prediction.model_copy(update={"host_memory_bytes": (3 << 30,) * PLAN.pp})
    plan = PLAN.model_copy(update={"prediction": offloaded})
    needed = (3 << 30) * sum(rank.host == HOST for rank in plan.ranks)

    assert faults(plan, memory_bytes=needed) == []
    (fault,) = faults(plan, memory_bytes=needed - (1 << 30))
    assert (fault.check, fault.host) == ("host-memory", HOST)
    assert faults(PLAN, memory_bytes=0) == []


def test_inactive_rdma_port_is_found() -> None:
    found = faults(PLAN, rdma_ports={f"mlx5_{index}:1": "INIT" if index == 3 else "ACTIVE" for index in range(8)})
    assert [(fault.check, fault.evidence) for fault in found] == [("rdma-ports", "port mlx5_3:1 is INIT")]


def test_a_network_plugin_that_is_not_there_is_found_with_its_path() -> None:
    library = EnvironmentVariable(name="NCCL_NET_PLUGIN", value="/opt/x/libnccl-net.so", reason="")
    nodes = tuple(node.model_copy(update={"environment": (*node.environment, library)}) for node in PLAN.nodes)
    (fault,) = faults(PLAN.model_copy(update={"nodes": nodes}), net_plugin_there=False)
    assert (fault.check, fault.host) == ("net-plugin", HOST)
    assert "/opt/x/libnccl-net.so is not a file here" in fault.evidence
    assert remedy_of(fault)


def test_a_host_s_setting_that_the_plan_does_not_count_on_is_no_fault() -> None:
    own = EnvironmentVariable(name="NCCL_IB_PKEY", value="2", reason="")
    nodes = tuple(node.model_copy(update={"environment": (*node.environment, own)}) for node in PLAN.nodes)
    settings = (NodeNcclSetting("~/.bashrc", "NCCL_IB_PKEY", "1"), NodeNcclSetting("~/.bashrc", "NCCL_DEBUG", "WARN"))
    assert faults(PLAN.model_copy(update={"nodes": nodes}), nccl_settings=settings) == []


def test_a_plugin_that_the_user_names_is_the_one_that_is_looked_for() -> None:
    library = EnvironmentVariable(name="NCCL_NET_PLUGIN", value="/opt/x/libnccl-net.so", reason="")
    nodes = tuple(node.model_copy(update={"environment": (*node.environment, library)}) for node in PLAN.nodes)
    users = UserVariables({"NCCL_NET_PLUGIN": "/mine/libnccl-net.so"}, {})
    job = PLAN.job.model_copy(update={"launch": LaunchSettings(environment={**users.environment})})
    plan = PLAN.model_copy(update={"nodes": nodes, "job": job})
    assert node_environment(plan.nodes[1], users)["NCCL_NET_PLUGIN"] == "/mine/libnccl-net.so"
    (fault,) = faults(plan, net_plugin_there=False)
    assert fault.evidence.startswith("/mine/libnccl-net.so is not a file here")


def test_a_checkpoint_that_the_run_does_not_resume_is_found_once_before_torch_is_up() -> None:
    answers = {
        rank: answer._replace(facts=answer.facts._replace(checkpoint=OTHERS))
        for rank, answer in healthy_answers(PLAN).items()
    }
    (fault,) = check_facts(PLAN, FIRST, None, answers)
    assert (fault.check, fault.host) == ("checkpoints", PLAN.nodes[0].host)
    assert fault.evidence == "/data holds a checkpoint, step-00000040, and this run does not resume it"
    assert "--resume" in remedy_of(fault)


def test_a_checkpoint_in_the_own_folder_of_one_host_is_found_there() -> None:
    answers = healthy_answers(PLAN)
    answers[1] = answers[1]._replace(facts=answers[1].facts._replace(checkpoint=OTHERS))

    (fault,) = check_facts(PLAN, FIRST, None, answers)

    assert (fault.check, fault.host) == ("checkpoints", PLAN.nodes[1].host)


def checkpoint_faults(found: list[NodeCheckpointFolder], attempt: Attempt, plan: Plan = PLAN) -> list[Fault]:
    """The faults when the nodes in order see these folders."""
    saving = plan.model_copy(update={"job": plan.job.model_copy(update={"checkpoint": SAVING})})
    answers = {
        rank: answer._replace(facts=answer.facts._replace(checkpoint=found[rank % len(found)]))
        for rank, answer in healthy_answers(plan).items()
    }
    return list(check_facts(saving, attempt, None, answers))


def test_a_run_that_resumes_needs_a_checkpoint_on_one_host_at_least() -> None:
    (fault,) = checkpoint_faults([EMPTY], RESUMING)
    hosts = ", ".join(node.host for node in PLAN.nodes)
    assert fault.evidence == f"/data/ck holds no checkpoint on {hosts}, and this run resumes one"
    assert "--from-scratch" in remedy_of(fault)
    assert not Preflight((fault,), frozenset({"checkpoints"})).passed
    assert checkpoint_faults([EMPTY], replace(RESUMING, from_scratch=True)) == []
    assert checkpoint_faults([EMPTY, OTHERS], RESUMING) == []


def test_folders_that_are_removed_with_the_run_refuse_it() -> None:
    in_cache = [fault.evidence for fault in checkpoint_faults([EMPTY._replace(in_cache=True)], FIRST)]
    assert in_cache == ["/data leads into Holmes's own cache, which is removed when the run ends"] * len(PLAN.nodes)
    inside = with_access(PLAN, Access(container=Container(engine="docker", image="torch")))
    (fault, *_) = checkpoint_faults([EMPTY], FIRST, inside)
    assert fault.evidence == "/data is inside the container, which is removed when the run ends"
    assert checkpoint_faults([EMPTY._replace(mount_point="/data")], FIRST, inside) == []


def test_what_can_be_forced_is_said_with_its_names_and_nothing_else_is() -> None:
    disk, torch = Fault("disk", "a1", "full"), Fault("torch", "a1", "none")
    forced, refused = (PreflightFailed(Preflight(faults, frozenset())) for faults in ((disk,), (disk, torch)))
    assert forced.hint == "one check failed; the remedies are above; or continue anyway: `--force disk`"
    assert refused.hint == "2 checks in all failed; the remedies are above"


def test_no_free_port_is_found_on_the_first_node() -> None:
    answers = healthy_answers(PLAN)
    answers[0] = answers[0]._replace(master_port=None)
    (fault,) = check_facts(PLAN, FIRST, None, answers)
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


def test_only_others_on_the_gpus_are_waited_for() -> None:
    busy, taken = Fault("gpus-free", HOST, "process 4711"), Fault("gpus-taken", HOST, "GPU 0")
    assert Preflight((busy, taken), frozenset()).may_pass_later
    assert not Preflight((taken, Fault("disk", HOST, "full")), frozenset()).may_pass_later
    assert Preflight((taken, Fault("disk", HOST, "full")), frozenset({"disk"})).may_pass_later
