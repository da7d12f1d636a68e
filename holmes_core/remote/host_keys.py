"""The key a host offers, beside those that are known: what `holmes trust` shows and adds."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass
from pathlib import Path

import paramiko

from holmes_core.errors import HostError
from holmes_core.records.access import Access
from holmes_core.remote.transport import (
    CONNECT_TIMEOUT_S,
    explain_connect,
    fingerprint,
    known_keys_in,
    open_proxy,
    ssh_settings,
)


@dataclass(frozen=True)
class HostKey:
    """One offered key. `place` is the host's name in known-hosts files, `file` the one a new key goes to."""

    place: str
    fingerprint: str
    line: str
    file: Path
    is_known: bool


def offered_key(host: str, access: Access) -> HostKey:
    """The key `host` offers. Raises HostError when it is not reached, or offers another key than the known one."""
    settings = ssh_settings(host, access)
    try:
        way = open_proxy(settings, access)
        place = (settings.address, settings.port)
        transport = paramiko.Transport(way or socket.create_connection(place, CONNECT_TIMEOUT_S))
        with contextlib.closing(transport):
            transport.start_client(timeout=CONNECT_TIMEOUT_S)
            key = transport.get_remote_server_key()
    except Exception as error:
        raise explain_connect(host, settings, error) from None
    known = [keys for file in settings.known_hosts if (keys := known_keys_in(file).lookup(settings.known_name))]
    same_type = [keys[key.get_name()] for keys in known if key.get_name() in keys]
    if same_type and key not in same_type:
        text = f"host key of {settings.target} is {fingerprint(key)}, known is {fingerprint(same_type[0])}"
        remove = f"ssh-keygen -R '{settings.known_name}' -f {settings.known_hosts[0]}"
        raise HostError(host, "SSH-HOSTKEY-CHANGED", text, f"find out why; if the host was reinstalled: `{remove}`")
    line = f"{settings.known_name} {key.get_name()} {key.get_base64()}"
    return HostKey(settings.known_name, fingerprint(key), line, settings.known_hosts[0], bool(same_type))


def add_host_key(key: HostKey) -> None:
    """Append the key to its file, which is made if it is missing."""
    key.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(key.file, "a", encoding="utf-8") as file:
        file.write(key.line + "\n")
