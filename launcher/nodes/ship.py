"""Send a node its files through the connection's standard input, except those that it already has."""

from __future__ import annotations

import contextlib
import queue
import threading

from holmes_core.errors import HostError
from holmes_core.remote.transport import Connection, Stream, last_lines, timed_out
from launcher.prepare.bundle import MISSING, UNPACKED, NodeBundle

SHIP_TIMEOUT_S = 120.0
SHOWN_LINES = 10


def ship(bundle: NodeBundle, connection: Connection) -> Stream:
    """Unpack the node's own files, then the parcels that it lacks.

    Return the session that holds the files. If it ends before the agent has begun, the host removes them.

    Raises:
        HostError: files could not be unpacked; it has the host's message.
    """
    holding = connection.open(bundle.hold_command)
    try:
        lacking = _unpack(bundle, holding)
        for parcel in bundle.parcels:
            if f"{MISSING} {parcel.digest}" in lacking:
                done = connection.run(parcel.unpack_command, parcel.archive, SHIP_TIMEOUT_S)
                if done.exit_code != 0:
                    raise _not_unpacked(bundle, done.exit_code, done.stderr)
    except HostError:
        holding.abandon()
        raise
    return holding


def _unpack(bundle: NodeBundle, holding: Stream) -> set[str]:
    """Return the lines that name missing parcels. Raises HostError."""
    answers: queue.Queue[set[str] | HostError] = queue.Queue()

    def listen() -> None:
        lacking: set[str] = set()
        try:
            with contextlib.suppress(OSError, EOFError):  # the host then says why it stopped reading
                holding.send(bundle.shipment)
            for line in holding.lines():
                if line == UNPACKED:
                    return answers.put(lacking)
                if line.startswith(MISSING):
                    lacking.add(line)
            answers.put(_not_unpacked(bundle, *holding.wait()))
        except HostError as error:
            answers.put(error)

    threading.Thread(target=listen, daemon=True).start()
    try:
        answer = answers.get(timeout=SHIP_TIMEOUT_S)
    except queue.Empty:
        answer = timed_out(bundle.node.host, SHIP_TIMEOUT_S)
    if isinstance(answer, HostError):
        raise answer
    return answer


def _not_unpacked(bundle: NodeBundle, exit_code: int, stderr: str | bytes) -> HostError:
    text = "\n".join(last_lines(stderr, SHOWN_LINES)) or f"exit code {exit_code}"
    return HostError(
        bundle.node.host,
        "files",
        f"cannot unpack the run's files in {bundle.folder}: {text}",
        "see that the home folder is writable, has space, and that `tar` is installed",
    )
