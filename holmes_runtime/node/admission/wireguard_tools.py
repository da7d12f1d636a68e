"""WireGuard by its tools: `wg`, `ip`, and wireguard-go where the kernel has no WireGuard, as root or by `sudo -n`.

Standard library only and for Python >= 3.7: a probe sends this file to hosts on which nothing is installed.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Collection, Sequence
from typing import NamedTuple

FIRST_PORT = 51820  # WireGuard's own
PORTS_TRIED = 100
HEADERS_BYTES = 80  # left free in the MTU to the peer, as by `wg-quick`, for IPv6, UDP and WireGuard
TOOL_TIMEOUT_S = 20.0
IP_MTU = 14  # linux/in.h
TOOL_FOLDERS = "/usr/local/sbin:/usr/sbin:/sbin"  # not in the PATH of users other than root
PACKAGES = {
    "wg": "wireguard-tools",
    "ip": "iproute2 (iproute on RHEL)",
    "wireguard-go": "wireguard-go",
    "sysctl": "procps (procps-ng on RHEL)",
}
KEEPALIVE_S = 10  # NAT gateways forget a silent UDP connection after 30 s, some after 20
BY_HAND = "run it there by hand until it works"


class TunnelRefused(Exception):
    """The reason why no tunnel can be made, and the remedy."""

    def __init__(self, evidence: str, remedy: str) -> None:
        super().__init__(evidence)
        self.evidence = evidence
        self.remedy = remedy


class Peer(NamedTuple):
    """Another end: its public key, the address and UDP port where it receives, and its address in the tunnel.

    `relayed`: addresses in the tunnel that are reached through it. `is_kept`: a packet now and then keeps the path
    open, so that NAT gateways let its answers in.
    """

    public_key: str
    endpoint: str
    port: int
    address: str
    relayed: Sequence[str] = ()
    is_kept: bool = False


def make_interface(name: str) -> None:
    """Make an interface by the kernel, or else by wireguard-go, which ends with the interface. Raises TunnelRefused."""
    _tool("wg")
    if _try_as_root("ip", "link", "add", "dev", name, "type", "wireguard") is None:
        return
    if shutil.which("wireguard-go", path=_path()) is None:
        what = "the kernel has no WireGuard, and wireguard-go is not installed"
        raise TunnelRefused(what, "load the kernel's (`modprobe wireguard`), or install wireguard-go")
    as_root("wireguard-go", name)


def remove_interface(name: str) -> None:
    """Remove the interface and its rules, which also ends its wireguard-go. Raises TunnelRefused."""
    forget_rules(name)
    as_root("ip", "link", "delete", "dev", name)


def set_up(name: str, address: str, ports: int = PORTS_TRIED) -> tuple[str, int]:
    """Give the interface a new key, `address` with its prefix and a free port; return the public key and the port.

    The private key is piped from one tool to another. `ports`: how many are tried, from WireGuard's own on.

    Raises:
        TunnelRefused: A tool fails or is missing.
    """
    private_key = run("wg", "genkey")
    as_root("wg", "set", name, "private-key", "/dev/stdin", given=private_key)
    as_root("ip", "address", "add", address, "dev", name)
    as_root("ip", "link", "set", "dev", name, "up")
    return run("wg", "pubkey", given=private_key), _listen(name, ports)


def let_relay(name: str, network: str) -> None:
    """Let this host forward traffic between peers of the interface in `network`, and nothing else from them.

    Raises:
        TunnelRefused: A tool fails or is missing.
    """
    forget_rules(name)  # of an interface that was removed by hand
    as_root("ip", "rule", "add", "iif", name, "prohibit")
    as_root("ip", "rule", "add", "iif", name, "to", network, "lookup", "main")  # each new rule comes before the others
    as_root("sysctl", "-q", "-w", f"net.ipv4.conf.{name}.forwarding=1")


def forget_rules(name: str) -> None:
    """Remove the rules of an interface that relays. Raises TunnelRefused if rights are missing."""
    for _ in range(2):
        _try_as_root("ip", "rule", "del", "iif", name)  # fails if the interface does not relay


def meet(name: str, peers: Sequence[Peer], known: Collection[str] = ()) -> None:
    """Make `peers` the only ones, each with its own addresses. Peers with keys in `known` are not changed.

    A peer behind NAT is kept at the address from which it last sent. Raises TunnelRefused, OSError.
    """
    gone = sorted(set(known) - {peer.public_key for peer in peers})
    words = [word for key in gone for word in ("peer", key, "remove")]
    for peer in (each for each in peers if each.public_key not in known):
        words += ["peer", peer.public_key, "endpoint", f"{peer.endpoint}:{peer.port}"]
        words += ["persistent-keepalive", str(KEEPALIVE_S) if peer.is_kept else "off"]
        words += ["allowed-ips", ",".join(f"{address}/32" for address in (peer.address, *peer.relayed))]
    if words:
        as_root("wg", "set", name, *words)
    if peers:
        mtu = min(_mtu_to(peer.endpoint) for peer in peers) - HEADERS_BYTES
        as_root("ip", "link", "set", "dev", name, "mtu", str(mtu))


def interfaces() -> dict[str, int]:
    """Return the index of every interface, by name."""
    return {name: index for index, name in socket.if_nameindex()}


def run(*command: str, given: str = "") -> str:
    """Return the tool's output. Raises TunnelRefused with its error."""
    done = _finished([_tool(command[0]), *command[1:]], given)
    if done.returncode != 0:
        raise TunnelRefused(_said(command, done), BY_HAND)
    return done.stdout.strip()


