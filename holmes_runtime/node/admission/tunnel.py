"""The encrypted tunnel between the nodes of a run: a WireGuard interface on each, with keys of this run alone.

The private key is made here, piped from one tool to another, and kept only by the kernel or wireguard-go. The interface
is recorded in a file of this host that the agent holds locked while it lives. The agent's relay, `end_agent` and the
next run each remove the recorded interface when they find the file unlocked. wireguard-go ends with its interface.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Sequence
from ipaddress import IPv4Interface
from pathlib import Path

from holmes_runtime.config.node_config import NodeConfig, TunnelConfig, TunnelEnd, TunnelFault
from holmes_runtime.node.admission.own_sockets import ESTABLISHED, all_connections
from holmes_runtime.node.admission.wireguard_tools import (
    Peer,
    TunnelRefused,
    forget_rules,
    interfaces,
    let_relay,
    make_interface,
    meet,
    remove_interface,
    set_up,
)

LOCK_TIMEOUT_S = 3.0
DRAIN_S = 1.0
POLL_S = 0.02
UNSENT = (ESTABLISHED, 4, 9, 11)  # FIN_WAIT1, LAST_ACK and CLOSING of net/tcp_states.h: the peer lacks data still


class Tunnel:
    """This node's end of the tunnel, for the life of its agent. `folder` is the node's own."""

    def __init__(self, config: NodeConfig, tunnel: TunnelConfig, folder: Path) -> None:
        self._interface, self._endpoints = tunnel.interface, tunnel.endpoints
        self._hub, self._relayed = tunnel.hub, tunnel.relayed
        self._addresses, self._node_rank = config.node_addresses, config.node_rank
        self._folder = folder
        self._record: int | None = None
        self._keys = frozenset[str]()  # of its peers

    def open(self) -> TunnelEnd | TunnelFault:
        """Make the interface, with its own key and port and without peers. Return the fault if that fails."""
        try:
            return self._open()
        except TunnelRefused as refused:
            return TunnelFault(refused.evidence, refused.remedy)

    def _open(self) -> TunnelEnd:
        self._record = _locked(_record_file(self._folder), LOCK_TIMEOUT_S)
        if self._record is None:
            what = f"another run on this host has a tunnel, {self._interface}, and a host can have only one"
            raise TunnelRefused(what, "wait for its end, or end it: `holmes ps` lists runs, `holmes stop` ends one")
        _remove_recorded(self._record)
        if self._interface in interfaces():
            what = f"interface {self._interface} exists, but no run of this user has recorded it"
            raise TunnelRefused(what, f"if it is not in use: `ip link delete dev {self._interface}`, as root")
        address = self._addresses[self._node_rank]
        written = {"interface": self._interface, "index": None, "address": address, "folder": str(self._folder)}
        _write(self._record, json.dumps(written))
        try:
            make_interface(self._interface)
        except TunnelRefused:
            os.ftruncate(self._record, 0)  # an interface of that name, if one exists by now, is not ours
            raise
        index = interfaces().get(self._interface)
        if index is None:
            raise TunnelRefused(f"interface {self._interface} was made but is gone", "find out what removes it")
        _write(self._record, json.dumps({**written, "index": index}))
        inside = IPv4Interface(f"{address}/{32 - (len(self._addresses) + 1).bit_length()}")
        if self._hub != self._node_rank:
            return TunnelEnd(*set_up(self._interface, str(inside)))
        let_relay(self._interface, str(inside.network))
        return TunnelEnd(*set_up(self._interface, str(inside), ports=1))  # the one that is open there

    def meet(self, ends: Sequence[TunnelEnd | None]) -> TunnelFault | None:
        """Make `ends`, by node rank, the only peers. Each has its own address, and the hub also the relayed ones.

        Return the fault if that fails. Traffic with known peers is not disturbed.
        """
        try:
            peers = [
                self._peer(rank, end)
                for rank, end in enumerate(ends)
                if end is not None and rank != self._node_rank and rank not in self._relayed
            ]
            meet(self._interface, peers, self._keys)
            self._keys = frozenset(peer.public_key for peer in peers)
        except TunnelRefused as refused:
            return TunnelFault(refused.evidence, refused.remedy)
        except OSError as error:
            return TunnelFault(f"no route to the other nodes: {error.strerror}", "check its addresses and routes")
        return None

    def _peer(self, rank: int, end: TunnelEnd) -> Peer:
        """Return a node as a peer. Ends other than the hub's may be behind NAT, so they keep their paths open."""
        relayed = [self._addresses[each] for each in self._relayed] if rank == self._hub else []
        is_kept = self._hub not in (None, self._node_rank)
        return Peer(end.public_key, self._endpoints[rank], end.port, self._addresses[rank], relayed, is_kept)

    def release(self) -> None:
        """Release the lock; the interface is left for the relay, `end_agent` or the next run to remove."""
        if self._record is not None:
            os.close(self._record)
            self._record = None


def take_down(folder: Path) -> bool:
    """Remove the tunnel that an agent, now ended, made for `folder`. Return True if none is left of it."""
    file = _record_file(folder)
    if not file.exists():
        return True
    record = _locked(file, 0.0)
    if record is None:  # a live agent has a tunnel, its own or the tunnel of all islands
        return not _is_recorded(file, folder)
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
    """Return the record's path, one per host even where homes are shared: two folders above all runs' folders."""
    return folder.parents[2] / f"tunnel-{socket.gethostname()}.json"


def _locked(file: Path, limit_s: float) -> int | None:
    """Return a descriptor of the file that holds its lock while open; None if another process holds the lock."""
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
    """Overwrite the record with `text` by one call, so that a reader never finds half of it."""
    os.pwrite(record, text.encode().ljust(os.fstat(record).st_size), 0)
    os.fsync(record)


def _read(record: int) -> dict[str, object] | None:
    text = os.pread(record, os.fstat(record).st_size, 0).strip()
    with contextlib.suppress(ValueError):
        recorded: dict[str, object] = json.loads(text)
        return recorded
    return None


def _is_recorded(file: Path, folder: Path) -> bool:
    """Return True if the record, which another process may have locked, names the tunnel made for `folder`."""
    with open(file, "rb") as record:
        recorded = _read(record.fileno())
    return recorded is not None and recorded["folder"] == str(folder)


def _remove_recorded(record: int) -> None:
    """Remove the recorded interface, unless its name now belongs to another. Raises TunnelRefused."""
    recorded = _read(record)
    if recorded is not None:
        name = str(recorded["interface"])
        index = interfaces().get(name)
        if index is None:
            forget_rules(name)  # of a hub whose interface is gone
        elif recorded["index"] in (None, index):
            remove_interface(name)
        os.ftruncate(record, 0)


def _drain(address: str) -> None:
    """Wait up to DRAIN_S until peers have received all that ended processes sent from `address`."""
    deadline = time.monotonic() + DRAIN_S
    while time.monotonic() < deadline:
        if not any(each.local.address == address and each.state in UNSENT for each in all_connections()):
            return
        time.sleep(POLL_S)
