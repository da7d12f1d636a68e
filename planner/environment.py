"""The environment of each node: what must be set before its ranks start, each variable with its reason."""

from __future__ import annotations

from collections.abc import Sequence

from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.inventory import Cluster, Inventory, Network, NetworkPort
from holmes_core.job import Job
from holmes_core.plan import EnvironmentVariable, Node, PlanRank
from planner.networks import RDMA_KINDS, port_on, shared_network


def make_nodes(inventory: Inventory, job: Job, ranks: Sequence[PlanRank]) -> tuple[Node, ...]:
    """The job's nodes in the order of their ranks."""
    network = shared_network(inventory)
    hosts = tuple(dict.fromkeys(rank.host for rank in ranks))
    return tuple(_node(inventory, job, network, node_rank, host, ranks) for node_rank, host in enumerate(hosts))


def _node(
    inventory: Inventory, job: Job, network: Network, node_rank: int, host: str, ranks: Sequence[PlanRank]
) -> Node:
    cluster = next(cluster for cluster in inventory.clusters if host in cluster.hosts)
    port = port_on(network, host)
    if port.address is None:
        raise HolmesError(
            f"host {host}: no address of {port.netdev} on network {network.name} is known",
            f"give {port.netdev} an IPv4 address and probe again, or leave {host} out of hosts.yaml",
            ANSWER_IS_NO,
        )
    return Node(
        node_rank=node_rank,
        host=host,
        cluster=cluster.name,
        access=inventory.host(host).access,
        num_ranks=sum(rank.host == host for rank in ranks),
        shared_netdev=str(port.netdev),
        shared_address=port.address,
        environment=make_environment(job, cluster, port, [rank.gpu for rank in ranks if rank.host == host]),
    )


def make_environment(
    job: Job, cluster: Cluster, shared: NetworkPort, gpus: Sequence[int | None]
) -> tuple[EnvironmentVariable, ...]:
    """The variables of one node.

    `shared` is its port on the network all nodes share, `gpus` the GPU of each local rank. NCCL_NET is never among
    them: it would override the network of every group. NCCL reads `=` as "exactly these", so the values of its lists
    begin with one.
    """
    variables = [
        EnvironmentVariable(
            name="GLOO_SOCKET_IFNAME",
            value=str(shared.netdev),
            reason=f"control traffic uses {shared.netdev}, which every node can reach",
        ),
        EnvironmentVariable(
            name="OMP_NUM_THREADS",
            value=str(job.threads_per_slot),
            reason="threads_per_slot in job.yaml",
        ),
    ]
    if job.device == "cpu":
        return tuple(variables)
    return (*variables, *_gpus(gpus), *_nccl(cluster, shared))


def _gpus(gpus: Sequence[int | None]) -> tuple[EnvironmentVariable, ...]:
    """Local rank i trains on the i-th visible GPU; nvidia-smi, which the probe asked, numbers by PCI address."""
    visible = ",".join(str(gpu) for gpu in gpus)
    return (
        EnvironmentVariable(name="CUDA_DEVICE_ORDER", value="PCI_BUS_ID", reason="GPU numbers as nvidia-smi has them"),
        EnvironmentVariable(name="CUDA_VISIBLE_DEVICES", value=visible, reason="the planned GPUs, by local rank"),
    )


def _nccl(cluster: Cluster, shared: NetworkPort) -> tuple[EnvironmentVariable, ...]:
    """NCCL's interfaces, which it reads once per process; which transport a group takes is in its own options."""
    sockets = EnvironmentVariable(
        name="NCCL_SOCKET_IFNAME",
        value=f"={shared.netdev}",
        reason=f"groups between clusters and NCCL's bootstrap use {shared.netdev} and nothing else",
    )
    port = cluster.fabric.port_of(shared.host)
    hcas = port.hcas if port is not None and cluster.fabric.kind in RDMA_KINDS else ()
    if hcas:
        rdma = EnvironmentVariable(
            name="NCCL_IB_HCA",
            value="=" + ",".join(hcas),
            reason=f"groups inside cluster {cluster.name} use exactly these {cluster.fabric.kind} ports",
        )
    else:
        rdma = EnvironmentVariable(
            name="NCCL_IB_DISABLE",
            value="1",
            reason=f"cluster {cluster.name} has no RDMA ports that all its hosts share",
        )
    return (sockets, rdma)
