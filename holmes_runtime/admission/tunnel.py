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
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from holmes_runtime.admission.own_sockets import ESTABLISHED, all_connections
from holmes_runtime.config.node_config import NodeConfig, TunnelConfig, TunnelEnd, TunnelFault

FIRST_PORT = 51820  # WireGuard's own
PORTS_TRIED = 100
HEADERS_BYTES = 80  # of the way's MTU, as `wg-quick` leaves for IPv6, UDP and WireGuard
LOCK_TIMEOUT_S = 3.0
DRAIN_S = 1.0
TOOL_TIMEOUT_S = 20.0
POLL_S = 0.02
IP_MTU = 14  # linux/in.h
UNSENT = (ESTABLISHED, 4, 9, 11)  # FIN_WAIT1, LAST_ACK and CLOSING of net/tcp_states.h: the peer lacks something yet
TOOL_FOLDERS = "/usr/local/sbin:/usr/sbin:/sbin"  # where others than root do not look
PACKAGES = {"wg": "wireguard-tools", "ip": "iproute2 (iproute on RHEL)", "wireguard-go": "wireguard-go"}


class TunnelRefused(Exception):
    """There can be no tunnel; `fault` has why, and the remedy."""

    def __init__(self, evidence: str, remedy: str) -> None:
        super().__init__(evidence)
        self.fault = TunnelFault(evidence, remedy)


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
            return refused.fault

    def _open(self) -> TunnelEnd:
        self._record = _locked(_record_file(self._folder), LOCK_TIMEOUT_S)
        if self._record is None:
            what = f"another run on this host has a tunnel, {self._interface}, and a host has one at a time"
            raise TunnelRefused(what, "wait for its end, or end it: `holmes ps` lists runs, `holmes stop` ends one")
        _remove_recorded(self._record)
        if self._interface in _interfaces():
            what = f"an interface {self._interface} is there that no run of this user has recorded"
            raise TunnelRefused(what, f"if nobody uses it: `ip link delete dev {self._interface}`, as root")
        address = self._addresses[self._node_rank]
        written = {"interface": self._interface, "index": None, "address": address, "folder": str(self._folder)}
        _write(self._record, json.dumps(written))
        try:
            self._make_interface()
        except TunnelRefused:
            os.ftruncate(self._record, 0)  # one of that name, if there is any by now, is somebody else's
            raise
        index = _interfaces().get(self._interface)
        if index is None:
            raise TunnelRefused(f"{self._interface} was made, and is not there", "see whether something removes it")
        _write(self._record, json.dumps({**written, "index": index}))
        private_key = _run("wg", "genkey")
        _as_root("wg", "set", self._interface, "private-key", "/dev/stdin", given=private_key)
        prefix = 32 - (len(self._addresses) + 1).bit_length()
        _as_root("ip", "address", "add", f"{address}/{prefix}", "dev", self._interface)
        _as_root("ip", "link", "set", "dev", self._interface, "up")
        return TunnelEnd(_run("wg", "pubkey", given=private_key), self._listen())

    def meet(self, ends: Sequence[TunnelEnd]) -> TunnelFault | None:
        """Take `ends`, by node rank, for the peers, each alone with its own address; why that failed, if it did."""
        try:
            words: list[str] = []
            mtus = []
            for rank, end in enumerate(ends):
                if rank != self._node_rank:
                    at = self._endpoints[rank]
                    words += ["peer", end.public_key, "endpoint", f"{at}:{end.port}"]
                    words += ["allowed-ips", f"{self._addresses[rank]}/32"]
                    mtus.append(_mtu_to(at))
            if mtus:
                _as_root("wg", "set", self._interface, *words)
                mtu = min(mtus) - HEADERS_BYTES
                _as_root("ip", "link", "set", "dev", self._interface, "mtu", str(mtu))
        except TunnelRefused as refused:
            return refused.fault
        except OSError as error:
            return TunnelFault(f"no way to the other nodes: {error.strerror}", "look at addresses and routes there")
        return None

    def let_go(self) -> None:
        """Leave it to whoever cleans up after this agent."""
        if self._record is not None:
            os.close(self._record)
            self._record = None

    def _make_interface(self) -> None:
        """By the kernel where it can, else by wireguard-go."""
        _tool("wg")
        if _try_as_root("ip", "link", "add", "dev", self._interface, "type", "wireguard") is None:
            return
        if shutil.which("wireguard-go", path=_path()) is None:
            what = "the kernel has no WireGuard, and wireguard-go is not installed"
            raise TunnelRefused(what, "load the kernel's (`modprobe wireguard`), or install wireguard-go")
        _as_root("wireguard-go", self._interface)

    def _listen(self) -> int:
        """The first free UDP port from WireGuard's own on, so that a firewall can be opened for it."""
        for port in range(FIRST_PORT, FIRST_PORT + PORTS_TRIED):
            if _try_as_root("wg", "set", self._interface, "listen-port", str(port)) is None:
                return port
        what = f"no UDP port from {FIRST_PORT} to {FIRST_PORT + PORTS_TRIED - 1} is free"
        raise TunnelRefused(what, "end what uses them: `ss -lunp` shows it")


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
        index = _interfaces().get(name)
        if index is not None and recorded["index"] in (None, index):
            _as_root("ip", "link", "delete", "dev", name)
        os.ftruncate(record, 0)


