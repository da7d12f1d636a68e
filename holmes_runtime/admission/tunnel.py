"""The encrypted way between the nodes of a run: a WireGuard interface on each, with keys of this run alone.

The private key is made here, goes from one tool's output to another's input, and is kept by the kernel or wireguard-go
alone. What is made is recorded in a file of this host, which the agent holds locked while it lives. Whoever finds it
unlocked takes down what it names: the agent's relay, `end_agent`, the next run. wireguard-go ends with its interface.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from holmes_runtime.admission.own_sockets import ESTABLISHED, all_connections
from holmes_runtime.admission.wireguard_tools import (
    Peer,
    TunnelRefused,
    interfaces,
    make_interface,
    meet,
    remove_interface,
    set_up,
)
from holmes_runtime.config.node_config import NodeConfig, TunnelConfig, TunnelEnd, TunnelFault

LOCK_TIMEOUT_S = 3.0
DRAIN_S = 1.0
POLL_S = 0.02
UNSENT = (ESTABLISHED, 4, 9, 11)  # FIN_WAIT1, LAST_ACK and CLOSING of net/tcp_states.h: the peer lacks something yet


class Tunnel:
    """This node's end for as long as its agent lives. `folder` is the node's own."""

    def __init__(self, config: NodeConfig, tunnel: TunnelConfig, folder: Path) -> None:
        self._interface, self._endpoints = tunnel.interface, tunnel.endpoints
        self._addresses, self._node_rank = config.node_addresses, config.node_rank
        self._folder = folder
        self._record: int | None = None

    def open(self) -> TunnelEnd | TunnelFault:
        """Make the interface, with a key and a port of its own, that knows nobody yet; or why it cannot be made."""
        try:
            return self._open()
        except TunnelRefused as refused:
            return TunnelFault(refused.evidence, refused.remedy)

    def _open(self) -> TunnelEnd:
        self._record = _locked(_record_file(self._folder), LOCK_TIMEOUT_S)
        if self._record is None:
            what = f"another run on this host has a tunnel, {self._interface}, and a host has one at a time"
            raise TunnelRefused(what, "wait for its end, or end it: `holmes ps` lists runs, `holmes stop` ends one")
        _remove_recorded(self._record)
        if self._interface in interfaces():
            what = f"an interface {self._interface} is there that no run of this user has recorded"
            raise TunnelRefused(what, f"if nobody uses it: `ip link delete dev {self._interface}`, as root")
        address = self._addresses[self._node_rank]
        written = {"interface": self._interface, "index": None, "address": address, "folder": str(self._folder)}
        _write(self._record, json.dumps(written))
        try:
            make_interface(self._interface)
        except TunnelRefused:
            os.ftruncate(self._record, 0)  # one of that name, if there is any by now, is somebody else's
            raise
        index = interfaces().get(self._interface)
        if index is None:
            raise TunnelRefused(f"{self._interface} was made, and is not there", "see whether something removes it")
        _write(self._record, json.dumps({**written, "index": index}))
        prefix = 32 - (len(self._addresses) + 1).bit_length()
        return TunnelEnd(*set_up(self._interface, f"{address}/{prefix}"))

    def meet(self, ends: Sequence[TunnelEnd]) -> TunnelFault | None:
        """Take `ends`, by node rank, for the peers, each alone with its own address; why that failed, if it did."""
        try:
            peers = [
                Peer(end.public_key, self._endpoints[rank], end.port, self._addresses[rank])
                for rank, end in enumerate(ends)
                if rank != self._node_rank
            ]
            meet(self._interface, peers)
        except TunnelRefused as refused:
            return TunnelFault(refused.evidence, refused.remedy)
        except OSError as error:
            return TunnelFault(f"no way to the other nodes: {error.strerror}", "look at addresses and routes there")
        return None

    def let_go(self) -> None:
        """Leave it to whoever cleans up after this agent."""
        if self._record is not None:
            os.close(self._record)
            self._record = None


def take_down(folder: Path) -> bool:
    """Remove the tunnel that an agent, now ended, has made for `folder`; whether none is left."""
    file = _record_file(folder)
    if not file.exists():
        return True
    record = _locked(file, 0.0)
    if record is None:  # of an agent that lives
        return False
    try:
        recorded = _read(record)
        if recorded is not None and recorded["folder"] == str(folder):
            _drain(str(recorded["address"]))
            _remove_recorded(record)
        return True
    except TunnelRefused:
        return False  # it stays recorded, for the next run
    finally:
        os.close(record)


def _record_file(folder: Path) -> Path:
    """A file of this host, wherever homes lie: it is two folders above those of runs."""
    return folder.parents[2] / f"tunnel-{socket.gethostname()}.json"


def _locked(file: Path, limit_s: float) -> int | None:
    """A descriptor of the file that is locked as long as it is open; None if another's is."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + limit_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(descriptor)
                return None
            time.sleep(POLL_S)
        else:
            return descriptor


def _write(record: int, text: str) -> None:
    """Make `text` all that is in the record, by one call, so that nobody finds half of it."""
    os.pwrite(record, text.encode().ljust(os.fstat(record).st_size), 0)
    os.fsync(record)


def _read(record: int) -> dict[str, object] | None:
    text = os.pread(record, os.fstat(record).st_size, 0).strip()
    with contextlib.suppress(ValueError):
        recorded: dict[str, object] = json.loads(text)
        return recorded
    return None


def _remove_recorded(record: int) -> None:
    """Remove the interface that is recorded, unless another has its name by now. Raises TunnelRefused."""
    recorded = _read(record)
    if recorded is not None:
        name = str(recorded["interface"])
        index = interfaces().get(name)
        if index is not None and recorded["index"] in (None, index):
            remove_interface(name)
        os.ftruncate(record, 0)


def _drain(address: str) -> None:
    """Wait, not for long, until peers have got what processes that ended have sent from `address`."""
    deadline = time.monotonic() + DRAIN_S
    while time.monotonic() < deadline:
        if not any(each.local.address == address and each.state in UNSENT for each in all_connections()):
            return
        time.sleep(POLL_S)
