"""An SSH server in a host of the bed, for machines without sshd: one key may log in, and run commands.

    python ssh_server.py FOLDER ADDRESS     FOLDER holds host_key and authorized_keys

A command gets the server's environment, a session of its own and three pipes, as from sshd. When the client is gone its
input ends and its output goes nowhere. All connections are threads of this process, so they end with it.
"""

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO

import paramiko
from paramiko.common import (
    AUTH_FAILED,
    AUTH_SUCCESSFUL,
    OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED,
    OPEN_SUCCEEDED,
)

CHUNK_BYTES = 1 << 15
EXIT_UNKNOWN = 255


class Door(paramiko.ServerInterface):
    """Who may come in, and what for."""

    def __init__(self, authorized: frozenset[str]) -> None:
        """`authorized` are public keys in base64."""
        self._authorized = authorized

    def get_allowed_auths(self, username: str) -> str:  # noqa: ARG002
        """Keys alone."""
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:  # noqa: ARG002
        """Whether this key may log in; paramiko has seen its signature."""
        known = key.get_base64() in self._authorized
        return AUTH_SUCCESSFUL if known else AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:  # noqa: ARG002
        """Sessions alone: nothing is forwarded."""
        return OPEN_SUCCEEDED if kind == "session" else OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        """Starts the command; its end closes the channel."""
        threading.Thread(target=_run, args=(channel, command), daemon=True).start()
        return True


def _run(channel: paramiko.Channel, command: bytes) -> None:
    pipe = subprocess.PIPE
    process = subprocess.Popen(["/bin/sh", "-c", command], stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    threading.Thread(target=_feed, args=(channel, process.stdin), daemon=True).start()
    out = threading.Thread(target=_pass_on, args=(process.stdout, channel.sendall), daemon=True)
    errors = threading.Thread(target=_pass_on, args=(process.stderr, channel.sendall_stderr), daemon=True)
    out.start()
    errors.start()
    code = process.wait()
    with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
        channel.send_exit_status(code if code >= 0 else EXIT_UNKNOWN)
    out.join()
    errors.join()
    channel.close()


def _feed(channel: paramiko.Channel, stdin: IO[bytes]) -> None:
    with contextlib.suppress(OSError, EOFError), stdin:
        while data := channel.recv(CHUNK_BYTES):
            stdin.write(data)
            stdin.flush()


def _pass_on(output: IO[bytes], send: Callable[[bytes], object]) -> None:
    """Until the output ends or nobody takes it; then who writes more is told by SIGPIPE."""
    with contextlib.suppress(OSError, EOFError), output:
        for data in iter(partial(os.read, output.fileno(), CHUNK_BYTES), b""):
            send(data)


def _serve(connection: socket.socket, host_key: paramiko.PKey, door: Door) -> None:
    transport = paramiko.Transport(connection)
    transport.add_server_key(host_key)
    with contextlib.suppress(paramiko.SSHException, OSError, EOFError):
        transport.start_server(server=door)


def main() -> None:
    """Serves until it is killed."""
    folder, address = Path(sys.argv[1]), sys.argv[2]
    host_key = paramiko.Ed25519Key.from_private_key_file(str(folder / "host_key"))
    lines = (folder / "authorized_keys").read_text(encoding="utf-8").splitlines()
    door = Door(frozenset(line.split()[1] for line in lines))
    with socket.create_server((address, 22)) as server:
        print(f"Server listening on {address}", file=sys.stderr, flush=True)
        while True:
            connection, _ = server.accept()
            threading.Thread(target=_serve, args=(connection, host_key, door), daemon=True).start()


if __name__ == "__main__":
    main()
