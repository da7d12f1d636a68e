"""A trainer of one's own for tests: its job, its script, and a plan for it on hosts that are this machine."""

from __future__ import annotations

import sys
from typing import Any

from holmes_core.records.access import Access
from holmes_core.records.job import Job
from holmes_core.records.plan import Node, NodeFabric, Plan
from holmes_runtime.config.rank_grid import NetName
from launcher.prepare.code_folder import CodeFolder
from launcher.prepare.user_variables import UserVariables
from tests.free_ports import free_port
from tests.planner.fleets import bed_job, cpu_inventory, gpu_inventory, plan_for

SCRIPT = """\
import os, sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
ranks = torch.zeros(dist.get_world_size(), dtype=torch.int64)
ranks[dist.get_rank()] = 1 + int(os.environ["LOCAL_RANK"])
dist.all_reduce(ranks)
where = os.environ["HOLMES_HOST"], os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"], os.environ["TOKEN"]
line = " ".join(map(str, ("rank", dist.get_rank(), *where, ranks.tolist(), sys.argv[1:])))
os.write(1, f"{line}\\n".encode())  # whole, as ranks of a node have one pipe
dist.destroy_process_group()
"""
KEYS = {"model", "steps", "global_batch_size", "device", "slots_per_host", "compute", "parallel"}
CODE = UserVariables({}, {"TOKEN": "s3cr3t"}, code=CodeFolder({"train.py": SCRIPT, "lib/layers.py": "SIZE = 1\n"}))


def trainer_plan(plan: Plan | None = None, **trainer: Any) -> Plan:
    """A plan for a trainer's own command: of two hosts of two GPUs, or of what `plan` has placed for the runtime."""
    said = {"engine": "torch", "command": ["python", "train.py", "--name", "a b"], **trainer}
    own = {"launch": {"code": "src"}, "trainer": said}
    if plan is None:
        keys = bed_job(device="cuda", parallel={"tp": 1, "pp": 1, "dp": 4}).model_dump(include=KEYS - {"compute"})
        return plan_for(gpu_inventory((1, 1), 2), Job.model_validate({**keys, **own}))
    job = Job.model_validate({**plan.job.model_dump(include=KEYS), **own})
    return plan.model_copy(update={"job": job, "nodes": tuple(_with_fabric(node) for node in plan.nodes)})


def _with_fabric(node: Node) -> Node:
    net: NetName | None = "IB" if any(each.name == "NCCL_IB_HCA" for each in node.environment) else None
    netdev = "lo" if node.shared_netdev == "lo" else "eth1"
    return node.model_copy(update={"fabric": NodeFabric(network=node.cluster, netdev=netdev, net_name=net)})


def plan_on_this_machine(**trainer: Any) -> Plan:
    """Two hosts of two ranks each that are both this machine, with ranks that alternate between them."""
    plan = plan_for(cpu_inventory((1, 1)), bed_job(slots_per_host=2))
    nodes = []
    for node in plan.nodes:
        on_lo = [each.model_copy(update={"value": "lo"}) if each.value == "eth0" else each for each in node.environment]
        update = {
            "shared_address": "127.0.0.1",
            "shared_netdev": "lo",
            "environment": tuple(on_lo),
            "access": Access(python=sys.executable),
        }
        nodes.append(node.model_copy(update=update))
    places = [(host, local) for local in (0, 1) for host in ("a1", "b1")]
    ranks = [
        rank.model_copy(update={"host": host, "local_rank": local})
        for rank, (host, local) in zip(plan.ranks, places, strict=True)
    ]
    made = trainer_plan(plan.model_copy(update={"nodes": tuple(nodes), "ranks": tuple(ranks)}), **trainer)
    return made.model_copy(update={"job": made.job.model_copy(update={"master_port": free_port()})})
