"""Wrappers of the torch functions that make process groups, which bind each group to the network of its members.

torch makes all groups in one function, `_new_process_group_helper`, also for DeviceMesh, Megatron-Core and accelerate.
No file is edited. The private names are those in torch 2.11 to 2.15.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

from holmes_runtime.config.node_config import TRAINER_VARIABLE
from holmes_runtime.config.trainer_config import TrainerConfig, read_trainer_config
from holmes_runtime.hook.group_network import GroupBinding, network_of
from holmes_runtime.hook.group_report import GroupReport

MAKES_GROUPS = "_new_process_group_helper"
OPTIONS = ("backend_options", "pg_options")  # names of that argument in different versions of torch
BINDS = {"gloo", "nccl"}  # backends whose groups can be bound to a network
GLOO_THREADS = 2  # torch's default for a Gloo group
COMMS_VARIABLE = "TORCH_DISTRIBUTED_USE_TORCHCOMMS"


def hook_groups(c10d: Any, environ: Mapping[str, str] = os.environ) -> None:
    """Wrap the functions of the module `c10d`.

    Raises:
        RuntimeError: Some groups could not be bound; the message has a remedy.
    """
    _refuse_overrides(environ)
    helper = getattr(c10d, MAKES_GROUPS, None)
    parameters = inspect.signature(helper).parameters if helper is not None else {}
    options = next((name for name in OPTIONS if name in parameters), None)
    if helper is None or options is None:
        import torch

        raise RuntimeError(
            f"holmes: torch {torch.__version__} makes process groups in another way than torch 2.11 to 2.15, so their "
            "networks cannot be set: install one of these versions, or remove `trainer` from job.yaml"
        )
    config = read_trainer_config(Path(environ[TRAINER_VARIABLE]))
    hook = _GroupHook(c10d, config, int(environ["RANK"]), GroupReport(environ), options)
    setattr(c10d, MAKES_GROUPS, hook.wrapped(helper))
    c10d._get_split_source = lambda _: None  # a split communicator would keep its parent's network
    c10d.split_group = hook.split_group
    c10d._hash_ranks_to_str = hook.name_by_ranks
    if hasattr(c10d, "ProcessGroupGloo"):
        c10d.ProcessGroupGloo = bind_gloo(c10d.ProcessGroupGloo, lambda: hook.binding.interface)


def _refuse_overrides(environ: Mapping[str, str]) -> None:
    if environ.get("NCCL_NET"):
        raise RuntimeError(
            f"holmes: NCCL_NET={environ['NCCL_NET']} would override the network of every process group: unset it on "
            "this host and in the trainer's command"
        )
    if environ.get(COMMS_VARIABLE, "0") not in ("", "0"):
        raise RuntimeError(
            f"holmes: {COMMS_VARIABLE}={environ[COMMS_VARIABLE]} makes groups by torchcomms, which cannot set the "
            "network of a group: unset it"
        )


def _refuse_torchcomms(c10d: Any) -> None:
    """Raise RuntimeError if the script has enabled torchcomms after it imported torch."""
    is_on = getattr(c10d, "_use_torchcomms_enabled", None)
    if is_on is not None and is_on():
        raise RuntimeError(
            "holmes: the script makes its groups by torchcomms (torch.distributed.config.use_torchcomms), which cannot "
            "set the network of a group: remove that setting"
        )


class _GroupHook:
    """The hook in one rank's process. `binding` belongs to the group that is being made."""

    def __init__(self, c10d: Any, config: TrainerConfig, rank: int, report: GroupReport, options: str) -> None:
        self._c10d, self._config, self._rank, self._report, self._options = c10d, config, rank, report, options
        self.binding = GroupBinding(None, None)
        self._named: Counter[str] = Counter()

    def wrapped(self, helper: Callable[..., Any]) -> Callable[..., Any]:
        """Return torch's function, wrapped to set the network of the group that it makes."""
        signature = inspect.signature(helper)

        @wraps(helper)
        def make_group(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs)
            arguments = given.arguments
            is_default = not arguments["global_ranks_in_group"]
            ranks = tuple(range(arguments["group_size"]) if is_default else arguments["global_ranks_in_group"])
            if self._rank not in ranks or len(ranks) < 2:
                return helper(*args, **kwargs)
            if is_default:
                _refuse_torchcomms(self._c10d)
                self._report.begin()
            network = network_of(self._config, ranks)
            backends = _backends(self._c10d, arguments["backend"])
            if network is not None and not BINDS & set(backends):
                self._report.say_unbound(backends)
            interface = self._config.ranks[self._rank].interfaces[network.name] if network is not None else None
            if network is not None and network.net_name is not None and "nccl" in backends:
                arguments[self._options] = self._nccl_options(arguments.get(self._options), network.net_name)
            before, self.binding = self.binding, GroupBinding(network, interface)
            try:
                with self._report.making(arguments, ranks, backends, self.binding):
                    return helper(*given.args, **given.kwargs)
            finally:
                self.binding = before

        return make_group

    def _nccl_options(self, given: Any, net_name: str) -> Any:
        """Return a copy of the options for this group, because engines share one object to which torch writes.

        Options for another backend are returned unchanged, for torch to refuse.
        """
        kind = self._c10d.ProcessGroupNCCL.Options
        if given is not None and not isinstance(given, kind):
            return given
        own = copy.deepcopy(given) if given is not None else kind()
        own.config.net_name = net_name
        return own

    def name_by_ranks(self, ranks: Sequence[int]) -> str:
        """Return a new name for a group that only its members make.

        torch's own name counts all groups of a rank, so members in different numbers of groups would never meet.
        """
        members = "_".join(map(str, ranks))
        self._named[members] += 1
        return hashlib.sha1(f"{members}#{self._named[members]}".encode(), usedforsecurity=False).hexdigest()

    def split_group(
        self,
        parent_pg: Any = None,
        split_ranks: Sequence[Sequence[int]] | None = None,
        timeout: Any = None,
        pg_options: Any = None,
        group_desc: str | None = None,
        backend: Any = None,
        **_: Any,
    ) -> Any:
        """Make a new group instead of splitting `parent_pg`: a split communicator would keep its parent's network."""
        if not split_ranks:
            raise ValueError("split_ranks cannot be None or empty")
        parent = parent_pg or self._c10d._get_default_group()
        ranks = self._c10d.get_process_group_ranks(parent)
        mine = next((part for part in split_ranks if ranks.index(self._rank) in part), None)
        if mine is None:
            return None
        return self._c10d.new_group(
            sorted(ranks[position] for position in mine),
            timeout=timeout,
            backend=str(backend) if backend is not None else self._c10d._world.pg_map[parent][0],
            pg_options=pg_options,
            use_local_synchronization=True,
            group_desc=group_desc,
        )


