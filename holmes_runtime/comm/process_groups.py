"""Process groups bound to the network each was planned on.

Gloo groups are bound to an interface per rank, NCCL groups to a network module per group. The default group is Gloo
and carries control traffic only: set-up checks and barriers.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, ProcessGroupGloo

from holmes_runtime.comm import networks_in_use
from holmes_runtime.config.rank_grid import Axis, Group, group_key
from holmes_runtime.config.run_config import RunConfig

BACKEND = "holmes"
GLOO_THREADS = 2  # torch's own default for a Gloo group


@dataclass(frozen=True)
class RankGroups:
    """The process groups one rank uses; None where it is the only shard or replica, or has no such neighbour.

    `dp` joins the replicas of its cluster or, in flat data parallelism, all; `dp_across` those of different clusters.
    Activations come over `forward_in` and leave over `forward_out`; gradients come over `backward_in` and leave over
    `backward_out`.
    """

    tp: ProcessGroup | None = None
    dp: ProcessGroup | None = None
    dp_across: ProcessGroup | None = None
    forward_in: ProcessGroup | None = None
    forward_out: ProcessGroup | None = None
    backward_in: ProcessGroup | None = None
    backward_out: ProcessGroup | None = None

    @property
    def replicas(self) -> tuple[ProcessGroup, ...]:
        """The groups over which, one after the other, something becomes the sum over all replicas."""
        return tuple(group for group in (self.dp, self.dp_across) if group is not None)


class GlooInterface(ProcessGroupGloo._Options):  # type: ignore[misc,name-defined]
    """Options of one group of backend "holmes": the interface of this rank, and connections to each other member."""

    def __init__(self, group_name: str, interface: str, streams: int) -> None:
        super().__init__()
        self.holmes_group = group_name
        self.interface = interface
        self.streams = streams


def nccl_fields(group: Group) -> dict[str, str]:
    """The fields of NCCL's communicator configuration that bind `group` to its network."""
    return {} if group.net_name is None else {"net_name": group.net_name}


def check_interfaces(config: RunConfig, rank: int) -> None:
    """Raises RuntimeError, naming host, group and interface, if this host lacks an interface of the plan."""
    host = config.grid.rank(rank).host
    present = sorted(name for _, name in socket.if_nameindex())
    for group in config.groups:
        if rank in group.ranks and group.interface_of(rank) not in present:
            raise RuntimeError(
                f"host {host}, rank {rank}: group {group.name} needs interface {group.interface_of(rank)!r}, "
                f"but this host has only: {', '.join(present)}"
            )


def select_device(device: str, local_rank: int, environ: Mapping[str, str]) -> torch.device:
    """The device of this rank; on "cuda" makes GPU `local_rank` the current one.

    Raises RuntimeError if NCCL_NET is set for a "cuda" run: it would override the network of every group.
    """
    if device == "cpu":
        return torch.device("cpu")
    if "NCCL_NET" in environ:
        raise RuntimeError(
            f"NCCL_NET={environ['NCCL_NET']!r} is set and would override the network of every group: unset it"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def register_backend() -> None:
    """Registers backend "holmes" with torch.distributed, unless that was done before."""
    if BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(BACKEND, _create_gloo, extended_api=True, devices=["cpu"])


def _create_gloo(options: Any, interface: GlooInterface) -> ProcessGroupGloo:
    """A Gloo group on the device of one interface. Raises RuntimeError naming group and interface."""
    gloo = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    try:
        gloo._devices = [
            ProcessGroupGloo.create_device(interface=interface.interface) for _ in range(interface.streams)
        ]
    except RuntimeError as error:
        raise RuntimeError(
            f"host {socket.gethostname()}: group {interface.holmes_group} cannot use interface "
            f"{interface.interface!r}: {error}"
        ) from error
    gloo._threads = GLOO_THREADS
    gloo._timeout = options.timeout
    return ProcessGroupGloo(options.store, options.group_rank, options.group_size, gloo)


def connect(config: RunConfig, rank: int, world_size: int) -> None:
    """Joins the default group (Gloo, control traffic). Raises RuntimeError if the launch is of another size."""
    if world_size != config.world_size:
        raise RuntimeError(f"rank {rank}: launched with WORLD_SIZE {world_size}, the run has {config.world_size} ranks")
    dist.init_process_group("gloo", timeout=timedelta(seconds=config.timeout_s))


def open_groups(config: RunConfig, rank: int) -> RankGroups:
    """Creates all groups of the run, on all ranks in the order of the configuration, and picks those of `rank`."""
    register_backend()
    opened = {group.key: _open_group(config, group, rank) for group in config.groups}
    me = config.grid.rank(rank)

    def of(axis: Axis, ranks: tuple[int, ...] | None) -> ProcessGroup | None:
        return None if ranks is None else opened[group_key(axis, ranks)]

    before, after = config.grid.edge_before(me), config.grid.edge_after(me)
    exchanges = config.grid.exchanges(me)
    return RankGroups(
        tp=of("tp", config.grid.shards(me) if config.tp > 1 else None),
        dp=of("dp", exchanges.get("dp")),
        dp_across=of("dp_across", exchanges.get("dp_across")),
        forward_in=of("pp_forward", before),
        forward_out=of("pp_forward", after),
        backward_in=of("pp_backward", after),
        backward_out=of("pp_backward", before),
    )


def _open_group(config: RunConfig, group: Group, rank: int) -> ProcessGroup | None:
    """The process group of `group`, or None on ranks outside it, which take part in its creation all the same.

    Raises RuntimeError if it does not use the network of the plan.
    """
    timeout = timedelta(seconds=config.timeout_s)
    is_member = rank in group.ranks
    backend, options = BACKEND, None
    if config.device == "cuda":
        backend, options = "nccl", _nccl_options(group)
    elif is_member:
        options = GlooInterface(group.name, group.interface_of(rank), group.streams)
    before = networks_in_use.own_connections()
    opened: ProcessGroup = dist.new_group(
        list(group.ranks), timeout=timeout, backend=backend, pg_options=options, group_desc=group.name
    )
    if not is_member:
        return None
    if config.device == "cuda":
        nccl: Any = opened._get_backend(torch.device("cuda"))
        wrong = networks_in_use.other_fields(nccl_fields(group), nccl.options.config)
    else:
        made = networks_in_use.own_connections() - before
        wrong = networks_in_use.other_interfaces(group.interface_of(rank), made, networks_in_use.interface_addresses())
    if wrong:
        raise RuntimeError(
            f"host {config.grid.rank(rank).host}, rank {rank}: group {group.name} is to use "
            f"{group.net_name if config.device == 'cuda' else group.interface_of(rank)}, but uses {', '.join(wrong)}"
        )
    return opened


def _nccl_options(group: Group) -> Any:
    """NCCL options of one group; a fresh object for each, as torch keeps and writes to them."""
    options = dist.ProcessGroupNCCL.Options()
    for field, value in nccl_fields(group).items():
        setattr(options.config, field, value)
    return options
