"""Starting programs for the bed, with the system folders on the search path and errors that name the command."""

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class BedError(RuntimeError):
    """The bed could not be set up, changed or taken down."""


def bed_environment() -> Mapping[str, str]:
    """The environment of the bed's own tools: root's search path often lacks the sbin folders."""
    return {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}"}


def run_tool(command: Sequence[str], lines: Sequence[str] = ()) -> str:
    """The output of `command`, fed with `lines`; raises BedError with its complaint if it fails."""
    done = subprocess.run(
        command, input="".join(f"{line}\n" for line in lines), capture_output=True, text=True, env=bed_environment()
    )
    if done.returncode != 0:
        raise BedError(f"`{shlex.join(command)}` exited with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def start_tool(command: Sequence[str], log: Path) -> "subprocess.Popen[bytes]":
    """A process of the bed, writing to `log`; in its own session, so that Ctrl-C at the terminal spares it."""
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=bed_environment(),
            cwd="/",
            start_new_session=True,
        )