def as_root(*command: str, given: str = "") -> None:
    """Run the tool as root. Raises TunnelRefused with its error, and the way to get missing rights."""
    refusal = _try_as_root(*command, given=given)
    if refusal is not None:
        raise TunnelRefused(refusal, BY_HAND)


def _listen(name: str, ports: int) -> int:
    """Set and return the first free UDP port from WireGuard's own on, so that a firewall can be opened for it."""
    for port in range(FIRST_PORT, FIRST_PORT + ports):
        if _try_as_root("wg", "set", name, "listen-port", str(port)) is None:
            return port
    last = FIRST_PORT + ports - 1
    what = f"no UDP port from {FIRST_PORT} to {last} is free" if ports > 1 else f"UDP port {FIRST_PORT} is not free"
    raise TunnelRefused(what, "end the process that uses it: `ss -lunp` shows it")


def _mtu_to(address: str) -> int:
    """Return the kernel's MTU of the path to `address`."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.connect((address, FIRST_PORT))  # sends nothing
        return one.getsockopt(socket.IPPROTO_IP, IP_MTU)


def _path() -> str:
    return f"{os.environ.get('PATH', os.defpath)}:{TOOL_FOLDERS}"


def _tool(name: str) -> str:
    """Return the path of the tool. Raises TunnelRefused with the package that has it."""
    found = shutil.which(name, path=_path())
    if found is None:
        raise TunnelRefused(f"`{name}` is not installed", f"install the package {PACKAGES[name]}")
    return found


def _try_as_root(*command: str, given: str = "") -> str | None:
    """Run the tool as root; return its error, None if it succeeds. Raises TunnelRefused where rights are missing."""
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
        paths = (shutil.which(name, path=_path()) for name in PACKAGES)
        names = ", ".join(path for path in paths if path is not None)
        remedy = f"log in as root, or let the user run, without a password, {names}: a line in /etc/sudoers.d"
        raise TunnelRefused(f"this user is not root: {_said(('sudo -n', *command), done)}", remedy)
    return None if done.returncode == 0 else _said(command, done)


def _finished(command: Sequence[str], given: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end. Raises TunnelRefused if that takes longer than TOOL_TIMEOUT_S."""
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        return subprocess.run(
            command, input=given, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        what = f"`{' '.join(command)}` gave no answer in {TOOL_TIMEOUT_S:g} s"
        raise TunnelRefused(what, BY_HAND) from None


def _said(command: Sequence[str], done: subprocess.CompletedProcess[str]) -> str:
    lines = done.stderr.strip().splitlines() or ["no message"]
    return f"`{' '.join(command)}` ended with {done.returncode}: {lines[-1]}"
