"""Process groups, each bound to its planned network.

Gloo groups are bound to an interface per rank, NCCL groups to a network module per group. The default group is Gloo
and carries only control traffic: set-up checks and barriers.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from holmes_runtime.comm.group_opening import BACKEND, GroupOpening, opening_order, register_backend
from holmes_runtime.comm.record_exchange import refuse_pickles
from holmes_runtime.comm.replica_exchange import LevelDigests, ReplicaExchange
from holmes_runtime.comm.travel_digests import GroupDigests, Pending, TravelDigests
from holmes_runtime.config.rank_grid import Axis, group_key
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.node.nccl_conf import conf_files, settings_in

CPU = torch.device("cpu")


@dataclass(frozen=True)
class RankGroups:
    """The process groups of one rank. A group is None if the rank would be its only member or has no such neighbour.

    `cp` joins the replicas that share its sequences. `dp` joins the replicas of its cluster or, in flat data
    parallelism, all replicas; `dp_across` joins replicas of different clusters. `ep` joins the replicas that share the
    experts of a layer. `expert_dp` and `expert_dp_across` join replicas with the same experts, as `dp` and `dp_across`
    do. `tied` joins a rank of the first stage and one of the last, which hold copies. Activations arrive on
    `forward_in` and leave on `forward_out`; gradients arrive on `backward_in` and leave on `backward_out`. `digests`
    count the traffic of the groups, and are None if digests are not compared.
    """

    tp: ProcessGroup | None = None
    cp: ProcessGroup | None = None
    dp: ProcessGroup | None = None
    dp_across: ProcessGroup | None = None
    ep: ProcessGroup | None = None
    expert_dp: ProcessGroup | None = None
    expert_dp_across: ProcessGroup | None = None
    tied: ProcessGroup | None = None
    forward_in: ProcessGroup | None = None
    forward_out: ProcessGroup | None = None
    backward_in: ProcessGroup | None = None
    backward_out: ProcessGroup | None = None
    digests: TravelDigests | None = None

    @property
    def replicas(self) -> tuple[ProcessGroup, ...]:
        """The groups over which a value is summed, one after another, to become the sum over all replicas."""
        return tuple(group for group in (self.dp, self.dp_across) if group is not None)

    def messages_of(self, name: str) -> GroupDigests | None:
        """Return the digests of messages in the group with that name, such as `dp`."""
        return None if self.digests is None else self.digests.messages.get(name)

    def counted(self, gathering: Pending, name: str) -> Pending:
        """Return `gathering`, with its result counted as weights that all ranks of the group `name` share."""
        copies = None if self.digests is None else self.digests.weights.get(name)
        return gathering if copies is None else copies.watch(gathering)

    def exchange(self, axes: Sequence[Axis]) -> ReplicaExchange:
        """Return the exchange over the existing groups of `axes`."""
        levels = {name: group for name in axes if (group := getattr(self, name)) is not None}
        weights = {} if self.digests is None else self.digests.weights
        digests = [LevelDigests(self.messages_of(name), weights.get(name)) for name in levels]
        return ReplicaExchange(tuple(levels.values()), digests)


def check_interfaces(config: RunConfig, rank: int) -> None:
    """Raise RuntimeError naming host, group and interface if this host lacks an interface of the plan."""
    host = config.grid.rank(rank).host
    present = sorted(name for _, name in socket.if_nameindex())
    for group in config.groups:
        if rank in group.ranks and group.interface_of(rank) not in present:
            raise RuntimeError(
                f"host {host}, rank {rank}: group {group.name} needs interface {group.interface_of(rank)!r}, "
                f"but this host has only: {', '.join(present)}"
            )


def select_device(device: str, local_rank: int, environ: Mapping[str, str]) -> torch.device:
    """Return the device of this rank. On "cuda", make GPU `local_rank` the current one.

    Raises RuntimeError if NCCL_NET is set for a "cuda" run, in the environment or in a file that NCCL reads, as it
    would override the network of every group.
    """
    if device == "cpu":
        return torch.device("cpu")
    found = {
        str(file): value for file in conf_files(environ) for name, value in settings_in(file) if name == "NCCL_NET"
    }
    if "NCCL_NET" in environ:
        found = {"the environment": environ["NCCL_NET"]}
    for where, value in found.items():
        raise RuntimeError(
            f"{where} sets NCCL_NET={value!r}, which would override the network of every group: unset it"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def connect(config: RunConfig, rank: int, world_size: int) -> None:
    """Join the default group (Gloo, control traffic). Raises RuntimeError if the launch has another size."""
    if world_size != config.world_size:
        raise RuntimeError(f"rank {rank}: launched with WORLD_SIZE {world_size}, the run has {config.world_size} ranks")
    refuse_pickles()
    register_backend()
    dist.init_process_group(BACKEND, timeout=timedelta(seconds=config.timeout_s))


def open_groups(
    config: RunConfig,
    rank: int,
    device: torch.device = CPU,
    now: Callable[[str], None] = lambda _: None,
) -> RankGroups:
    """Create all groups of the run, on all ranks in the same order, and return this rank's. Call `now` before each one.

    On "cuda" every communicator is made and tried here. Raises RuntimeError naming a group and its hosts if it cannot
    be made or is not on the planned network.
    """
    opening = GroupOpening(config, rank, device, os.environ)
    opened = {}
    for group in opening_order(config):
        if rank in group.ranks:
            now(f"making {opening.in_words(group)}")
        opened[group.key] = opening.open(group)
    for line in opening.evidence:
        print(f"rank {rank}: {line}", flush=True)
    me = config.grid.rank(rank)

    def of(axis: Axis, ranks: tuple[int, ...] | None) -> ProcessGroup | None:
        return None if ranks is None else opened[group_key(axis, ranks)]

    before, after = config.grid.edge_before(me), config.grid.edge_after(me)
    exchanges = {**config.grid.exchanges(me), **config.grid.expert_exchanges(me)}
    return RankGroups(
        tp=of("tp", config.grid.shards(me) if config.tp > 1 else None),
        cp=of("cp", config.grid.sequence(me) if config.cp > 1 else None),
        dp=of("dp", exchanges.get("dp")),
        dp_across=of("dp_across", exchanges.get("dp_across")),
        ep=of("ep", config.grid.expert_peers(me) if config.grid.expert_replicas > 1 else None),
        expert_dp=of("expert_dp", exchanges.get("expert_dp")),
        expert_dp_across=of("expert_dp_across", exchanges.get("expert_dp_across")),
        tied=of("tied", config.grid.tied(me)),
        forward_in=of("pp_forward", before),
        forward_out=of("pp_forward", after),
        backward_in=of("pp_backward", after),
        backward_out=of("pp_backward", before),
        digests=TravelDigests(config, me),
    )