def _backends(c10d: Any, backend: Any) -> tuple[str, ...]:
    """Return the names of a group's backends: two for `cpu:gloo,cuda:nccl`."""
    return tuple(
        dict.fromkeys(map(str, c10d.BackendConfig(c10d.Backend(str(backend))).get_device_backend_map().values()))
    )


def bind_gloo(gloo: Any, interface: Callable[[], str | None]) -> Any:
    """Return a subclass of `gloo` whose groups use the interface that `interface` returns, or torch's choice for None.

    torch tests with `isinstance` for Gloo groups, also for groups whose Python object is gone, so every Gloo group is
    an instance of the subclass. Options from a script keep all except their devices.
    """

    class OfAnyGloo(type(gloo)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, gloo)

    class ProcessGroupGloo(gloo, metaclass=OfAnyGloo):  # type: ignore[misc]
        def __init__(self, store: Any, rank: int, size: int, *args: Any, **kwargs: Any) -> None:
            name = interface()
            if name is None:
                super().__init__(store, rank, size, *args, **kwargs)
                return
            given: Any = args[0] if args else kwargs.get("options", kwargs.get("timeout"))
            has_options = isinstance(given, gloo._Options)
            options = gloo._Options()
            options._devices = [_device(gloo, name)]
            options._threads = given._threads if has_options else GLOO_THREADS
            timeout = given._timeout if has_options else given
            if timeout is not None:
                options._timeout = timeout
            super().__init__(store, rank, size, options)

    return ProcessGroupGloo


def _device(gloo: Any, interface: str) -> Any:
    lazily = os.environ.get("TORCH_GLOO_LAZY_INIT") == "1"
    try:
        return gloo.create_device(interface=interface, lazy_init=lazily)
    except RuntimeError as error:
        raise RuntimeError(f"holmes: a Gloo group cannot use the planned interface {interface!r}: {error}") from error
