"""The only table of the variables that a plan sets for a node's ranks: value, condition, reason, and who may override.

The planner takes constant values from it, the launcher whether job.yaml may override them, and docs/settings.md is
written from it. A trainer's own command gets the constants of its engine, and none of the bundled runtime's. The effect
of a variable was read in the documents of NCCL, torch and trainers named in `source`.
"""

from __future__ import annotations

from dataclasses import dataclass

from holmes_core.records.job import EngineName

NCCL_GUIDE = "NCCL user guide, Environment Variables"
CUDA_GUIDE = "CUDA C++ Programming Guide, CUDA Environment Variables"
ON_GPUS = "device is cuda"
BUNDLED = "the bundled runtime trains on GPUs"
QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"


@dataclass(frozen=True)
class Setting:
    """One variable. `value` is the constant, or a description of the value; `reason` stands in plan.json.

    The plan relies on `fixed` variables: `launch.environment` of job.yaml may not set them otherwise. For all others, a
    value in job.yaml wins, also one given under `older_name`.
    """

    name: str
    value: str
    when: str
    reason: str
    source: str
    fixed: bool = False
    older_name: str | None = None  # an earlier name, also read
    engines: tuple[EngineName, ...] = ("holmes",)  # of constants, the engines that get them


CONSTANT = (
    Setting(
        QUEUES,
        "32",
        BUNDLED,
        "a queue for each stream: with fewer, a receive that waits can stand before the compute it waits for",
        CUDA_GUIDE,
    ),
    Setting(
        "NCCL_LAUNCH_ORDER_IMPLICIT",
        "1",
        BUNDLED,
        "a rank has several communicators, and their kernels start in the order of the program, alike on all ranks",
        f"{NCCL_GUIDE}; Using multiple NCCL communicators concurrently",
    ),
    Setting(
        "TORCH_NCCL_HIGH_PRIORITY",
        "1",
        BUNDLED,
        "what has arrived or must leave does not queue behind compute that was launched before it",
        "torch, ProcessGroupNCCL Environment Variables",
    ),
    Setting(
        "TORCH_GLOO_LAZY_INIT",
        "1",
        BUNDLED,
        "Gloo carries control traffic alone: a rank connects to those it talks to, not to every other at the start",
        "torch, torch/csrc/distributed/c10d/ProcessGroupGloo.cpp",
    ),
    Setting(
        "PYTORCH_ALLOC_CONF",
        "expandable_segments:True",
        BUNDLED,
        "plans fill most of a GPU's memory: segments that grow leave fewer holes in it",
        "torch, CUDA semantics, Optimizing memory usage with PYTORCH_ALLOC_CONF",
        older_name="PYTORCH_CUDA_ALLOC_CONF",
    ),
)
"""Set to the same on every node of the bundled runtime on GPUs."""

FOR_TRAINERS = (
    Setting(
        QUEUES,
        "1",
        "trainer.engine is megatron, tp above 1, and GPUs are older than Blackwell",
        "Megatron asserts it: kernels of one queue start in the order of the program, collectives before the products "
        "that hide them",
        "Megatron-LM, megatron/training/arguments.py",
        engines=("megatron",),
    ),
    Setting(
        QUEUES,
        "8",
        "trainer.engine is torchtitan, accelerate or torch, on GPUs",
        "FSDP's gathers and reductions run under compute from their own queues; CUDA's default, as a host may set 1",
        f"{CUDA_GUIDE}; Megatron-LM, which refuses 1 with FSDP",
        engines=("torchtitan", "accelerate", "torch"),
    ),
)
"""Set to the same on every node of a trainer's command on GPUs."""


