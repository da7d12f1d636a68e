"""Open process groups one after another, each on its planned network, and check that it is there.

Gloo groups are bound to an interface per rank, NCCL groups to a network module per group. The network of a Gloo group
is read from the sockets it has opened, that of an NCCL group from NCCL's own log.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store
from torch.distributed import ProcessGroup, ProcessGroupGloo

from holmes_runtime.comm import networks_in_use
from holmes_runtime.comm.nccl_log import NcclLog, NcclSays
from holmes_runtime.config.node_config import hca_ports
from holmes_runtime.config.rank_grid import EDGE_AXES, Group
from holmes_runtime.config.rank_metrics import counters_increase
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.node.admission.group_members import GroupMembers, closed_device
from holmes_runtime.node.admission.own_sockets import OwnSocket, own_connections
from holmes_runtime.node.interface_counters import read_port_counters

BACKEND = "holmes"
GLOO_THREADS = 2  # torch's own default for a Gloo group
EDGE_CTAS = 4  # a posted receive occupies this many SMs until its data arrives, and a rank may have four edges
TEST_BYTES = 1 << 20


class GlooInterface(ProcessGroupGloo._Options):  # type: ignore[misc,name-defined]
    """Options of one "holmes" group: the interface of this rank, and the connections to each other member."""

    def __init__(self, group_name: str, interface: str, streams: int) -> None:
        super().__init__()
        self.holmes_group = group_name
        self.interface = interface
        self.streams = streams


def register_backend() -> None:
    """Register the backend "holmes" with torch.distributed, unless it is registered already."""
    if BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(BACKEND, _create_gloo, extended_api=True, devices=["cpu", "cuda"])


def _create_gloo(options: Any, interface: GlooInterface | None) -> ProcessGroupGloo:
    """Make a group of the backend "holmes". torch calls this."""
    return make_gloo(options.store, options.group_rank, options.group_size, options.timeout, interface)


def make_gloo(
    store: Store, rank: int, size: int, timeout: timedelta, interface: GlooInterface | None
) -> ProcessGroupGloo:
    """Return a Gloo group of authenticated members, on devices of one interface. They meet in `store`.

    A group that carries tensors is connected at once. Otherwise an end that connects at its first message may wait
    there for the other end, and two ranks that each post a receive first, on an edge's two groups, would wait for each
    other. A control group may connect late, as on GPUs: then the members' hosts stay admitted, and the ends of
    connections are not compared.

    Raises:
        RuntimeError: the interface cannot be used, or a process that is not a member is in the group.
    """
    lazily = interface is None and os.environ.get("TORCH_GLOO_LAZY_INIT") == "1"
    opened = [
        closed_device(lambda: _gloo_device(interface, lazily)) for _ in range(interface.streams if interface else 1)
    ]
    gloo = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    gloo._devices = [device for device, _ in opened]
    gloo._threads = GLOO_THREADS
    gloo._timeout = timeout
    members = GroupMembers(store, rank, size, [socket for _, socket in opened])
    members.admit()
    group = ProcessGroupGloo(store, rank, size, gloo)
    if not lazily:
        members.check()
    return group


def _gloo_device(interface: GlooInterface | None, lazily: bool) -> Any:
    """Return a device on the group's interface, or without one, on that of GLOO_SOCKET_IFNAME.

    torch reads the variable only for groups that it makes itself. Its default device is on the address of the host's
    name.
    """
    name = interface.interface if interface is not None else os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    if not name:
        return ProcessGroupGloo.create_default_device(lazy_init=lazily)
    try:
        return ProcessGroupGloo.create_device(interface=name, lazy_init=lazily)
    except RuntimeError as error:
        raise RuntimeError(f"cannot use interface {name!r}: {error}") from error


def new_control_group(timeout_s: float) -> ProcessGroup:
    """Return another Gloo group of all ranks, on the network of the default group."""
    register_backend()
    group: ProcessGroup = dist.new_group(backend=BACKEND, timeout=timedelta(seconds=timeout_s))
    return group


def nccl_fields(group: Group) -> dict[str, str | int]:
    """Return the fields of NCCL's configuration that bind `group` to its network and limit the kernels of an edge."""
    bound: dict[str, str | int] = {"max_ctas": EDGE_CTAS} if group.axis in EDGE_AXES else {}
    return bound if group.net_name is None else {"net_name": group.net_name, **bound}


def opening_order(config: RunConfig) -> Sequence[Group]:
    """Return the groups of the run in the order in which all ranks make them.

    Making a group blocks its members. Every second edge of a pipeline comes first, so edges are made in parallel
    instead of each after its neighbour.
    """

    def turn(group: Group) -> int:
        return config.grid.rank(group.ranks[0]).pp_rank % 2 if group.axis in EDGE_AXES else 0

    return sorted(config.groups, key=turn)


def send_test_message(group: Group, opened: ProcessGroup, rank: int, device: torch.device) -> None:
    """Send TEST_BYTES in the way the group will be used, and wait for them. NCCL connects at the first message."""
    message = torch.zeros(TEST_BYTES, dtype=torch.uint8, device=device)
    if group.axis not in EDGE_AXES:
        dist.all_reduce(message, group=opened)
    else:
        source, target = group.ranks if group.axis == "pp_forward" else reversed(group.ranks)
        if rank == source:
            dist.send(message, dst=target, group=opened)
        else:
            dist.recv(message, src=source, group=opened)
    torch.cuda.current_stream(device).synchronize()


