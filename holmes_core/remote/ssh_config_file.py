"""SSH configurations with their included files, which paramiko's own reader skips. Source: ssh_config(5)."""

from __future__ import annotations

import glob
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import paramiko

from holmes_core.errors import HolmesError
from holmes_core.records.regular_file import MIB, read_regular

SYSTEM_FILE = Path("/etc/ssh/ssh_config")
MAX_BYTES = 2 * MIB
MAX_FILES = 256
DEEPEST = 16  # as in OpenSSH's readconf.c
_CRITERIA = {"host", "originalhost", "user", "localuser", "exec"}
_ALONE = {"all", "canonical", "final"}
_LINE = re.compile(r'"?(\w+)"?(?:\s*=\s*|\s+)(.+)')
_COMMANDS = {"proxycommand", "knownhostscommand", "localcommand", "remotecommand"}  # a shell reads the rest of the line
_LISTS = {"userknownhostsfile", "globalknownhostsfile", "revokedhostkeys", "certificatefile"}
_QUOTED = re.compile(r"""["'\\#]""")
_NOT_PLAIN = re.compile(r"""include|match|proxycommand|%|["'\\]|\S[ \t]+#""", re.IGNORECASE)
PERCENT = "\ue000"  # stands for `%` in a ProxyCommand, which paramiko would expand too early


def read_ssh_config(name: str | None, host: str) -> paramiko.SSHConfig:
    """Read the SSH configuration `name`, or the user's and then the system's, for `host`; a missing file is empty.

    In a ProxyCommand `PERCENT` stands for each percent sign.

    Raises:
        HolmesError: A file cannot be read or parsed. It names the file, and the line if there is one.
    """
    user_file = Path(name or "~/.ssh/config").expanduser()
    reader = _ConfigReader(Path("~/.ssh").expanduser(), host)
    lines = list(reader.lines(user_file, "", 0)) if user_file.exists() else []
    if name is None and SYSTEM_FILE.exists():
        lines += ["Host *", *_ConfigReader(SYSTEM_FILE.parent, host).lines(SYSTEM_FILE, "", 0)]
    try:
        return paramiko.SSHConfig.from_text("\n".join(lines))
    except (paramiko.ConfigParseError, ValueError) as error:
        raise not_read(user_file, error) from None


def not_read(file: Path | str, why: object) -> HolmesError:
    """Return the error for a configuration that cannot be used."""
    hint = "correct it, `ssh -G HOST` checks it; or name another by `ssh_config:` in hosts.yaml"
    return HolmesError(f"{file}: not an SSH configuration: {str(why)[:200]}", hint)


def written_out(text: str, words: dict[str, str]) -> str:
    """Expand ssh's `%` words; unknown ones stay as they are."""
    return re.sub("%.", lambda match: words.get(match.group(), match.group()), text)


class _ConfigReader:
    """A reader that merges a file and its includes. An included block applies only where the including block does."""

    def __init__(self, base: Path, host: str) -> None:
        self._base = base
        """The folder of relative paths."""
        self._host = host
        self._count = 0

    def lines(self, file: Path, outer: str, depth: int) -> Iterator[str]:
        """Yield the lines of `file`, which apply where the criteria `outer` of a `Match` are met."""
        self._count += 1
        if depth > DEEPEST or self._count > MAX_FILES:
            raise not_read(file, f"files include one another, more than {DEEPEST} deep or {MAX_FILES} in all")
        text = _text(file)
        if not _NOT_PLAIN.search(text) and not outer:
            yield from text.split("\n")  # the usual file, with hundreds of hosts
            return
        block = outer
        for number, line in enumerate(text.split("\n"), 1):
            match = _LINE.fullmatch(line.strip())
            key = match.group(1).lower() if match else ""
            if not match or key in _COMMANDS:
                yield _proxy_command(match.group(2)) if match and key == "proxycommand" else line
                continue
            words = _words(f"{file}:{number}", match.group(2))
            if key == "include":
                for included in self._included(words):
                    yield from self.lines(included, block, depth + 1)
                    yield _header(block)
            elif key in ("host", "match"):
                hosts = ["originalhost", ",".join(each for each in words if "," not in each) or "!*"]
                block = _joined(outer, hosts if key == "host" else _criteria(f"{file}:{number}", words))
                yield f"Host {shlex.join(words)}" if key == "host" and not outer else _header(block)
            elif key == "hostname":  # `Match host` in paramiko would compare the text itself, `%h.example`
                yield f'HostName "{written_out(words[0], {"%%": "%", "%h": self._host})}"'
            else:
                value = shlex.join(words) if key in _LISTS else f'"{" ".join(words)}"'  # paramiko removes these quotes
                yield f"{key} {value}"

    def _included(self, patterns: Sequence[str]) -> Iterator[Path]:
        for pattern in patterns:
            for path in sorted(glob.glob(str(self._base / Path(pattern).expanduser()))):  # noqa: PTH207  # it may be absolute
                yield Path(path)


def _proxy_command(value: str) -> str:
    """Return the line, with quotes around `none`: paramiko drops a bare one, and a later ProxyJump would count."""
    return 'ProxyCommand "none"' if value.lower() == "none" else f"ProxyCommand {value.replace('%', PERCENT)}"


def _text(file: Path) -> str:
    if file == Path(os.devnull):
        return ""
    try:
        return read_regular(file, MAX_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise not_read(file, getattr(error, "strerror", None) or error) from None


def _words(where: str, value: str) -> list[str]:
    """Split a line's value into words, without its comment, as OpenSSH's argv_split does; there is at least one."""
    if not _QUOTED.search(value):
        return value.split()
    found, word, quote, at, is_inside = list[str](), list[str](), "", 0, False
    while at < len(value) and (is_inside or value[at] != "#"):
        letter, after = value[at], value[at + 1 : at + 2]
        at += 1
        if letter == "\\" and after and after in ("'\"\\" if quote else "'\"\\ "):
            word.append(after)
            is_inside, at = True, at + 1
        elif quote and letter == quote:
            quote = ""
        elif not quote and letter in "'\"":
            quote, is_inside = letter, True
        elif not quote and letter in " \t":
            found += ["".join(word)] if is_inside else []
            word, is_inside = [], False
        else:
            word.append(letter)
            is_inside = True
    found += ["".join(word)] if is_inside else []
    if quote or not found:
        raise not_read(where, f"no closing {quote} there" if quote else "no value there")
    return found


def _criteria(where: str, line: Sequence[str]) -> list[str]:
    """Return the words of a `Match` line without `all`. Unknown ones are refused: paramiko would take them as met."""
    found: list[str] = []
    words = iter(line)
    for word in words:
        keyword = word.lower().removeprefix("!")
        if keyword not in _CRITERIA | _ALONE:
            raise not_read(where, f"`Match {word}` is not understood here")
        if word.lower() != "all":
            found.append(word)
        if keyword in _CRITERIA:
            value = next(words, "")
            if not value:
                raise not_read(where, f"`Match {word}` names nothing")
            found.append(value)
    return found


def _joined(outer: str, criteria: list[str]) -> str:
    """Join criteria that must all be met."""
    return f"{outer} {shlex.join(criteria)}".strip()


def _header(criteria: str) -> str:
    return f"Match {criteria}" if criteria else "Host *"
