"""Real sshd on loopback ports, started by whoever runs the tests, and throw-away keys for them."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from tests.eventually import eventually

SSHD = shutil.which("sshd", path=os.environ["PATH"] + ":/usr/sbin")
needs_sshd = pytest.mark.skipif(SSHD is None or shutil.which("ssh-keygen") is None, reason="no openssh-server here")


def make_key(path: Path, *options: str) -> str:
    """A new key pair; its public line. `options`: ssh-keygen's, an ed25519 key without any."""
    kind = options or ("-t", "ed25519")
    subprocess.run(["ssh-keygen", "-q", *kind, "-N", "", "-C", "test", "-f", str(path)], check=True)
    return path.with_suffix(".pub").read_text(encoding="utf-8")


@contextlib.contextmanager
def sshds(folder: Path, settings: Mapping[int, str]) -> Iterator[None]:
    """An sshd at each port, with those settings; unless they say otherwise, keys of `folder`/authorized may log in."""
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    started = []
    try:
        for port, text in settings.items():
            config = folder / f"sshd-{port}.conf"
            config.write_text(
                f"{text}\nListenAddress 127.0.0.1:{port}\nAuthorizedKeysFile {folder}/authorized\nPidFile none\n"
                "UsePAM no\nStrictModes no\nPermitRootLogin prohibit-password\nMaxStartups 100\n",
                encoding="utf-8",
            )
            assert SSHD is not None
            started.append(subprocess.Popen([SSHD, "-D", "-f", str(config)], stderr=subprocess.DEVNULL))
        for port in settings:
            assert eventually(partial(_is_listening, port)), port
        yield
    finally:
        for sshd in started:
            sshd.terminate()
            sshd.wait()


def _is_listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
