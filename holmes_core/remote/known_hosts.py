"""Known-hosts files, read as ssh reads them: a host's known keys, its revoked keys and its certificate authorities.

A line is `[@cert-authority|@revoked] NAMES TYPE KEY`; NAMES are joined by commas, may hold `*` and `?`, may be negated
by `!`, or are one hash. A malformed line is skipped. Source: sshd(8), SSH_KNOWN_HOSTS FILE FORMAT.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import hmac
import os
import shlex
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holmes_core.errors import HostError
from holmes_core.records.regular_file import MIB, read_regular
from holmes_core.remote.ssh_settings import SshSettings

CERTIFICATE_AUTHORITY, REVOKED = "@cert-authority", "@revoked"
MAX_BYTES = 64 * MIB
_HASHED = "|1|"
_ANSWER_S = 30.0
_ONE_AT_A_TIME = threading.Lock()


@dataclass(frozen=True)
class KnownLine:
    """One line: its marker, if it has one, the names it is for, and the key."""

    file: Path
    number: int
    marker: str | None
    names: str
    key_type: str
    key: bytes
    """As it travels in SSH, its type first."""

    def is_for(self, name: str) -> bool:
        """Return True if the line is for the host known by that name. A negated pattern that fits makes it False."""
        if self.names.startswith(_HASHED):
            return _is_hash_of(self.names, name.lower())
        exact, patterns, negated = _patterns(self.names)
        found = name.lower() in exact or any(fits(each, name.lower()) for each in patterns)
        return found and not any(fits(each, name.lower()) for each in negated)

    @property
    def is_pattern(self) -> bool:
        """True if the line may be for other hosts too, so that `ssh-keygen -R` leaves it."""
        return any(sign in self.names for sign in "*?!")

    def __str__(self) -> str:
        return f"{self.file}:{self.number}"


def fingerprint(key: bytes) -> str:
    """Return `ssh-ed25519 SHA256:...`, as ssh shows it."""
    digest = base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")
    return f"{type_of(key)} SHA256:{digest}"


def type_of(key: bytes) -> str:
    """Return the type named inside a key in its wire format; empty if none is."""
    length = int.from_bytes(key[:4], "big")
    return key[4 : 4 + length].decode(errors="replace") if len(key) >= 4 + length else ""


def fits(pattern: str, name: str) -> bool:
    """Return True if `name` matches the pattern, in which `*` stands for any letters and `?` for one.

    After a mismatch, the last star takes one more letter. So it takes at most len(pattern) * len(name) steps, unlike a
    regular expression.
    """
    at = place = 0
    after_star, taken = -1, 0
    while place < len(name):
        if at < len(pattern) and pattern[at] == "*":
            at, after_star, taken = at + 1, at + 1, place
        elif at < len(pattern) and pattern[at] in ("?", name[place]):
            at, place = at + 1, place + 1
        elif after_star >= 0:
            taken += 1
            at, place = after_star, taken
        else:
            return False
    return not pattern[at:].strip("*")


def known_lines(host: str, settings: SshSettings, name: str) -> tuple[KnownLine, ...]:
    """Return the lines of files and KnownHostsCommand for the host `name`.

    Raises:
        HostError: A file cannot be read, or the command fails.
    """
    found = []
    for file in settings.known_hosts:
        try:
            found += [line for line in _lines_in(file) if line.is_for(name)]
        except OSError as error:
            text = f"known-hosts file {file} cannot be read: {error.strerror or error}"
            raise HostError(host, "key unknown", text, "correct or remove that file") from None
    return (*found, *(line for line in _lines_of_command(host, settings, name) if line.is_for(name)))


def parsed_key(words: str) -> tuple[str, bytes] | None:
    """Return type and key of `TYPE KEY`, with any text after it; None if it is malformed."""
    key_type, _, rest = words.partition(" ")
    try:
        key = base64.b64decode(rest.split()[0], validate=True)
    except (IndexError, binascii.Error, ValueError):
        return None
    return (key_type, key) if key_type and type_of(key) == key_type else None


def _lines_in(file: Path) -> tuple[KnownLine, ...]:
    """Return the lines of `file`, parsed once for all of perhaps hundreds of hosts."""
    if file == Path(os.devnull):
        return ()
    with _ONE_AT_A_TIME:
        try:
            status = file.stat()
        except FileNotFoundError:
            return ()
        return _parsed(file, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=16)
def _parsed(file: Path, _mtime_ns: int, _size_bytes: int) -> tuple[KnownLine, ...]:
    """Parse the file. Time and size are arguments so that a changed file is parsed again."""
    text = read_regular(file, MAX_BYTES).decode(errors="replace")
    found = (_parsed_line(file, number, line) for number, line in enumerate(text.split("\n"), 1))
    return tuple(line for line in found if line is not None)


def _lines_of_command(host: str, settings: SshSettings, name: str) -> Iterator[KnownLine]:
    """Yield the lines that KnownHostsCommand prints; a program that does not exist is skipped, as by ssh.

    Raises:
        HostError: The command fails. ssh trusts no host then either.
    """
    program = Path(*settings.known_hosts_command[:1])
    if not program.is_absolute() or not program.exists():
        return
    command = [word.replace("%H", name) for word in settings.known_hosts_command]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ANSWER_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        text = f"KnownHostsCommand of the SSH configuration fails for {settings.target}: {error}"
        raise HostError(host, "key unknown", text, f"try `{shlex.join(command)}`; correct it or take it out") from None
    for number, line in enumerate(done.stdout.decode(errors="replace").split("\n"), 1):
        found = _parsed_line(Path(f"KnownHostsCommand {command[0]}"), number, line)
        if found is not None:
            yield found


def _parsed_line(file: Path, number: int, line: str) -> KnownLine | None:
    """Parse a line; None for a comment, an unknown marker or a malformed line."""
    words = line.split(maxsplit=1)
    marker = words.pop(0) if words and words[0].startswith("@") else None
    if marker is not None:
        words = words[0].split(maxsplit=1) if words else []
    if len(words) < 2 or words[0].startswith("#") or marker not in (None, CERTIFICATE_AUTHORITY, REVOKED):
        return None
    if marker == CERTIFICATE_AUTHORITY and " " in line and f"{marker} " not in line:
        return None  # ssh takes all before the first space for the marker, and skips the line
    key = parsed_key(" ".join(words[1].split(maxsplit=2)))
    return None if key is None else KnownLine(file, number, marker, words[0], *key)


@functools.lru_cache(maxsize=16384)
def _patterns(names: str) -> tuple[frozenset[str], tuple[str, ...], tuple[str, ...]]:
    """Split names into exact ones, patterns and negated ones. Cached: each of a thousand hosts tests every line."""
    words = names.lower().split(",")
    negated = tuple(each[1:] for each in words if each.startswith("!"))
    wanted = [each for each in words if not each.startswith("!")]
    patterns = tuple(each for each in wanted if "*" in each or "?" in each)
    return frozenset(wanted).difference(patterns), patterns, negated


def _is_hash_of(hashed: str, name: str) -> bool:
    """Return True if `|1|SALT|HASH` is the hash of that name."""
    try:
        salt, digest = (base64.b64decode(part, validate=True) for part in hashed.removeprefix(_HASHED).split("|"))
    except (binascii.Error, ValueError):
        return False
    return hmac.compare_digest(hmac.new(salt, name.encode(), "sha1").digest(), digest)
