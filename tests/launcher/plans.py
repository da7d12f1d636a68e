"""Plans for the launcher's tests, made by the planner, and what healthy nodes of them say of themselves."""

from __future__ import annotations

from typing import Any

from holmes_core.records.access import Access
from holmes_core.records.job import Job
from holmes_core.records.plan import Plan
from tests.planner.fleets import bed_job, cpu_inventory, gpu_inventory, plan_for


def cpu_plan(**changes: Any) -> Plan:
    """Two clusters of two hosts, pp 2 and dp 2."""
    return plan_for(cpu_inventory((2, 2)), bed_job(**changes))


def gpu_plan() -> Plan:
    """One InfiniBand and one RoCE host of two GPUs, pp 2 and dp 2."""
    data = bed_job().model_dump() | {"device": "cuda", "compute": {}, "precision": "bf16"}
    return plan_for(gpu_inventory((1, 1), gpus_per_host=2), Job.model_validate(data))


def with_access(plan: Plan, access: Access) -> Plan:
    """The plan with another way to all hosts."""
    return plan.model_copy(update={"nodes": tuple(node.model_copy(update={"access": access}) for node in plan.nodes)})


def healthy_answers(plan: Plan) -> dict[int, dict[str, Any]]:
    """The `ready` event of every node when all is as planned."""
    return {node.node_rank: _answer(plan, node.host, node.shared_address) for node in plan.nodes}


def _answer(plan: Plan, host: str, address: str) -> dict[str, Any]:
    gpus = [rank.gpu for rank in plan.ranks if rank.host == host and rank.gpu is not None]
    facts = {
        "python": "3.12.3",
        "executable": "/usr/bin/python3",
        "torch": "2.13.0",
        "nccl": "2.27.5",
        "interfaces": {name: {"up": True, "address": address} for name in ("lo", "eth0", "eth1")},
        "local_addresses": [address],
        "rdma_ports": {f"mlx5_{index}:1": "ACTIVE" for index in range(8)},
        "gpus": [[str(gpu), f"GPU-{host}-{gpu}", "A100"] for gpu in gpus],
        "gpu_processes": [],
        "free_bytes": 1 << 40,
        "shm_free_bytes": 1 << 36,
        "checkpoint": None,
        "memlock_bytes": -1,
        "nccl_settings": [],
    }
    return {"facts": facts, "doors": {}, "master_port": 29500}
