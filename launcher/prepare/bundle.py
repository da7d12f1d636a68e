"""The files that are sent to a node and their paths there. Every run file is named here.

All lie in one folder, `$HOME/.cache/holmes`, private to its user. `parcels/DIGEST` holds files that many launches share
and that are sent once. `runs/RUN/ATTEMPT-NODE` is one node's part of one attempt, with links to them.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import shlex
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from holmes_core.records.access import Access
from holmes_core.records.plan import Node
from holmes_runtime.config.messages import NO_FOLDER
from holmes_runtime.config.node_config import COMPILED_FOLDER, memory_folder
from launcher.prepare.container import container_words

RUN_CONFIG_FILE = "run_config.json"
NODE_CONFIG_FILE = "node.json"
PLAN_FILE = "plan.json"
RUNTIME_PACKAGE = "holmes_runtime"
CACHE = "$HOME/.cache/holmes"
FORGET_AFTER_DAYS = 30
MISSING = "holmes: missing"
UNPACKED = "holmes: unpacked"
TAKEN = "taken"  # a folder, as only one of two commands can create it


class Parcel:
    """Files that are the same for all nodes and many launches, named by their digest."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files = dict(files)
        self.archive = archive(files)
        self.digest = hashlib.sha256(self.archive).hexdigest()[:16]

    @property
    def folder(self) -> str:
        """The unpacked folder, to be put in double quotes."""
        return f"{CACHE}/parcels/{self.digest}"

    @property
    def entries(self) -> tuple[str, ...]:
        """The top-level names, to which a node's folder links."""
        return tuple(sorted({name.partition("/")[0] for name in self.files}))

    @property
    def unpack_command(self) -> str:
        """Read the archive from standard input. The folder appears whole or not at all, even if others send it too.

        Remove parcels and compiled layers that have long been unused. On shared homes other hosts do the same, so
        `find` reports errors for files that they remove first.
        """
        new = f"{CACHE}/parcels/.{self.digest}.$$"
        forget = f"find . -mindepth 1 -maxdepth 1 -mtime +{FORGET_AFTER_DAYS} -exec rm -rf -- {{}} +"
        compiled = f'../compiled "{COMPILED_FOLDER}$(id -u)"'
        unused = f"find {compiled} -type f -mtime +{FORGET_AFTER_DAYS} -atime +{FORGET_AFTER_DAYS} -delete"
        return shell(
            f'umask 077 && mkdir -p "{new}" && cd "{new}" && {{ tar -xzf - || {{ rm -rf -- "{new}"; exit 1; }}; }} && '
            f'cd .. && {{ mv -T "{new}" "{self.folder}" 2>/dev/null || rm -rf -- "{new}"; }} && '
            f'test -d "{self.folder}" && {{ {forget} 2>/dev/null || true; }} && {{ {unused} 2>/dev/null || true; }}'
        )


