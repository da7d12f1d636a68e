"""Known-hosts files: which keys they have for a host."""

from __future__ import annotations

import base64
import functools
import hashlib
import threading
from pathlib import Path

import paramiko

from holmes_core.errors import HostError
from holmes_core.remote.ssh_settings import SshSettings

_ONE_AT_A_TIME = threading.Lock()


def fingerprint(key: paramiko.PKey) -> str:
    """`ssh-ed25519 SHA256:...`, as ssh shows it."""
    digest = base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")
    return f"{key.get_name()} SHA256:{digest}"


def add_known_keys(client: paramiko.SSHClient, host: str, settings: SshSettings) -> None:
    """Let `client` know the keys of this one address; of several of a type the first counts, as in ssh."""
    known = client.get_host_keys()
    for file in settings.known_hosts:
        for key_type, key in known_keys(host, settings, file).items():
            if key_type not in (known.lookup(settings.known_name) or {}):
                known.add(settings.known_name, key_type, key)


def known_keys(host: str, settings: SshSettings, file: Path) -> dict[str, paramiko.PKey]:
    """The keys `file` has for `host`, by type. Raises HostError when the file cannot be read."""
    try:
        return dict(_keys_in(file).lookup(settings.known_name) or {})
    except (OSError, paramiko.SSHException) as error:
        text = f"known-hosts file {file} cannot be read: {error}"
        raise HostError(host, "key unknown", text, "correct or remove that file") from None


def _keys_in(file: Path) -> paramiko.HostKeys:
    """The keys in `file`, parsed once for all hosts: 512 lines take 0.1 s, which 512 hosts would each spend."""
    with _ONE_AT_A_TIME:
        try:
            status = file.stat()
        except FileNotFoundError:
            return paramiko.HostKeys()
        return _parsed(file, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=16)
def _parsed(file: Path, _mtime_ns: int, _size_bytes: int) -> paramiko.HostKeys:
    """Parsed anew when the file has changed."""
    return paramiko.HostKeys(str(file))
