"""The way to a host: run a command, feed it, read it. SSH through paramiko, or a local shell; same interface.

Host keys are strict: an unknown or changed key is an error. User, port, key files, known-hosts files and proxies
come from the SSH configuration, as for `ssh`.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import getpass
import hashlib
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import paramiko

from holmes_core.errors import HolmesError, HostError
from holmes_core.records.access import Access

CONNECT_TIMEOUT_S = 10.0
SSH_PORT = 22
_CHUNK_BYTES = 65536
_KNOWN_HOSTS_LOCK = threading.Lock()


@dataclass(frozen=True)
class Completed:
    """A finished command."""

    exit_code: int
    stdout: bytes
    stderr: bytes


class Stream(Protocol):
    """A running command. Closing its input is the sign that nobody listens any more."""

    def send(self, data: bytes) -> None:
        """Write to the command's standard input. Raises OSError if it is gone."""

    def close_input(self) -> None:
        """Close the command's standard input; harmless when already closed."""

    def lines(self) -> Iterator[str]:
        """Lines of standard output until it ends."""

    def wait(self) -> tuple[int, str]:
        """Exit code (negative: signal, None known: 255) and the standard error, after the output ended."""

    def abandon(self) -> None:
        """Drop the connection to the command; its input closes."""


class Connection(Protocol):
    """An open way to one host."""

    def run(self, command: str, stdin: bytes, timeout_s: float) -> Completed:
        """Run a shell command to its end. Raises HostError when it takes longer than `timeout_s`."""

    def open(self, command: str) -> Stream:
        """Start a shell command and keep talking to it."""

    def close(self) -> None:
        """End the connection."""


def connect(host: str, access: Access) -> Connection:
    """An open connection to `host`. Raises HostError naming the remedy."""
    return LocalConnection(host) if access.transport == "local" else SshConnection(host, access)