@dataclass(frozen=True)
class NodeBundle:
    """One node's part of an attempt: `files` by name, those in `secrets` never to be shown, and the commands."""

    node: Node
    run_id: str
    attempt: int
    files: Mapping[str, str]
    secrets: frozenset[str]
    parcels: tuple[Parcel, ...]

    @property
    def folder(self) -> str:
        """The private folder, to be put in double quotes."""
        assert all(character.isalnum() or character == "-" for character in self.run_id), self.run_id
        return f"{CACHE}/runs/{self.run_id}/{self.attempt}-{self.node.node_rank}"

    @cached_property
    def archive(self) -> bytes:
        """The node's own files, packed."""
        return archive(self.files)

    @property
    def shipment(self) -> bytes:
        """The input of `hold_command`: the size of the archive in bytes, a newline, and the archive."""
        return b"%d\n%s" % (len(self.archive), self.archive)

    @property
    def hold_command(self) -> str:
        """Unpack `shipment` from standard input, and hold the files until `start_command` has taken them.

        Print the parcels that the node lacks, then UNPACKED. Remove the folder if the archive is cut short or if the
        input ends before the files are taken: the sender is gone. Of the two commands, the first to create TAKEN owns
        the folder. The folder is renamed before it is emptied, so that TAKEN cannot be created in it again.
        """
        links = " ".join(f'"{parcel.folder}/{entry}"' for parcel in self.parcels for entry in parcel.entries)
        folders = " ".join(f'"{parcel.folder}"' for parcel in self.parcels)
        return shell(
            f"trap '' HUP INT PIPE TERM; umask 077; "
            f'if mkdir -p "{self.folder}" && cd "{self.folder}" && read -r size && head -c "$size" | tar -xzf - && '
            f"ln -s {links} .; then "
            f'for parcel in {folders}; do touch -c "$parcel"; '
            f'test -d "$parcel" || echo "{MISSING} ${{parcel##*/}}"; done; '
            f'echo "{UNPACKED}"; cat >/dev/null; else failed=1; fi; '
            f'if mkdir "{self.folder}/{TAKEN}" 2>/dev/null || ! test -d "{self.folder}/{TAKEN}"; then cd /; '
            f'mv -T -- "{self.folder}" "{self.folder}.gone" 2>/dev/null; rm -rf -- "{self.folder}.gone"; '
            f'rmdir -- "{CACHE}/runs/{self.run_id}" 2>/dev/null; fi; exit "${{failed-0}}"'
        )

    @property
    def start_command(self) -> str:
        """Take the folder and become the node agent, which starts torchrun on command and later removes the folder."""
        return self._in_folder(f'mkdir "{self.folder}/{TAKEN}" && exec {self._python("agent", start=True)}')

    def follow_command(self, messages_seen: int) -> str:
        """Become another relay to a running agent. It skips the messages already seen.

        Exit with NO_FOLDER if the agent's folder is gone.
        """
        return self._in_folder(f"exec {self._python(f'relay {messages_seen}')}", f" || exit {NO_FOLDER}")

    @property
    def end_command(self) -> str:
        """End an agent that has no connection, by recorded ids, and print the processes that are left."""
        container = self.node.access.container
        if container is not None and container.engine == "docker":
            return self._in_folder(f"docker rm --force {self._name} >/dev/null 2>&1 || true")
        return self._in_folder(f"exec {self._python('end_agent')}")

    @property
    def remove_command(self) -> str:
        """Remove the private folder and the temporary folder that it links to."""
        link = f"{self.folder}/tmp"
        return shell(
            f'if [ -L "{link}" ]; then rm -rf -- "$(readlink "{link}")"; fi; '
            f'rm -rf -- "{self.folder}"; rmdir -- "{CACHE}/runs/{self.run_id}" 2>/dev/null; true'
        )

    @property
    def forget_command(self) -> str:
        """Remove the newest checkpoint that ranks kept in the host's memory for a restart."""
        return shell(f"rm -rf -- {shlex.quote(memory_folder(self.run_id, self.node.host))}")

    @property
    def _name(self) -> str:
        return f"holmes-{self.run_id}-{self.attempt}-{self.node.node_rank}"

    def _in_folder(self, command: str, otherwise: str = "") -> str:
        """Return `command` run in the node's folder, after the host's activation line, which needs a login shell."""
        enter = f'cd "{self.folder}"'
        script = f"umask 077 && {f'{{ {enter}{otherwise}; }}' if otherwise else enter} && {command}"
        return activated(self.node.access, script)

    def _python(self, arguments: str, start: bool = False) -> str:
        """Return the command that runs a module of the runtime, in the container if there is one."""
        access = self.node.access
        module = f"{access.python_word} -m {RUNTIME_PACKAGE}.node.{arguments}"
        if access.container is None:
            return module
        if access.container.engine == "docker" and not start:
            return f'docker exec --interactive --workdir "{self.folder}" {self._name} {module}'
        named = f"--interactive --name {self._name}"
        return f"{container_words(self.node, named, self.folder, CACHE)} {module}"


def archive(files: Mapping[str, str]) -> bytes:
    """Return a reproducible compressed tar archive of `files` by relative name, private to their owner."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in sorted(files):
            data = as_bytes(files[name])
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o600
            tar.addfile(entry, io.BytesIO(data))
    return gzip.compress(buffer.getvalue(), compresslevel=6, mtime=0)


def as_bytes(text: str) -> bytes:
    """Return a file's bytes. In its text, bytes that are not UTF-8 are lone surrogates."""
    return text.encode("utf-8", "surrogateescape")


def activated(access: Access, script: str) -> str:
    """Return `script` after the host's activation line, which needs a login shell; for /bin/sh if there is no line."""
    return (
        shell(script) if access.activate is None else f"exec bash -lc {shlex.quote(f'{access.activate} && {script}')}"
    )


def shell(script: str) -> str:
    """Return a command that runs `script` in /bin/sh, whatever the login shell is."""
    return f"exec /bin/sh -c {shlex.quote(script)}"
