"""Send a node its files over the connection's standard input. What it has already is not sent again."""

from __future__ import annotations

from holmes_core.errors import HostError
from holmes_core.remote.transport import Connection, last_lines
from launcher.prepare.bundle import MISSING, NodeBundle

SHIP_TIMEOUT_S = 120.0
SHOWN_LINES = 10


def ship(bundle: NodeBundle, connection: Connection) -> int:
    """Bytes sent. Unpacks the node's own files, then the parcels it lacks. Raises HostError with what the host said."""
    said = _run(bundle, connection, bundle.unpack_command, bundle.archive)
    sent = len(bundle.archive)
    for parcel in bundle.parcels:
        if f"{MISSING} {parcel.digest}" in said.splitlines():
            _run(bundle, connection, parcel.unpack_command, parcel.archive)
            sent += len(parcel.archive)
    return sent


def _run(bundle: NodeBundle, connection: Connection, command: str, data: bytes) -> str:
    done = connection.run(command, data, SHIP_TIMEOUT_S)
    if done.exit_code != 0:
        text = "\n".join(last_lines(done.stderr, SHOWN_LINES)) or f"exit code {done.exit_code}"
        raise HostError(
            bundle.node.host,
            "files",
            f"cannot unpack the run's files in {bundle.folder}: {text}",
            "see that the home folder is writable, has space, and that `tar` is installed",
        )
    return done.stdout.decode(errors="replace")
