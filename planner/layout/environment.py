"""The environment of each node: the variables to set before its ranks start, each with its reason."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.node_settings import CONSTANT, FOR_TRAINERS
from holmes_core.records.inventory import Cluster, Host, NetworkPort
from holmes_core.records.job import Job
from holmes_core.records.plan import EnvironmentVariable, Node, NodeFabric, PlanRank, tunnel_address
from holmes_runtime.config.trainer_config import SHARED
from planner.layout.rail_environment import rail_environment, variable
from planner.problem.networks import VERBS_KINDS, Networks
from planner.problem.problem import Problem

NEWER = re.compile(r"\bG?B\d00|RTX (50|PRO)|\bGB10\b")  # Blackwell
MAX_SOCKET_THREADS = 4  # of NCCL per peer: each takes CPU time; its documentation recommends 4 at 100 Gbit/s


def make_nodes(problem: Problem, ranks: Sequence[PlanRank]) -> tuple[Node, ...]:
    """Return the job's nodes in the order of their ranks."""
    hosts = {host.name: host for host in problem.inventory.hosts}
    members: dict[str, list[PlanRank]] = {}
    for rank in ranks:
        members.setdefault(rank.host, []).append(rank)
    streams = problem.networks.most_streams({rank.cluster for rank in ranks})
    of_rails = rail_environment(problem.inventory, problem.job, list(members))
    return tuple(
        _node(hosts[name], problem, node_rank, held, streams, of_rails[name])
        for node_rank, (name, held) in enumerate(members.items())
    )


def _node(
    host: Host,
    problem: Problem,
    node_rank: int,
    ranks: Sequence[PlanRank],
    streams: int,
    of_rails: tuple[EnvironmentVariable, ...],
) -> Node:
    networks, encrypts = problem.networks, problem.inventory.encrypts
    on_gpus = problem.job.device == "cuda"
    cluster, port = networks.cluster(host.name), networks.shared_port(host.name)
    if port.address is None:
        raise HolmesError(
            f"host {host.name}: {port.netdev}, its interface on the network that all hosts share, has no known address",
            f"give {port.netdev} an IPv4 address and probe again, or leave {host.name} out of hosts.yaml",
            ANSWER_IS_NO,
        )
    return Node(
        node_rank=node_rank,
        host=host.name,
        cluster=cluster.name,
        access=host.access,
        num_ranks=len(ranks),
        shared_netdev=str(port.netdev),
        shared_address=tunnel_address(node_rank) if encrypts else port.address,
        tunnel_endpoint=port.address if encrypts else None,
        fabric=None if problem.job.is_bundled else _fabric(networks, host.name),
        environment=make_environment(
            problem.job,
            cluster,
            port,
            networks.fabric_port(host.name),
            [rank.gpu for rank in ranks],
            streams,
            host.name in networks.without_imex,
        )
        + (tuple(_constants(problem.job, host, 1 + max(rank.tp_rank for rank in ranks))) if on_gpus else ())
        + of_rails
        + _near_cpus(ranks),
    )


def _fabric(networks: Networks, host: str) -> NodeFabric | None:
    route = networks.route([host])
    if route.network == SHARED:
        return None
    return NodeFabric(network=route.network, netdev=route.interfaces[0], net_name=route.net_name)


def make_environment(
    job: Job,
    cluster: Cluster,
    shared: NetworkPort,
    fabric: NetworkPort | None,
    gpus: Sequence[int | None],
    streams: int = 1,
    without_imex: bool = False,
) -> tuple[EnvironmentVariable, ...]:
    """Return the variables of one node.

    `shared` is its port on the network that all nodes share, `fabric` the one on its cluster's fabric, and `gpus` the
    GPU of each local rank. `streams` is the number of parallel connections that reach the measured rate between
    clusters. `without_imex`: the node is in an NVLink domain whose memory its processes cannot share.
    NCCL_NET is never set: it would override the network of every group. NCCL reads a leading `=` as "exactly these", so
    the values of its lists begin with one.
    """
    reason = f"control traffic uses {shared.netdev}, which every node can reach"
    variables = [variable("GLOO_SOCKET_IFNAME", str(shared.netdev), reason)]
    if job.is_bundled:
        variables.append(variable("OMP_NUM_THREADS", str(job.threads_per_slot), "threads_per_slot in job.yaml"))
    if job.device == "cpu":
        return tuple(variables)
    return (
        *variables,
        *_gpus(gpus),
        *_nccl(cluster, shared, fabric),
        *_streams(streams),
        *(_NO_NVLINK_BETWEEN_HOSTS if without_imex else ()),
    )


