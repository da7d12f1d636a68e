"""Certificates of host keys, read and judged as ssh does. Source: OpenSSH, PROTOCOL.certkeys."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

import paramiko

from holmes_core.remote.ssh_settings import ALGORITHMS, CERTIFICATE

_KEY_FIELDS = {"ssh-ed25519": 1, "ssh-rsa": 2, **{name: 2 for name in ALGORITHMS if "ecdsa" in name}}
_HOST = 2  # the kind of a certificate for hosts; 1 is for users
_FOR_EVER = (1 << 64) - 1
_MAX_PRINCIPALS = 256  # as in OpenSSH's sshkey.c


@dataclass(frozen=True)
class HostCertificate:
    """The fields of a certificate. Its signature has been verified where its algorithm can be checked here."""

    key: bytes
    """The key it is for, as it travels in SSH without a certificate."""
    kind: int
    principals: tuple[str, ...]
    """The names it is for; none for all."""
    valid_after_s: int
    valid_before_s: int
    """Seconds since 1970; 2**64 - 1 for ever."""
    has_critical_options: bool
    authority: bytes
    """The key that signed it."""
    signature_algorithm: str

    def fault(self, name: str, now_s: float, algorithms: tuple[str, ...] = ALGORITHMS) -> str | None:
        """Return the reason why a trusted authority's certificate does not prove that host now; None if it does."""
        if self.kind != _HOST:
            return "is for a user, not for a host"
        if now_s < self.valid_after_s:
            return f"is not valid before {_day(self.valid_after_s)}"
        if self.valid_before_s != _FOR_EVER and now_s >= self.valid_before_s:
            return f"has expired at {_day(self.valid_before_s)}"
        if self.principals and name not in self.principals:
            return f"is for {', '.join(self.principals[:3])}, not for {name}"
        if self.has_critical_options:
            return "has critical options, of which ssh knows none for hosts"
        if self.signature_algorithm not in algorithms:
            return f"is signed by {self.signature_algorithm}, which is not allowed, or cannot be checked here"
        return None


def read_certificate(data: bytes) -> HostCertificate:
    """Parse a certificate.

    Raises:
        ValueError: The bytes are not a certificate, or its authority did not sign them.
    """
    reader = _FieldReader(data)
    key_type = reader.text().removesuffix(CERTIFICATE)
    if key_type not in _KEY_FIELDS:
        raise ValueError(f"certificates of type {key_type} are not known")
    reader.string()  # nonce
    key = _packed(key_type.encode(), *(reader.string() for _ in range(_KEY_FIELDS[key_type])))
    reader.number(8)  # serial
    kind = reader.number(4)
    reader.string()  # the key id, a label that the authority chose
    principals = _texts(reader.string())
    after_s, before_s = reader.number(8), reader.number(8)
    critical, extensions = reader.string(), reader.string()
    _check_whole(critical)
    _check_whole(extensions)
    reader.string()  # reserved
    authority, signed = reader.string(), data[: reader.at]
    signature = reader.string()
    if reader.at != len(data):
        raise ValueError(f"{len(data) - reader.at} bytes after its end")
    algorithm = _FieldReader(signature).text()
    if algorithm in ALGORITHMS:
        _check_signature(authority, signed, signature)
    return HostCertificate(key, kind, principals, after_s, before_s, bool(critical), authority, algorithm)


def _check_signature(authority: bytes, signed: bytes, signature: bytes) -> None:
    algorithm, numbers = _strings(signature, 2)
    if algorithm.startswith(b"ecdsa-"):
        _strings(numbers, 2)
    try:
        key = paramiko.PKey.from_type_string(_FieldReader(authority).text(), authority)
        right = key.get_name() in _KEY_FIELDS and key.verify_ssh_sig(signed, paramiko.Message(signature))
    except Exception as error:  # libraries raise all kinds of errors at keys and signatures made to harm
        raise ValueError(f"its authority's key or signature cannot be read: {error}") from None
    if not right:
        raise ValueError("its signature is not its authority's")


def _texts(data: bytes) -> tuple[str, ...]:
    reader, found = _FieldReader(data), list[str]()
    while reader.at < len(data):
        if len(found) == _MAX_PRINCIPALS:
            raise ValueError(f"more than {_MAX_PRINCIPALS} names")
        found.append(reader.text())
    return tuple(found)


def _strings(data: bytes, count: int) -> list[bytes]:
    """Return exactly `count` strings of `data`; paramiko would pad missing ones with zeros."""
    reader = _FieldReader(data)
    found = [reader.string() for _ in range(count)]
    if reader.at != len(data):
        raise ValueError(f"{len(data) - reader.at} bytes after the end of its signature")
    return found


def _check_whole(options: bytes) -> None:
    """Check that options are pairs of a name and its value; for hosts ssh uses none of them."""
    reader = _FieldReader(options)
    while reader.at < len(options):
        reader.string()
        reader.string()


class _FieldReader:
    """A reader of the fields of SSH's binary format, in order. A field that is cut short is a ValueError."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def number(self, size_bytes: int) -> int:
        return int.from_bytes(self._take(size_bytes), "big")

    def string(self) -> bytes:
        return self._take(self.number(4))

    def text(self) -> str:
        """Read a string without NUL, which could hide the rest from other readers."""
        data = self.string()
        if b"\0" in data:
            raise ValueError("a NUL in a name")
        return data.decode(errors="backslashreplace")

    def _take(self, size_bytes: int) -> bytes:
        taken = self._data[self.at : self.at + size_bytes]
        if len(taken) != size_bytes:
            raise ValueError(f"cut short after {len(self._data)} bytes")
        self.at += size_bytes
        return taken


def _packed(*fields: bytes) -> bytes:
    return b"".join(len(field).to_bytes(4, "big") + field for field in fields)


def _day(time_s: int) -> str:
    try:
        return f"{datetime.datetime.fromtimestamp(time_s, datetime.timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return f"second {time_s} since 1970"
