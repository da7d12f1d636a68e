"""Plans for the launcher's tests, made by the planner, and what healthy nodes of them say of themselves."""

from __future__ import annotations

from typing import Any

from holmes_core.records.access import Access
from holmes_core.records.job import Job
from holmes_core.records.plan import Node, Plan
from holmes_runtime.config.messages import NodeFacts, NodeGpu, NodeInterface, Ready
from tests.planner.fleets import bed_job, cpu_inventory, gpu_inventory, plan_for


def cpu_plan(**changes: Any) -> Plan:
    """Two clusters of two hosts, pp 2 and dp 2."""
    return plan_for(cpu_inventory((2, 2)), bed_job(**changes))


def gpu_plan(hosts: tuple[int, ...] = (1, 1), gpus_per_host: int = 2) -> Plan:
    """One InfiniBand and one RoCE host of two GPUs, or so many, pp 2 and dp 2, not compiled for it is zero-bubble."""
    data = bed_job().model_dump() | {"device": "cuda", "compute": {}, "precision": "bf16", "compile": False}
    return plan_for(gpu_inventory(hosts, gpus_per_host=gpus_per_host), Job.model_validate(data))


def with_access(plan: Plan, access: Access) -> Plan:
    """The plan with another way to all hosts."""
    return plan.model_copy(update={"nodes": tuple(node.model_copy(update={"access": access}) for node in plan.nodes)})


def healthy_answers(plan: Plan) -> dict[int, Ready]:
    """What every node answers when all is as planned."""
    return {node.node_rank: Ready(_facts(plan, node), {}, 29500) for node in plan.nodes}


def _facts(plan: Plan, node: Node) -> NodeFacts:
    gpus = [rank.gpu for rank in plan.ranks if rank.host == node.host and rank.gpu is not None]
    return NodeFacts(
        python="3.12.3",
        executable="/usr/bin/python3",
        torch="2.13.0+cu130",
        torch_cuda="13.0",
        driver="580.65.06",
        nccl="2.27.5",
        interfaces={name: NodeInterface(up=True, address=node.shared_address) for name in ("lo", "eth0", "eth1")},
        local_addresses=(node.shared_address,),
        net_plugin_there=None,
        rdma_ports={f"mlx5_{index}:1": "ACTIVE" for index in range(8)},
        gpus=tuple(NodeGpu(gpu, f"GPU-{node.host}-{gpu}", "A100") for gpu in gpus),
        gpus_failure=None,
        gpu_processes=(),
        free_bytes=1 << 40,
        shm_free_bytes=1 << 36,
        checkpoint=None,
        missing_inputs=(),
        wrong_inputs=(),
        compile_lacks=None,
        fp8_lacks=None,
        memlock_bytes=-1,
        memory_bytes=64 << 30,
        nccl_settings=(),
        gpus_taken=(),
    )