def _constants(job: Job, hardware: Host, tp: int) -> Iterator[EnvironmentVariable]:
    """Yield the variables an engine needs on every node. Megatron needs its own only with shards before Blackwell."""
    is_exempt = tp == 1 or any(NEWER.search(gpu.name or "") for gpu in hardware.gpus)
    for each in (*CONSTANT, *FOR_TRAINERS):
        is_meant = job.engine in each.engines and not (job.engine == "megatron" and is_exempt)
        if is_meant and each.older_name not in job.launch.environment:
            yield variable(each.name, each.value, each.reason)


def _gpus(gpus: Sequence[int | None]) -> tuple[EnvironmentVariable, ...]:
    """Return the visible GPUs, the i-th for local rank i. nvidia-smi, which the probe used, orders by PCI address."""
    visible = ",".join(str(gpu) for gpu in gpus)
    return (
        variable("CUDA_DEVICE_ORDER", "PCI_BUS_ID", "GPU numbers as in nvidia-smi"),
        variable("CUDA_VISIBLE_DEVICES", visible, "the planned GPUs, by local rank"),
    )


def _near_cpus(ranks: Sequence[PlanRank]) -> tuple[EnvironmentVariable, ...]:
    """Return the CPUs of each local rank; nothing if they are not known."""
    lists = [rank.cpus for rank in ranks if rank.cpus is not None]
    if len(lists) < len(ranks):
        return ()
    reason = "CPUs near each local rank's GPU; the rank and its threads are bound to them"
    return (variable("HOLMES_RANK_CPUS", ";".join(lists), reason),)


def _nccl(cluster: Cluster, shared: NetworkPort, fabric: NetworkPort | None) -> tuple[EnvironmentVariable, ...]:
    """Return NCCL's interfaces, which it reads once per process. A group's own options select its transport."""
    reason = f"groups between clusters and NCCL's bootstrap use only {shared.netdev}"
    sockets = variable("NCCL_SOCKET_IFNAME", f"={shared.netdev}", reason)
    hcas = fabric.hcas if fabric is not None and cluster.fabric.kind in VERBS_KINDS else ()
    if fabric is not None and fabric.net_plugin is not None:
        reason = f"groups inside cluster {cluster.name} use {cluster.fabric.kind} by this library, aws-ofi-nccl"
        return (sockets, variable("NCCL_NET_PLUGIN", fabric.net_plugin, reason))
    if hcas:
        reason = f"groups inside cluster {cluster.name} use exactly these {cluster.fabric.kind} ports"
        return (sockets, variable("NCCL_IB_HCA", "=" + ",".join(hcas), reason))
    reason = f"cluster {cluster.name} has no RDMA ports that all its hosts share"
    return (sockets, variable("NCCL_IB_DISABLE", "1", reason))


# Source: NCCL, src/mnnvl.cc: if GPUs are in one clique but cannot share memory, communicators fail.
_NO_NVLINK_BETWEEN_HOSTS = (
    variable(
        "NCCL_MNNVL_ENABLE", "0", "nvidia-imex does not run on every host of this NVLink domain, so NCCL would fail"
    ),
)


def _streams(streams: int) -> tuple[EnvironmentVariable, ...]:
    """Return the settings for NCCL's connections per peer, threads x sockets; nothing if one connection is enough."""
    if streams == 1:
        return ()
    threads = min(streams, MAX_SOCKET_THREADS)
    reason = f"the rate measured between clusters took {streams} connections side by side"
    values = {"NCCL_SOCKET_NTHREADS": threads, "NCCL_NSOCKS_PERTHREAD": -(-streams // threads)}
    return tuple(variable(name, str(value), reason) for name, value in values.items())
