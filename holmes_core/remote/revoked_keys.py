"""Files of `RevokedHostKeys`: keys, or a KRL made by `ssh-keygen -k`, that prove no host."""

from __future__ import annotations

import base64
import shutil
import subprocess
import tempfile
from pathlib import Path

from holmes_core.errors import HostError
from holmes_core.records.regular_file import read_regular
from holmes_core.remote.known_hosts import MAX_BYTES, parsed_key, type_of

_KRL = b"SSHKRL\n\0"  # the first bytes of one: OpenSSH, PROTOCOL.krl
_ANSWER_S = 30.0


def is_revoked(host: str, file: Path, offered: bytes, keys: tuple[bytes, ...]) -> bool:
    """Return True if `file` revokes the key or certificate a host offers. `keys`: its own and its authority's.

    Raises:
        HostError: The file cannot be read. ssh trusts no host then either.
    """
    try:
        data = read_regular(file, MAX_BYTES)
    except OSError as error:
        raise _not_read(host, file, f"cannot be read: {error.strerror or error}") from None
    if data.startswith(_KRL):
        return _is_in_krl(host, file, offered)
    for number, line in enumerate(data.decode(errors="replace").split("\n"), 1):
        words = line.strip()
        if not words or words.startswith("#"):
            continue
        listed = parsed_key(" ".join(words.split(maxsplit=2)))
        if listed is None:
            raise _not_read(host, file, f"cannot be read: no key in line {number}")
        if listed[1] in keys:
            return True
    return False


def _is_in_krl(host: str, file: Path, offered: bytes) -> bool:
    """Ask `ssh-keygen -Q`, since only OpenSSH reads all that a KRL may hold."""
    program = shutil.which("ssh-keygen")
    if program is None:
        raise _not_read(host, file, "is a KRL, and there is no `ssh-keygen` here to read it")
    with tempfile.TemporaryDirectory(prefix="holmes-") as folder:
        key = Path(folder) / "offered.pub"
        key.write_text(f"{type_of(offered)} {base64.b64encode(offered).decode()}\n", encoding="utf-8")
        command = [program, "-Q", "-f", str(file.absolute()), str(key)]
        try:
            done = subprocess.run(command, capture_output=True, timeout=_ANSWER_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _not_read(host, file, f"is a KRL that `ssh-keygen -Q` does not read: {error}") from None
    if done.returncode == 0 and done.stdout.rstrip().endswith(b": ok"):
        return False
    if b": REVOKED" in done.stdout:
        return True
    said = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
    raise _not_read(host, file, f"is a KRL that `ssh-keygen -Q` does not read: {said[-1] if said else 'no answer'}")


def _not_read(host: str, file: Path, why: str) -> HostError:
    text = f"{file}, RevokedHostKeys of the SSH configuration, {why}; ssh believes no host then"
    return HostError(host, "key unknown", text, "correct the path in the SSH configuration, or the file")
