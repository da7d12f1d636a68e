"""What travels to a node and where it lies there. Every run file is named here."""

from __future__ import annotations

import io
import shlex
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass

from holmes_core.plan import Node

RUN_CONFIG_FILE = "run_config.json"
NODE_CONFIG_FILE = "node.json"
RUNTIME_PACKAGE = "holmes_runtime"


@dataclass(frozen=True)
class NodeBundle:
    """One node's part of a launch: `files` by name, and the shell commands that unpack and start it."""

    node: Node
    folder: str
    files: Mapping[str, str]

    @property
    def unpack_command(self) -> str:
        """Reads a tar archive from standard input into the private folder."""
        return _shell(f'umask 077 && mkdir -p "{self.folder}" && cd "{self.folder}" && tar -xf -')

    @property
    def start_command(self) -> str:
        """Becomes the node agent, which starts torchrun when told."""
        python = shlex.quote(self.node.access.python)
        return _shell(f'umask 077 && cd "{self.folder}" && exec {python} -m {RUNTIME_PACKAGE}.agent {NODE_CONFIG_FILE}')

    @property
    def remove_command(self) -> str:
        """Removes the private folder; for a node whose agent could not do it."""
        return _shell(f'rm -rf -- "{self.folder}"; rmdir -- "$(dirname -- "{self.folder}")" 2>/dev/null')


def node_folder(run_id: str, node_rank: int) -> str:
    """The folder of one node of one run, below the remote user's home; to be put between double quotes."""
    assert all(character.isalnum() or character == "-" for character in run_id), run_id
    return f"$HOME/.cache/holmes/{run_id}/node-{node_rank}"


def archive(files: Mapping[str, str]) -> bytes:
    """A tar archive of `files` by relative name, readable by their owner alone; same content, same bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(files):
            data = files[name].encode()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o600
            tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def _shell(script: str) -> str:
    """`script` for /bin/sh, whatever the login shell is."""
    return f"exec /bin/sh -c {shlex.quote(script)}"
