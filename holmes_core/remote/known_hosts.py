"""Known-hosts files, read as ssh reads them: which keys they have for a host, which they revoke, and who certifies it.

A line is `[@cert-authority|@revoked] NAMES TYPE KEY`; NAMES are joined by commas, may hold `*` and `?`, may be negated
by `!`, or are one hash. A line that cannot be read is passed over. Source: sshd(8), SSH_KNOWN_HOSTS FILE FORMAT.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import paramiko
from paramiko.hostkeys import HostKeyEntry, InvalidHostKey

from holmes_core.errors import HostError
from holmes_core.remote.ssh_settings import SshSettings

CERTIFICATE_AUTHORITY, REVOKED = "@cert-authority", "@revoked"
_KRL = b"SSHKRL\n\0"  # how one begins: OpenSSH, PROTOCOL.krl
_ONE_AT_A_TIME = threading.Lock()


@dataclass(frozen=True)
class KnownLine:
    """One line: its marker, if it has one, the names it is for, and the key."""

    marker: str | None
    names: tuple[str, ...]
    key: paramiko.PKey

    def is_for(self, name: str) -> bool:
        """Whether it speaks of the host known by that name; one negated pattern that fits is enough for a no."""
        fits = [(pattern.startswith("!"), _fits(pattern.removeprefix("!"), name)) for pattern in self.names]
        return (False, True) in fits and (True, True) not in fits


def fingerprint(key: paramiko.PKey) -> str:
    """`ssh-ed25519 SHA256:...`, as ssh shows it."""
    digest = base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")
    return f"{key.get_name()} SHA256:{digest}"


def add_known_keys(client: paramiko.SSHClient, host: str, settings: SshSettings) -> None:
    """Let `client` know the keys of this one address; of several of a type the first counts, as in ssh.

    Raises HostError when a file cannot be read.
    """
    known = client.get_host_keys()
    for file in settings.known_hosts:
        for key_type, key in known_keys(host, settings, file).items():
            if key_type not in (known.lookup(settings.address_and_port) or {}):
                known.add(settings.address_and_port, key_type, key)


def known_keys(host: str, settings: SshSettings, file: Path) -> dict[str, paramiko.PKey]:
    """The keys `file` has for `host`, by type; none that is revoked. Raises HostError when the file cannot be read."""
    revoked, found = revoked_keys(host, settings), dict[str, paramiko.PKey]()
    for line in _lines_for(host, settings, file, None):
        if line.key not in revoked:
            found.setdefault(line.key.get_name(), line.key)
    return found


def revoked_keys(host: str, settings: SshSettings) -> tuple[paramiko.PKey, ...]:
    """The keys that some file says `host` must not be believed by. Raises HostError when one cannot be read."""
    marked = [line.key for file in settings.known_hosts for line in _lines_for(host, settings, file, REVOKED)]
    return (*marked, *(key for file in settings.revoked for key in _listed_keys(host, file)))


def _listed_keys(host: str, file: Path) -> Iterator[paramiko.PKey]:
    """The keys of a RevokedHostKeys file, a line `TYPE KEY` each. As ssh does, believes no host where it has none."""
    what = f"{file}, RevokedHostKeys of the SSH configuration,"
    try:
        data = file.read_bytes()
    except OSError as error:
        text = f"{what} cannot be read: {error.strerror}; ssh believes no host then"
        raise HostError(host, "key unknown", text, "correct the path in the SSH configuration, or the file") from None
    if data.startswith(_KRL):
        text = f"{what} is a KRL, which is not read here, and may revoke this host's key"
        hint = "write the revoked keys as text, a line `TYPE KEY` each, or name another `ssh_config:` in hosts.yaml"
        raise HostError(host, "key unknown", text, hint)
    for line in data.decode(errors="replace").splitlines():
        found = _parsed_line(f"* {line.strip()}") if line.strip() and not line.lstrip().startswith("#") else None
        if found is not None:
            yield found.key


def certified_by(host: str, settings: SshSettings) -> Path | None:
    """The first file that names a certificate authority for `host`. Raises HostError when one cannot be read."""
    for file in settings.known_hosts:
        if next(_lines_for(host, settings, file, CERTIFICATE_AUTHORITY), None) is not None:
            return file
    return None


def _lines_for(host: str, settings: SshSettings, file: Path, marker: str | None) -> Iterator[KnownLine]:
    try:
        lines = _lines_in(file)
    except (OSError, UnicodeDecodeError) as error:
        text = f"known-hosts file {file} cannot be read: {error}"
        raise HostError(host, "key unknown", text, "correct or remove that file") from None
    return (line for line in lines if line.marker == marker and line.is_for(settings.known_name))


def _lines_in(file: Path) -> tuple[KnownLine, ...]:
    """The lines of `file`, parsed once for all hosts: 512 lines take 0.1 s, which 512 hosts would each spend."""
    with _ONE_AT_A_TIME:
        try:
            status = file.stat()
        except FileNotFoundError:
            return ()
        return _parsed(file, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=16)
def _parsed(file: Path, _mtime_ns: int, _size_bytes: int) -> tuple[KnownLine, ...]:
    """Parsed anew when the file has changed."""
    found = (_parsed_line(line.strip()) for line in file.read_text(encoding="utf-8").splitlines())
    return tuple(line for line in found if line is not None)


def _parsed_line(line: str) -> KnownLine | None:
    """None for a comment, a marker or type of key that is not known, and what is no line of such a file."""
    marker, _, rest = line.partition(" ") if line.startswith("@") else (None, "", line)
    if line.startswith("#") or marker not in (None, CERTIFICATE_AUTHORITY, REVOKED):
        return None
    try:
        entry = HostKeyEntry.from_line(" ".join(rest.split()))
    except (InvalidHostKey, paramiko.SSHException, ValueError, IndexError):
        return None
    return None if entry is None else KnownLine(marker, tuple(entry.hostnames), entry.key)


def _fits(pattern: str, name: str) -> bool:
    if pattern.startswith("|1|"):
        return paramiko.HostKeys.hash_host(name, pattern) == pattern
    parts = (".*" if part == "*" else "." if part == "?" else re.escape(part) for part in re.split(r"([*?])", pattern))
    return re.fullmatch("".join(parts), name, re.IGNORECASE) is not None
