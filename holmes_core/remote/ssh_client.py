"""SSH through paramiko: log in, also through proxies and jump hosts, and run commands.

Host keys are strict: an unknown or changed key is an error. User, port, key files, known-hosts files and proxies
come from the SSH configuration, as for `ssh`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import paramiko
from paramiko.packet import Packetizer

from holmes_core.errors import HostError
from holmes_core.records.access import Access
from holmes_core.remote.host_proof import check_host, key_algorithms, reached_address
from holmes_core.remote.ssh_faults import explain_login, explain_session
from holmes_core.remote.ssh_settings import SshSettings, last_jump, ssh_settings
from holmes_core.remote.transport import (
    CHUNK_BYTES,
    BackgroundReader,
    Completed,
    Connection,
    Stream,
    read_answer,
    read_lines,
    timed_out,
)
from holmes_core.remote.user_keys import UserKeys

CONNECT_TIMEOUT_S = 10.0
MAX_PACKET_BYTES = 256 << 10  # PACKET_MAX_SIZE of OpenSSH's packet.h
MAX_JUMPS = 16


class SshConnection(Connection):
    """One paramiko client; each command is a channel of its transport."""

    def __init__(self, host: str, access: Access) -> None:
        self._host = host
        self._client = _log_in(host, access)

    def run(self, command: str, stdin: bytes, timeout_s: float) -> Completed:
        channel = self._channel(command)
        deadline = time.monotonic() + timeout_s
        stderr = BackgroundReader(partial(channel.recv_stderr, CHUNK_BYTES))

        def read() -> bytes:
            channel.settimeout(max(0.01, deadline - time.monotonic()))
            return channel.recv(CHUNK_BYTES)

        try:
            channel.settimeout(timeout_s)
            _feed(channel, stdin)
            stdout = read_answer(self._host, read)
            if not channel.status_event.wait(max(0.01, deadline - time.monotonic())):
                raise TimeoutError
        except TimeoutError:
            raise timed_out(self._host, timeout_s) from None
        finally:
            channel.close()
        return Completed(channel.exit_status, stdout, stderr.text().encode())

    def open(self, command: str) -> Stream:
        return _SshStream(self._host, self._channel(command))

    def close(self) -> None:
        _close(self._client)

    def _channel(self, command: str) -> paramiko.Channel:
        transport = self._client.get_transport()
        try:
            if transport is None:
                raise EOFError
            channel = transport.open_session(timeout=CONNECT_TIMEOUT_S)
            channel.exec_command(command)
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise explain_session(self._host, error) from None
        return channel


def _feed(channel: paramiko.Channel, data: bytes) -> None:
    """Write all of a command's input and close it; a command that ended early has not read it."""
    try:
        channel.sendall(data)
        channel.shutdown_write()
    except TimeoutError:
        raise
    except (OSError, EOFError):
        return  # its status and its last words say why


