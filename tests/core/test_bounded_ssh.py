"""Whoever answers at a host's address and sends without end is named, before it has proven to be the host as well."""

from __future__ import annotations

import contextlib
import socket
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holmes_core.errors import HostError
from holmes_core.records.access import Access
from holmes_core.remote.connect import connect

GREETING = b"SSH-2.0-OpenSSH_9.2\r\n"
CHUNK = b"x" * 65536
MAX_CHUNKS = 8192  # of half a gigabyte in all


@contextmanager
def impostor(greeting: bytes) -> Iterator[int]:
    """The port of one who takes a connection, says that, and then sends on."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                connection, _ = server.accept()
                with connection:
                    connection.sendall(greeting)
                    for _ in range(MAX_CHUNKS):
                        connection.sendall(CHUNK)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield int(server.getsockname()[1])
    thread.join()


@pytest.mark.parametrize(
    ("greeting", "reason"),
    [
        (b"", "no greeting of an SSH server"),
        (b"Welcome\r\n" * 10, "no greeting of an SSH server"),
        (GREETING + b"\x7f\xff\xff\xf4", "it sent a packet of "),
        (GREETING + b"\x00\x10\x00\x04", "it sent a packet of "),
    ],
    ids=["nothing", "lines", "a packet of 2 GiB", "a packet of 1 MiB"],
)
def test_impostor_that_sends_without_end_is_refused(tmp_path: Path, greeting: bytes, reason: str) -> None:
    (tmp_path / "ssh_config").touch()
    with impostor(greeting) as port:
        access = Access(address="127.0.0.1", port=port, user="u", ssh_config=str(tmp_path / "ssh_config"))
        tracemalloc.start()
        with pytest.raises(HostError, match="host b1: cannot connect") as caught:
            connect("b1", access)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert reason in caught.value.what
    assert peak < 16 << 20