class LocalConnection:
    """Commands in a local shell, for hosts with `transport: local`."""

    def __init__(self, host: str) -> None:
        self._host = host

    def run(self, command: str, stdin: bytes, timeout_s: float) -> Completed:
        process = _spawn(command)
        try:
            stdout, stderr = process.communicate(stdin, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise _too_slow(self._host, timeout_s) from None
        return Completed(process.returncode, stdout, stderr)

    def open(self, command: str) -> Stream:
        return _LocalStream(_spawn(command))

    def close(self) -> None:
        """Nothing is held open."""


def _spawn(command: str) -> subprocess.Popen[bytes]:
    """The command in a session of its own, so that Ctrl-C here reaches it only through us."""
    pipe = subprocess.PIPE
    return subprocess.Popen(["/bin/sh", "-c", command], stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)


class _LocalStream:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._stderr = _Drain(lambda: os.read(_fileno(process.stderr), _CHUNK_BYTES))

    def send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def close_input(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def lines(self) -> Iterator[str]:
        return _lines(lambda: os.read(_fileno(self._process.stdout), _CHUNK_BYTES))

    def wait(self) -> tuple[int, str]:
        return self._process.wait(), self._stderr.text()

    def abandon(self) -> None:
        self.close_input()


def _fileno(pipe: object) -> int:
    assert hasattr(pipe, "fileno")
    number = pipe.fileno()
    assert isinstance(number, int)
    return number


class SshConnection:
    """One paramiko client; each command is a channel of it."""

    def __init__(self, host: str, access: Access) -> None:
        self._host = host
        self._client = _ssh_client(host, access)

    def run(self, command: str, stdin: bytes, timeout_s: float) -> Completed:
        channel = self._channel(command)
        deadline = time.monotonic() + timeout_s
        stderr = _Drain(lambda: channel.recv_stderr(_CHUNK_BYTES))
        stdout = bytearray()
        try:
            channel.settimeout(timeout_s)
            channel.sendall(stdin)
            channel.shutdown_write()
            while True:
                channel.settimeout(max(0.01, deadline - time.monotonic()))
                chunk = channel.recv(_CHUNK_BYTES)
                if not chunk:
                    break
                stdout += chunk
            if not channel.status_event.wait(max(0.01, deadline - time.monotonic())):
                raise TimeoutError
        except TimeoutError:
            raise _too_slow(self._host, timeout_s) from None
        finally:
            channel.close()
        return Completed(channel.exit_status, bytes(stdout), stderr.text().encode())

    def open(self, command: str) -> Stream:
        return _SshStream(self._channel(command))

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
            text = f"the SSH session was refused: {error or 'connection lost'}"
            raise HostError(self._host, "PROBE-TOOL-FAILED", text, "look at the host's sshd log; try again") from None
        return channel


class _SshStream:
    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel
        self._stderr = _Drain(lambda: channel.recv_stderr(_CHUNK_BYTES))

    def send(self, data: bytes) -> None:
        self._channel.sendall(data)

    def close_input(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            self._channel.shutdown_write()

    def lines(self) -> Iterator[str]:
        return _lines(lambda: self._channel.recv(_CHUNK_BYTES))

    def wait(self) -> tuple[int, str]:
        code = self._channel.recv_exit_status()
        return (255 if code < 0 else code), self._stderr.text()

    def abandon(self) -> None:
        self._channel.close()


class _Reader(Protocol):
    def __call__(self) -> bytes: ...


class _Drain:
    """Reads one side of a command in the background, so that the other side never waits for it."""

    def __init__(self, read: _Reader) -> None:
        self._data = bytearray()
        self._thread = threading.Thread(target=self._run, args=(read,), daemon=True)
        self._thread.start()

    def _run(self, read: _Reader) -> None:
        with contextlib.suppress(OSError):
            while chunk := read():
                self._data += chunk

    def text(self) -> str:
        self._thread.join(timeout=5.0)
        return self._data.decode(errors="replace")


def _lines(read: _Reader) -> Iterator[str]:
    rest = b""
    while True:
        try:
            chunk = read()
        except OSError:
            chunk = b""
        if not chunk:
            break
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")


def _too_slow(host: str, timeout_s: float) -> HostError:
    return HostError(
        host, "PROBE-TRUNCATED", f"no answer within {timeout_s:g} s", "see what hangs there, or give it more time"
    )


def _ssh_client(host: str, access: Access, jumps_before: str | None = None) -> paramiko.SSHClient:
    """A connected client, or a HostError that says what to do.

    `jumps_before`: hosts of a ProxyJump list on the way to this one, in place of its own proxy.
    """
    settings = ssh_settings(host, access)
    if jumps_before:
        settings = replace(settings, proxy_jump=jumps_before, proxy_command=None)
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(_RefuseUnknownKey())
    for file in settings.known_hosts:
        _add_known_keys(client, host, settings, file)
    try:
        client.connect(
            settings.address,
            port=settings.port,
            username=settings.user,
            key_filename=list(settings.key_files) or None,  # type: ignore[arg-type]  # a list is documented
            allow_agent=settings.use_agent,
            look_for_keys=settings.use_agent and not settings.key_files,
            timeout=CONNECT_TIMEOUT_S,
            banner_timeout=CONNECT_TIMEOUT_S,
            auth_timeout=CONNECT_TIMEOUT_S,
            sock=open_proxy(settings, access),
        )
    except Exception as error:
        _close(client)
        raise explain_connect(host, settings, error) from None
    return client


def _close(client: paramiko.SSHClient) -> None:
    """End the connection, and those to the jump hosts on its way."""
    transport = client.get_transport()
    client.close()
    while transport is not None and isinstance(transport.sock, paramiko.Channel):
        transport = transport.sock.get_transport()
        transport.close()


@dataclass(frozen=True)
class SshSettings:
    address: str
    port: int
    user: str
    key_files: tuple[str, ...]
    use_agent: bool
    known_hosts: tuple[Path, ...]
    proxy_command: str | None
    proxy_jump: str | None

    @property
    def target(self) -> str:
        return f"{self.user}@{self.address}:{self.port}"

    @property
    def known_name(self) -> str:
        """The host's name in known-hosts files."""
        return self.address if self.port == SSH_PORT else f"[{self.address}]:{self.port}"


def ssh_settings(host: str, access: Access) -> SshSettings:
    """hosts.yaml first, then the SSH configuration, then ssh's own defaults."""
    file = Path(access.ssh_config) if access.ssh_config else Path("~/.ssh/config").expanduser()
    config = paramiko.SSHConfig()
    if file.exists():
        try:
            config = paramiko.SSHConfig.from_path(str(file))
        except (paramiko.ConfigParseError, OSError, UnicodeDecodeError) as error:
            raise HolmesError(
                f"{file}: not an SSH configuration: {error}", "correct it; `ssh -G HOST` checks it"
            ) from None
    found = config.lookup(access.address or host)
    keys = [access.identity_file] if access.identity_file else found.get("identityfile", [])
    known = found.get("userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2").split()
    if "userknownhostsfile" not in found:
        known.append(found.get("globalknownhostsfile", "/etc/ssh/ssh_known_hosts"))
    proxy_jump = found.get("proxyjump")
    return SshSettings(
        address=found["hostname"],
        port=access.port or int(found.get("port", 22)),
        user=access.user or found.get("user") or getpass.getuser(),
        key_files=tuple(str(Path(key).expanduser()) for key in keys),
        use_agent=found.get("identitiesonly", "no") != "yes",
        known_hosts=tuple(Path(name).expanduser() for name in known),
        proxy_command=None if found.get("proxycommand", "none") == "none" else found["proxycommand"],
        proxy_jump=None if proxy_jump in (None, "none") else proxy_jump,
    )


def open_proxy(settings: SshSettings, access: Access) -> paramiko.ProxyCommand | paramiko.Channel | None:
    """The socket through a proxy command or a chain of jump hosts, None for a direct connection."""
    if settings.proxy_command:
        return paramiko.ProxyCommand(settings.proxy_command)
    if not settings.proxy_jump:
        return None
    before, _, last = settings.proxy_jump.rpartition(",")
    user, _, place = last.strip().removeprefix("ssh://").rpartition("@")
    name, port = _name_and_port(place)
    jump = Access(address=name, user=user or None, port=port, ssh_config=access.ssh_config)
    transport = _ssh_client(name, jump, jumps_before=before.strip()).get_transport()
    assert transport is not None
    return transport.open_channel("direct-tcpip", (settings.address, settings.port), ("", 0), timeout=CONNECT_TIMEOUT_S)


def _name_and_port(place: str) -> tuple[str, int | None]:
    """Host and port of `host`, `host:port`, `[2001:db8::1]:port` and `2001:db8::1`."""
    match = re.fullmatch(r"\[?((?<=\[)[^\]]+|[^:\]]+)\]?:(\d+)", place)
    return (match.group(1), int(match.group(2))) if match else (place.strip("[]"), None)


class _UnknownHostKey(Exception):
    def __init__(self, key: paramiko.PKey) -> None:
        super().__init__(fingerprint(key))


def fingerprint(key: paramiko.PKey) -> str:
    """`ssh-ed25519 SHA256:...`, as ssh shows it."""
    digest = base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")
    return f"{key.get_name()} SHA256:{digest}"


class _RefuseUnknownKey(paramiko.MissingHostKeyPolicy):
    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:  # noqa: ARG002
        raise _UnknownHostKey(key)


def _add_known_keys(client: paramiko.SSHClient, host: str, settings: SshSettings, file: Path) -> None:
    """Tell `client` the keys `file` has for this one address; of several of a type the first counts, as in ssh."""
    name = settings.known_name
    try:
        found = known_keys_in(file).lookup(name)
    except (OSError, paramiko.SSHException) as error:
        text = f"known-hosts file {file} cannot be read: {error}"
        raise HostError(host, "SSH-HOSTKEY-UNKNOWN", text, "correct or remove that file") from None
    known = client.get_host_keys()
    for key_type, key in (found or {}).items():
        if key_type not in (known.lookup(name) or {}):
            known.add(name, key_type, key)


def known_keys_in(file: Path) -> paramiko.HostKeys:
    """The keys in `file`, parsed once for all hosts: 512 lines take 0.1 s, which 512 hosts would each spend."""
    with _KNOWN_HOSTS_LOCK:
        try:
            status = file.stat()
        except FileNotFoundError:
            return paramiko.HostKeys()
        return _parsed_known_hosts(file, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=16)
def _parsed_known_hosts(file: Path, _mtime_ns: int, _size_bytes: int) -> paramiko.HostKeys:
    """Parsed anew when the file has changed."""
    return paramiko.HostKeys(str(file))


def explain_connect(host: str, settings: SshSettings, error: Exception) -> HolmesError:
    """What went wrong on the way to `host`, in words that say what to do."""
    target, known = settings.target, settings.known_hosts[0]
    scan = f"ssh-keyscan -p {settings.port} {settings.address} >> {known}"
    if isinstance(error, HolmesError):
        return error
    if isinstance(error, _UnknownHostKey):
        return HostError(
            host,
            "SSH-HOSTKEY-UNKNOWN",
            f"host key of {target} is not known: {error}",
            f"compare this fingerprint with the host's own, then add it: `holmes trust {host}`, or `{scan}`",
        )
    if isinstance(error, paramiko.BadHostKeyException):
        return HostError(
            host,
            "SSH-HOSTKEY-CHANGED",
            f"host key of {target} differs from the one in {known}",
            f"find out why; if the host was reinstalled: `ssh-keygen -R {settings.address} -f {known}`, then `{scan}`",
        )
    if isinstance(error, paramiko.PasswordRequiredException):
        return HostError(
            host, "SSH-AUTH", f"the key for {target} has a passphrase", "load it into ssh-agent: `ssh-add`"
        )
    if isinstance(error, (paramiko.AuthenticationException, paramiko.SSHException)) and _is_about_keys(error):
        tried = ", ".join(settings.key_files) or "the agent's and the default keys"
        return HostError(
            host,
            "SSH-AUTH",
            f"{target} refused the login ({error}); tried {tried}",
            "put your public key into the host's authorized_keys, or name the right `user` and `identity_file`",
        )
    reason = _reason(error)
    return HostError(
        host,
        "HOST-UNREACHABLE",
        f"cannot connect to {target}: {reason}",
        f"check that the host is up and its sshd runs: `ssh -p {settings.port} {settings.user}@{settings.address}`; "
        "or take the host out of hosts.yaml",
    )


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, paramiko.ssh_exception.NoValidConnectionsError):
        return "; ".join(str(getattr(cause, "strerror", cause)).lower() for cause in error.errors.values())
    return str(error) or type(error).__name__


def _is_about_keys(error: Exception) -> bool:
    """paramiko raises a plain SSHException when it has no usable key at all."""
    return isinstance(error, paramiko.AuthenticationException) or "uthentication" in str(error)