class _SshStream(Stream):
    def __init__(self, host: str, channel: paramiko.Channel) -> None:
        self._host, self._channel = host, channel
        self._stderr = BackgroundReader(partial(channel.recv_stderr, CHUNK_BYTES))

    def send(self, data: bytes) -> None:
        self._channel.sendall(data)

    def close_input(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            self._channel.shutdown_write()

    def lines(self) -> Iterator[str]:
        try:
            yield from read_lines(self._host, partial(self._channel.recv, CHUNK_BYTES))
        except HostError:
            self.abandon()
            raise

    def wait(self) -> tuple[int, str]:
        code = self._channel.recv_exit_status()
        return (255 if code < 0 else code), self._stderr.text()

    def abandon(self) -> None:
        self._channel.close()


def _log_in(
    host: str, access: Access, jumps_before: str | None = None, onward: tuple[str, ...] = ()
) -> paramiko.SSHClient:
    """Return a client that is logged in to `host`.

    `jumps_before`: hosts of a ProxyJump list to pass before this one, instead of its own proxy.
    `onward`: the hosts that are reached through this one.
    """
    if len(onward) > MAX_JUMPS:
        text = f"ProxyJump leads through more than {MAX_JUMPS} hosts: {', '.join((host, *onward)[:6])}, ..."
        raise HostError(
            host, "unreachable", text, "correct the SSH configuration: hosts jump through one another there"
        )
    settings = ssh_settings(host, access)
    if jumps_before:
        settings = replace(settings, proxy_jump=jumps_before, proxy_command=None)
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(_ProveHost(host, settings))  # it has no known keys, so it asks for every host
    try:
        client.connect(
            settings.address,
            port=settings.port,
            username=settings.user,
            timeout=CONNECT_TIMEOUT_S,
            banner_timeout=CONNECT_TIMEOUT_S,
            auth_timeout=CONNECT_TIMEOUT_S,
            sock=open_proxy(settings, access, (host, *onward)),
            auth_strategy=UserKeys(settings),  # type: ignore[arg-type]  # asked to authenticate, nothing else
            transport_factory=transport_factory(host, settings),
        )
    except Exception as error:
        _close(client)
        raise explain_login(host, settings, error) from None
    return client


class _ProveHost(paramiko.MissingHostKeyPolicy):
    """Called after the key exchange, before any user data is sent. Returning means that the host is trusted."""

    def __init__(self, host: str, settings: SshSettings) -> None:
        self._host = host
        self._settings = settings

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:  # noqa: ARG002
        session = client.get_transport()
        assert session is not None, "it has just shown its key"
        check_host(self._host, self._settings, key, reached_address(session))


def transport_factory(host: str, settings: SshSettings) -> Callable[..., paramiko.Transport]:
    """Return a maker of transports that prefer host keys and certificates that can prove this host.

    Raises:
        HostError: A known-hosts file cannot be read.
    """
    algorithms = key_algorithms(host, settings)

    class ProvableTransport(paramiko.Transport):
        preferred_keys = algorithms  # paramiko's own order puts certificates last

    return partial(ProvableTransport, packetizer_class=_BoundedPacketizer)


class _BoundedPacketizer(Packetizer):
    """A packetizer that accepts no larger packet or greeting than OpenSSH does, before and after the host is proven."""

    _greeting_bytes = 0

    def read_all(self, n: int, check_rekey: bool = False) -> bytes:
        """Return the next `n` bytes. Raises SSHException where no packet may be of that size."""
        if n > MAX_PACKET_BYTES:
            raise paramiko.SSHException(f"it sent a packet of {n} bytes; none has more than {MAX_PACKET_BYTES}")
        return super().read_all(n, check_rekey)

    def _read_timeout(self, timeout: float) -> bytes:  # paramiko reads the lines before the first packet by this
        data: bytes = super()._read_timeout(timeout)  # type: ignore[misc]
        self._greeting_bytes += len(data)
        if self._greeting_bytes > MAX_PACKET_BYTES:
            raise paramiko.SSHException(f"it sent {self._greeting_bytes} bytes that are not an SSH server's greeting")
        return data


def open_proxy(
    settings: SshSettings, access: Access, onward: tuple[str, ...]
) -> paramiko.ProxyCommand | paramiko.Channel | None:
    """Open a socket to the first `onward` by proxy command or jump hosts; None for a direct connection."""
    if settings.proxy_command:
        return paramiko.ProxyCommand(settings.proxy_command)
    if not settings.proxy_jump:
        return None
    jump, jump_access, before = last_jump(settings, access)
    transport = _log_in(jump, jump_access, jumps_before=before, onward=onward).get_transport()
    assert transport is not None
    return transport.open_channel("direct-tcpip", (settings.address, settings.port), ("", 0), timeout=CONNECT_TIMEOUT_S)


def _close(client: paramiko.SSHClient) -> None:
    """End the connection, and the connections to the jump hosts it passes."""
    transport = client.get_transport()
    client.close()
    while transport is not None and isinstance(transport.sock, paramiko.Channel):
        transport = transport.sock.get_transport()
        transport.close()
