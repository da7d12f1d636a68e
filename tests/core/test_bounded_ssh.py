"""Whoever answers at a host's address and sends without end is named, before it has proven to be the host as well."""

from __future__ import annotations

import contextlib
import getpass
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
from holmes_core.remote.transport import KEPT_STDERR_BYTES
from tests.core.ssh_servers import make_key, needs_sshd, sshds
from tests.free_ports import free_port

GREETING = b"SSH-2.0-OpenSSH_9.2\r\n"
CHUNK = b"x" * 65536
ENDLESS = "exec cat /dev/zero"
LIMIT_S = 120.0
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
        (b"", "not an SSH server's greeting"),
        (b"Welcome\r\n" * 10, "not an SSH server's greeting"),
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


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Access]:
    """How to reach an sshd of our own."""
    port = free_port()
    (tmp_path / "authorized").write_text(make_key(tmp_path / "client"), encoding="utf-8")
    (tmp_path / "known_hosts").write_text(f"[127.0.0.1]:{port} {make_key(tmp_path / 'own')}", encoding="utf-8")
    lines = f"UserKnownHostsFile {tmp_path}/known_hosts\nIdentityFile {tmp_path}/client\nIdentitiesOnly yes\n"
    (tmp_path / "ssh_config").write_text(lines, encoding="utf-8")
    with sshds(tmp_path, {port: f"HostKey {tmp_path}/own"}):
        yield Access(address="127.0.0.1", port=port, user=getpass.getuser(), ssh_config=str(tmp_path / "ssh_config"))


@needs_sshd
def test_answer_and_line_without_an_end_are_refused_and_the_connection_goes_on(host: Access) -> None:
    connection = connect("b1", host)
    with contextlib.closing(connection):
        with pytest.raises(HostError, match="host b1: its answer is longer than 64 MiB"):
            connection.run(ENDLESS, b"", LIMIT_S)
        with pytest.raises(HostError, match="host b1: it sent more than 16 MiB"):
            list(connection.open(ENDLESS).lines())
        done = connection.run("head -c 4000000 /dev/zero >&2; echo the reason >&2; echo out", b"", LIMIT_S)
        assert (done.exit_code, done.stdout) == (0, b"out\n")
        assert done.stderr.endswith(b"the reason\n")
        assert len(done.stderr) == KEPT_STDERR_BYTES
