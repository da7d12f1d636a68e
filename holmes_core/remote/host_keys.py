"""The key that a host offers, compared with the known ones: `holmes trust` shows and adds it."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass
from pathlib import Path

import paramiko

from holmes_core.records.access import Access
from holmes_core.remote.host_proof import UnknownHost, check_host, reached_address
from holmes_core.remote.known_hosts import fingerprint
from holmes_core.remote.ssh_client import CONNECT_TIMEOUT_S, open_proxy, transport_factory
from holmes_core.remote.ssh_faults import explain_login
from holmes_core.remote.ssh_settings import SshSettings, ssh_settings


@dataclass(frozen=True)
class HostKey:
    """One offered key."""

    known_name: str
    """The host's name in known-hosts files."""
    fingerprint: str
    line: str
    """The line for a known-hosts file that makes the key known."""
    file: Path
    """The known-hosts file a new key goes to."""
    is_known: bool


def offered_key(host: str, access: Access) -> HostKey:
    """Return the key that `host` offers.

    Raises:
        HostError: The host is not reached, or another key of it is known.
    """
    settings = ssh_settings(host, access)
    try:
        with _session(host, settings, access) as session:
            session.start_client(timeout=CONNECT_TIMEOUT_S)
            key = session.get_remote_server_key()
            is_known = _is_known(host, settings, key, reached_address(session))
    except Exception as error:
        raise explain_login(host, settings, error) from None
    line = f"{settings.known_name} {key.get_name()} {key.get_base64()}"
    return HostKey(settings.known_name, fingerprint(key.asbytes()), line, settings.known_hosts[0], is_known)


def _session(host: str, settings: SshSettings, access: Access) -> contextlib.closing[paramiko.Transport]:
    """Open a session without logging in."""
    proxy = open_proxy(settings, access, (host,))
    channel = proxy or socket.create_connection((settings.address, settings.port), CONNECT_TIMEOUT_S)
    return contextlib.closing(transport_factory(host, settings)(channel))


def _is_known(host: str, settings: SshSettings, key: paramiko.PKey, address: str | None) -> bool:
    try:
        check_host(host, settings, key, address)
    except UnknownHost:
        return False
    return True


def add_host_key(key: HostKey) -> None:
    """Append the key to its file, which is created if missing."""
    key.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(key.file, "a", encoding="utf-8") as file:
        file.write(key.line + "\n")
