"""Read SSH configurations by `ssh -G`, which resolves files, includes, blocks, defaults and the order of proxies."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from holmes_core.errors import HolmesError, HostError
from holmes_core.records.access import Access

USER_FILE = "~/.ssh/config"
TIMEOUT_S = 10.0  # `Match exec` runs commands
MAX_MEMORY_BYTES = 512 << 20  # an included file may be endless
_SHOWN = 200  # characters of ssh's message


@dataclass(frozen=True)
class SshConfig:
    """The settings of ssh for one host, as pairs of keyword in lower case and value. A keyword may occur several times.

    `is_known` is False if this machine has no `ssh`.
    """

    lines: tuple[tuple[str, str], ...]
    is_known: bool = True

    def all(self, key: str) -> list[str]:
        """Return every value of `key`."""
        return [value for name, value in self.lines if name == key]

    def one(self, key: str) -> str | None:
        """Return the first value of `key` other than `none`; None without one."""
        return next((value for value in self.all(key) if value.lower() != "none"), None)


def read_ssh_config(host: str, name: str, access: Access) -> SshConfig:
    """Return the settings that `ssh` would use for `host`, which its command line calls `name`.

    Raises:
        HolmesError: ssh refuses the configuration, and is quoted; or a file is named and there is no `ssh`.
        HostError: ssh does not answer in time.
    """
    file = str(Path(access.ssh_config).expanduser()) if access.ssh_config else None
    if shutil.which("ssh") is None:
        if file is not None:
            raise HolmesError(f"{file}: there is no `ssh` here to read it", "install the OpenSSH client")
        return SshConfig((), is_known=False)
    options = [*(("-F", file) if file else ()), *(("-p", str(access.port)) if access.port else ())]
    options += ["-l", access.user] if access.user else []
    command = ["ssh", "-G", *options, "--", name]
    environment, pipe = {**os.environ, "LC_ALL": "C"}, subprocess.PIPE
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=environment, start_new_session=True
    ) as process:
        try:
            _limit_memory(process.pid)
            stdout, stderr = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # and with it the command that ssh waits for
            what = f"`ssh -G {name}` does not end within {TIMEOUT_S:g} s"
            hint = f"see what {file or USER_FILE} waits for, such as a command of `Match exec`; then try again"
            raise HostError(host, "unreachable", what, hint) from None
    if process.returncode != 0:
        said = "; ".join(stderr.decode(errors="replace").strip().splitlines())
        raise not_read(file or USER_FILE, said or f"`ssh -G {name}` exited with {process.returncode}")
    words = (line.partition(" ") for line in stdout.decode(errors="surrogateescape").splitlines())
    return SshConfig(tuple((key, value) for key, _, value in words if value))


def _limit_memory(pid: int) -> None:
    """Limit the memory of a process that has just started, and may have ended. Only Linux can do this."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            limit = MAX_MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MAX_MEMORY_BYTES, hard)
            resource.prlimit(pid, resource.RLIMIT_DATA, (limit, limit))


def not_read(file: str, why: object) -> HolmesError:
    """Return the error for a configuration that cannot be used."""
    hint = "correct it, `ssh -G HOST` checks it; or name another by `ssh_config:` in hosts.yaml"
    return HolmesError(f"{file}: not an SSH configuration: {str(why)[:_SHOWN]}", hint)