@dataclass(frozen=True)
class Calls:
    """The functions of torch and of the system that are used to open a group."""

    new_group: Callable[..., Any] = dist.new_group
    nccl_options: Callable[[], Any] = lambda: dist.ProcessGroupNCCL.Options()
    try_out: Callable[[Group, ProcessGroup, int, torch.device], None] = send_test_message
    own_connections: Callable[[], set[OwnSocket]] = own_connections


class GroupOpening:
    """Makes the groups of one rank. `evidence` has a line about the network of each NCCL group, and its source."""

    def __init__(
        self,
        config: RunConfig,
        rank: int,
        device: torch.device,
        environ: Mapping[str, str],
        calls: Calls | None = None,
    ) -> None:
        register_backend()
        self._config, self._rank, self._device = config, rank, device
        self._timeout = timedelta(seconds=config.timeout_s)
        self._calls = calls or Calls()
        self._log = NcclLog(environ)
        self._ports = hca_ports(environ.get("NCCL_IB_HCA", ""))
        self.evidence: list[str] = []

    def in_words(self, group: Group) -> str:
        """Return the name, axis and hosts of the group."""
        hosts = dict.fromkeys(self._config.grid.rank(rank).host for rank in group.ranks)
        return f"group {group.name} ({group.axis} on {', '.join(hosts)})"

    def open(self, group: Group) -> ProcessGroup | None:
        """Return the process group, or None on ranks outside it, which also take part in its creation.

        Raises RuntimeError naming the group and its hosts if it cannot be made or is not on the planned network.
        """
        if self._rank not in group.ranks:
            self._new_group(group, None)
            return None
        try:
            return self._open_nccl(group) if self._config.device == "cuda" else self._open_gloo(group)
        except RuntimeError as error:
            warnings = "".join(f"; NCCL: {text}" for text in self._log.read_more().warnings)
            host = self._config.grid.rank(self._rank).host
            raise RuntimeError(f"host {host}, rank {self._rank}: {self.in_words(group)}: {error}{warnings}") from error

    def _new_group(self, group: Group, options: Any, **bound: Any) -> Any:
        return self._calls.new_group(
            list(group.ranks),
            timeout=self._timeout,
            backend="nccl" if self._config.device == "cuda" else BACKEND,
            pg_options=options,
            group_desc=group.name,
            **bound,
        )

    def _open_gloo(self, group: Group) -> ProcessGroup:
        planned = group.interface_of(self._rank)
        before = self._calls.own_connections()
        opened: ProcessGroup = self._new_group(group, GlooInterface(group.name, planned, group.streams))
        made = self._calls.own_connections() - before
        used = networks_in_use.other_interfaces(planned, made, networks_in_use.interface_addresses())
        if used:
            raise RuntimeError(f"is to use {planned}, but uses {', '.join(used)}")
        return opened

    def _open_nccl(self, group: Group) -> ProcessGroup:
        """Open an NCCL group. As the device is given, the communicator is made now; the first message connects it."""
        options = self._calls.nccl_options()  # a new object for each group, as torch keeps it and writes to it
        options._timeout = self._timeout
        for field, value in nccl_fields(group).items():
            setattr(options.config, field, value)
        self._log.read_more()
        opened: ProcessGroup = self._new_group(group, options, device_id=self._device)
        made = self._log.read_more()
        self._check(group, made)
        before = read_port_counters(self._ports)
        self._calls.try_out(group, opened, self._rank, self._device)
        moved = counters_increase(before, read_port_counters(self._ports))
        rdma_bytes = sum(port.sent_bytes + port.received_bytes for port in moved.values()) if moved else None
        self.evidence.append(_evidence(group, made, self._log.read_more(), rdma_bytes))
        return opened

    def _check(self, group: Group, made: NcclSays) -> None:
        planned = group.net_name
        if planned is not None and made.network is not None and made.network.lower() != planned.lower():
            raise RuntimeError(
                f"is to use {planned}, but NCCL's log says `Using network {made.network}`: look for NCCL_NET in the "
                "environment and NCCL's conf files, and for what NCCL_DEBUG=INFO says about that network"
            )


def _evidence(group: Group, made: NcclSays, connected: NcclSays, rdma_bytes: int | None) -> str:
    """Return the network of `group` and the evidence. `rdma_bytes`: bytes moved by the host's planned RDMA ports."""
    if made.network is None:
        seen = "RDMA ports that cannot be read" if rdma_bytes is None else f"{rdma_bytes} bytes over the RDMA ports"
        return f"{group.name}: planned on {group.net_name}; NCCL wrote no log, a message of {TEST_BYTES} moved {seen}"
    nics = (*made.nics, *connected.nics)
    by = f" by {', '.join(nics)}" if nics else ""
    direct = {None: "", True: ", from GPU memory", False: ", by way of host memory"}[connected.gpu_direct]
    return f"{group.name}: on {made.network}{by}{direct}, says NCCL's log"