def _drain(address: str) -> None:
    """Wait, not for long, until peers have got what processes that ended have sent from `address`."""
    deadline = time.monotonic() + DRAIN_S
    while time.monotonic() < deadline:
        if not any(each.local.address == address and each.state in UNSENT for each in all_connections()):
            return
        time.sleep(POLL_S)


def _mtu_to(address: str) -> int:
    """The MTU of the way there, as far as the kernel knows it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.connect((address, FIRST_PORT))  # sends nothing
        return one.getsockopt(socket.IPPROTO_IP, IP_MTU)


def _interfaces() -> dict[str, int]:
    """The index of every interface, by name."""
    return {name: index for index, name in socket.if_nameindex()}


def _path() -> str:
    return f"{os.environ.get('PATH', os.defpath)}:{TOOL_FOLDERS}"


def _tool(name: str) -> str:
    """Where the tool is. Raises TunnelRefused with the package that has it."""
    found = shutil.which(name, path=_path())
    if found is None:
        raise TunnelRefused(f"`{name}` is not installed", f"install the package {PACKAGES[name]}")
    return found


def _run(*command: str, given: str = "") -> str:
    """What the tool prints. Raises TunnelRefused with what it said."""
    done = _finished([_tool(command[0]), *command[1:]], given)
    if done.returncode != 0:
        raise TunnelRefused(_said(command, done), "see that it works there by hand")
    return done.stdout.strip()


def _as_root(*command: str, given: str = "") -> None:
    """Run the tool as root. Raises TunnelRefused with what it said, and how to get the rights if they lack."""
    refusal = _try_as_root(*command, given=given)
    if refusal is not None:
        raise TunnelRefused(refusal, "see that it works there by hand")


def _try_as_root(*command: str, given: str = "") -> str | None:
    """What the tool said when it failed, None if it did not. Raises TunnelRefused where the rights lack."""
    tool = [_tool(command[0]), *command[1:]]
    if os.geteuid() == 0:
        done = _finished(tool, given)
        if "Operation not permitted" in done.stderr:
            what = f"{_said(command, done)}: root may not make interfaces here"
            raise TunnelRefused(what, "give the container the capability: `--cap-add NET_ADMIN --device /dev/net/tun`")
        return None if done.returncode == 0 else _said(command, done)
    if shutil.which("sudo", path=_path()) is None:
        raise TunnelRefused("this user is not root, and there is no sudo", "log in as root, or install sudo")
    done = _finished(["sudo", "-n", *tool], given)
    if done.stderr.startswith("sudo:") or "Operation not permitted" in done.stderr:
        names = ", ".join(found for name in PACKAGES if (found := shutil.which(name, path=_path())))
        remedy = f"log in as root, or let the user run, without a password, {names}: a line in /etc/sudoers.d"
        raise TunnelRefused(f"this user is not root: {_said(('sudo -n', *command), done)}", remedy)
    return None if done.returncode == 0 else _said(command, done)


def _finished(command: Sequence[str], given: str) -> subprocess.CompletedProcess[str]:
    """The command, run to its end. Raises TunnelRefused where it has none."""
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        return subprocess.run(
            command, input=given, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        what = f"`{' '.join(command)}` gave no answer in {TOOL_TIMEOUT_S:g} s"
        raise TunnelRefused(what, "see that it works there by hand") from None


def _said(command: Sequence[str], done: subprocess.CompletedProcess[str]) -> str:
    lines = done.stderr.strip().splitlines() or ["no message"]
    return f"`{' '.join(command)}` ended with {done.returncode}: {lines[-1]}"
