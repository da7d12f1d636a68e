"""This user's signature on files that this user's Holmes wrote here, by a key in the user's state folder.

Anyone can compute a digest, which shows only that a file has not changed. The signature shows who wrote it.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

from holmes_core.errors import HolmesError
from holmes_core.state_folder import state_folder

KEY_BYTES = 32
_SCHEME = "hmac-sha256:"


def signature(kind: str, digest: str) -> str:
    """Return `hmac-sha256:...` of a record's kind and digest. Raises HolmesError where the key is unusable."""
    return _signature(own_key(), kind, digest)


def is_own(kind: str, digest: str, claimed: object) -> bool:
    """Return True if `claimed` is this user's signature of a record. Raises HolmesError if others can read the key."""
    if not isinstance(claimed, str):
        return False
    key = _read_key(_key_file())
    return key is not None and hmac.compare_digest(
        claimed.encode(errors="replace"), _signature(key, kind, digest).encode()
    )


def own_key() -> bytes:
    """Return this user's key, `KEY_BYTES` at random, made on first use. Raises HolmesError where it cannot be made."""
    file = _key_file()
    key = _read_key(file)
    if key is not None:
        return key
    try:
        _make_key(file)
    except OSError as error:
        raise HolmesError(
            f"{file}: cannot create the key that signs your files: {error.strerror or error}",
            "set XDG_STATE_HOME to one of your folders",
        ) from None
    key = _read_key(file)
    assert key is not None
    return key


def _key_file() -> Path:
    return state_folder() / "key"


def _signature(key: bytes, kind: str, digest: str) -> str:
    return _SCHEME + hmac.new(key, f"{kind} {digest}".encode(), hashlib.sha256).hexdigest()


def _make_key(file: Path) -> None:
    """Make the key file. Of two commands that do so at once, the first to link its whole key to the name wins."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = file.with_name(f".key.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with open(descriptor, "wb") as opened:
            opened.write(secrets.token_bytes(KEY_BYTES))
            opened.flush()
            os.fsync(opened.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(temporary, file)
    finally:
        temporary.unlink()


def _read_key(file: Path) -> bytes | None:
    """Return the key, None where there is none yet. Raises HolmesError for one that is not this user's secret."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable(file, f"cannot be read: {error.strerror or error}") from None
    with open(descriptor, "rb") as opened:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise _unusable(file, f"not a file of this user (user id {os.geteuid()}; it is of {status.st_uid})")
        if status.st_mode & 0o077:
            raise _unusable(file, f"others may use it (mode {stat.S_IMODE(status.st_mode):04o})")
        key = opened.read(KEY_BYTES + 1)
    if len(key) != KEY_BYTES:
        raise _unusable(file, f"not the {KEY_BYTES} bytes of a key")
    return key


def _unusable(file: Path, why: str) -> HolmesError:
    hint = f"remove {file}: a new key is made, and files signed before are asked about once more"
    return HolmesError(f"{file}: the key that signs your files: {why}", hint)