BY_PLAN = (
    Setting(
        "GLOO_SOCKET_IFNAME",
        "the interface on the network all nodes share",
        "always",
        "control traffic uses it, which every node can reach",
        "torch, torch.distributed, Choosing the network interface to use",
        fixed=True,
    ),
    Setting(
        "OMP_NUM_THREADS",
        "`threads_per_slot`",
        "the bundled runtime trains",
        "threads_per_slot in job.yaml",
        "OpenMP; torch, CPU threading",
        fixed=True,
    ),
    Setting(
        "CUDA_DEVICE_ORDER",
        "`PCI_BUS_ID`",
        ON_GPUS,
        "GPU numbers as nvidia-smi has them",
        CUDA_GUIDE,
        fixed=True,
    ),
    Setting(
        "CUDA_VISIBLE_DEVICES",
        "the GPUs of the node's ranks",
        ON_GPUS,
        "the planned GPUs, by local rank",
        CUDA_GUIDE,
        fixed=True,
    ),
    Setting(
        "HOLMES_RANK_CPUS",
        "by local rank, its share of the CPUs near its GPU, `cpus` of the plan's ranks",
        "nvidia-smi says which they are",
        "a rank, its copies and its NCCL threads stay on the CPUs near its GPU",
        "`nvidia-smi topo -m`, CPU Affinity; sched_setaffinity(2)",
    ),
    Setting(
        "NCCL_SOCKET_IFNAME",
        "`=` the interface on the network all nodes share",
        ON_GPUS,
        "groups between clusters and NCCL's bootstrap use it and nothing else; NCCL reads it once a process",
        NCCL_GUIDE,
        fixed=True,
    ),
    Setting(
        "NCCL_IB_HCA",
        "`=` the RDMA ports on the cluster's fabric",
        "they are InfiniBand or RoCE",
        "groups inside the cluster use exactly these",
        NCCL_GUIDE,
        fixed=True,
    ),
    Setting(
        "NCCL_IB_DISABLE",
        "`1`",
        "the cluster has no RDMA ports that all its hosts share, and needs no plugin",
        "no group may be tempted by a port that others lack",
        NCCL_GUIDE,
        fixed=True,
    ),
    Setting(
        "NCCL_NET_PLUGIN",
        "the library of aws-ofi-nccl that the probe found",
        "the cluster's fabric needs it, as EFA does",
        "NCCL reaches the fabric by it alone",
        NCCL_GUIDE,
    ),
    Setting(
        "NCCL_MNNVL_ENABLE",
        "`0`",
        "nvidia-imex does not run on every host of an NVLink domain",
        "NCCL would fail where it cannot share memory over NVLink",
        NCCL_GUIDE,
        fixed=True,
    ),
    Setting(
        "NCCL_SOCKET_NTHREADS",
        "up to 4",
        "the rate measured between clusters took several connections side by side",
        "helper threads of a connection",
        NCCL_GUIDE,
    ),
    Setting(
        "NCCL_NSOCKS_PERTHREAD",
        "those connections, shared among the threads",
        "the rate measured between clusters took several connections side by side",
        "sockets of a helper thread",
        NCCL_GUIDE,
    ),
    Setting(
        "NCCL_CROSS_NIC",
        "`0`, on all nodes: NCCL takes the largest of a group's ranks",
        "the rails of a cluster do not reach one another",
        "NCCL cannot see that rails are apart",
        "NCCL, src/init.cc",
    ),
    Setting(
        "NCCL_IB_QPS_PER_CONNECTION",
        "`2`, on all hosts of the cluster: both ends of a connection count by their own",
        "a rail of one of them is a bond",
        "a queue pair uses one member of a bond",
        "NCCL, src/transport/net_ib/connect.cc",
    ),
    Setting(
        "NCCL_IB_GID_INDEX",
        "the index of the ports' own GID, if one fits all rails of the host",
        "NCCL would take the GID of a VLAN there, and the port's own on other rails of the cluster",
        "all rails of a cluster take the ports' own",
        "NCCL, src/transport/net_ib/connect.cc",
    ),
    Setting(
        "NCCL_IB_PKEY",
        "the index of the partition of which all rails of the cluster are full members",
        "the P_Keys at index 0 do not let all hosts talk",
        "NCCL takes index 0 by itself",
        "NCCL, src/transport/net_ib/connect.cc",
    ),
    Setting(
        "NCCL_IB_ADDR_FAMILY",
        "`AF_INET6`, on all hosts of the cluster",
        "some rail has no IPv4 address, and all have an IPv6 one",
        "NCCL looks for IPv4 by itself",
        "NCCL, src/transport/net_ib/connect.cc",
    ),
)
"""Set by the plan, node by node."""

SETTINGS = {setting.name: setting for setting in (*BY_PLAN, *FOR_TRAINERS, *CONSTANT)}


def is_fixed(name: str) -> bool:
    """Return True if the plan relies on the value it gives to variable `name`."""
    return name in SETTINGS and SETTINGS[name].fixed
