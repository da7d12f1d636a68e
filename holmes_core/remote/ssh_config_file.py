"""SSH configurations with what they include, which paramiko's own reading passes over. Source: ssh_config(5)."""

from __future__ import annotations

import glob
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import paramiko

from holmes_core.errors import HolmesError
from holmes_core.records.regular_file import MIB, read_regular

SYSTEM_FILE = Path("/etc/ssh/ssh_config")
MOST_BYTES = 2 * MIB
MOST_FILES = 256
DEEPEST = 16  # as in OpenSSH's readconf.c
_CRITERIA = {"host", "originalhost", "user", "localuser", "exec"}
_ALONE = {"all", "canonical", "final"}
_LINE = re.compile(r"(\w+)(?:\s*=\s*|\s+)(.+)")


def read_ssh_config(name: str | None) -> paramiko.SSHConfig:
    """The SSH configuration `name`, or else the user's and then the system's; what is missing is empty.

    Raises HolmesError naming the file, and the line if there is one, that cannot be read.
    """
    user_file = Path(name or "~/.ssh/config").expanduser()
    reader = _Reader(Path("~/.ssh").expanduser())
    lines = list(reader.lines(user_file, "", 0)) if user_file.exists() else []
    if name is None and SYSTEM_FILE.exists():
        lines += ["Host *", *_Reader(SYSTEM_FILE.parent).lines(SYSTEM_FILE, "", 0)]
    try:
        return paramiko.SSHConfig.from_text("\n".join(lines))
    except (paramiko.ConfigParseError, ValueError) as error:
        raise not_read(user_file, error) from None


def not_read(file: Path | str, why: object) -> HolmesError:
    """The error for a configuration that says nothing that can be used."""
    hint = "correct it, `ssh -G HOST` checks it; or name another by `ssh_config:` in hosts.yaml"
    return HolmesError(f"{file}: not an SSH configuration: {str(why)[:200]}", hint)


class _Reader:
    """Writes a file and those it includes as one: an included block counts where the including one does too."""

    def __init__(self, base: Path) -> None:
        self._base = base
        """Of paths that are relative."""
        self._count = 0

    def lines(self, file: Path, outer: str, depth: int) -> Iterator[str]:
        """The lines of `file`, which counts where the criteria `outer` of a `Match` are met."""
        self._count += 1
        if depth > DEEPEST or self._count > MOST_FILES:
            raise not_read(file, f"files include one another, more than {DEEPEST} deep or {MOST_FILES} in all")
        text = _text(file)
        if not re.search(r"include|match", text, re.IGNORECASE) and not outer:
            yield from text.split("\n")  # the usual file, of hundreds of hosts
            return
        block = outer
        for number, line in enumerate(text.split("\n"), 1):
            match = _LINE.fullmatch(line.strip())
            word, value = (match.group(1).lower(), match.group(2)) if match else ("", "")
            if word == "include":
                for included in self._included(file, number, value):
                    yield from self.lines(included, block, depth + 1)
                    yield _header(block)
            elif word in ("host", "match"):
                hosts = ["originalhost", ",".join(_words(file, number, value))]
                block = _joined(outer, hosts if word == "host" else _criteria(file, number, value))
                yield line if word == "host" and not outer else _header(block)
            else:
                yield line

    def _included(self, file: Path, number: int, value: str) -> Iterator[Path]:
        for pattern in _words(file, number, value):
            for path in sorted(glob.glob(str(self._base / Path(pattern).expanduser()))):  # noqa: PTH207  # it may be absolute
                yield Path(path)


def _text(file: Path) -> str:
    if file == Path(os.devnull):
        return ""
    try:
        return read_regular(file, MOST_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise not_read(file, getattr(error, "strerror", None) or error) from None


def _words(file: Path, number: int, value: str) -> list[str]:
    try:
        return shlex.split(value)
    except ValueError as error:
        raise not_read(f"{file}:{number}", error) from None


def _criteria(file: Path, number: int, line: str) -> list[str]:
    """The words of a `Match` line, but for `all`; paramiko would take one it does not know for one that is met."""
    found: list[str] = []
    words = iter(_words(file, number, line))
    for word in words:
        keyword = word.lower().removeprefix("!")
        if keyword not in _CRITERIA | _ALONE:
            raise not_read(f"{file}:{number}", f"`Match {word}` is not understood here")
        if word.lower() != "all":
            found.append(word)
        if keyword in _CRITERIA:
            value = next(words, "")
            if not value:
                raise not_read(f"{file}:{number}", f"`Match {word}` names nothing")
            found.append(value)
    return found


def _joined(outer: str, criteria: list[str]) -> str:
    """Criteria that are all to be met."""
    return f"{outer} {shlex.join(criteria)}".strip()


def _header(criteria: str) -> str:
    return f"Match {criteria}" if criteria else "Host *"
