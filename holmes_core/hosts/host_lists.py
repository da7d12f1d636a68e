"""Host lists other than hosts.yaml: MPI and DeepSpeed hostfiles, Slurm node lists, one name a line.

The names and the user of a line `user@node[01-16] slots=8 max_slots=8  # comment` are kept. Process counts are checked
and ignored: the probe counts the GPUs itself. `host:8` is a process count too, as MPICH's Hydra reads it.
Grammar: Open MPI 5 `mpirun` manual on hostfiles; MPICH "Using the Hydra Process Manager"; DeepSpeed "Resource
Configuration"; Slurm `scontrol show hostnames`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from holmes_core.errors import HolmesError
from holmes_core.hosts.host_pattern import MAX_HOSTS, expand_pattern
from holmes_core.hosts.hosts_file import HostEntry
from holmes_core.records.plain_data import read_text
from holmes_core.records.regular_file import MIB

MAX_SLOTS = 1024
MAX_BYTES = 4 * MIB
_COUNT_KEYS = ("slots", "max_slots", "max-slots", "cpus", "cpu", "count")
_USER_KEYS = ("user", "username", "user_name", "user-name")
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9._-]*")


def read_host_list(path: Path) -> tuple[HostEntry, ...]:
    """Return the hosts of a hostfile or node list, in its order.

    Raises:
        HolmesError: A line is malformed or a host is listed twice. It names file and line.
    """
    first_lines: dict[str, int] = {}
    entries: list[HostEntry] = []
    for number, line in _lines(path):
        for entry in _entries(line, f"{path}: line {number}"):
            if entry.name in first_lines:
                seen = f"host {entry.name} is in line {first_lines[entry.name]} already"
                _refuse(f"{path}: line {number}", seen, "one line a host; `sort -u` keeps one of each")
            first_lines[entry.name] = number
            entries.append(entry)
        if len(entries) > MAX_HOSTS:
            _refuse(f"{path}: line {number}", f"more than {MAX_HOSTS} hosts", "split the list")
    if not entries:
        raise HolmesError(f"{path}: lists no host", "write one host a line, or a pattern such as `node[01-16]`")
    return tuple(entries)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line numbers from 1, and the text of each line before any comment; skip empty lines."""
    text = read_text(path, MAX_BYTES)
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        content = line.partition("#")[0].strip()
        if content:
            yield number, content


def _entries(line: str, where: str) -> Iterator[HostEntry]:
    """Yield the hosts of one line."""
    hosts, *settings = re.sub(r" *, *", ",", line).split()
    named_user, pattern = _user_and_pattern(hosts, where)
    set_user = _settings(settings, where)
    if named_user and set_user and named_user != set_user:
        _refuse(where, f"two users, {named_user} and {set_user}", "name one")
    try:
        names = expand_pattern(pattern)
    except HolmesError as error:
        raise HolmesError(f"{where}: {error.what}", error.hint) from None
    for name in names:
        yield HostEntry(name=name, user=named_user or set_user)


def _user_and_pattern(hosts: str, where: str) -> tuple[str | None, str]:
    """Split `user@pattern:8` into user and pattern, and check the count after the colon."""
    user, at, rest = hosts.rpartition("@")
    if at:
        _check_user(user, where)
    pattern, colon, count = rest.partition(":")
    if colon:
        hint = "a number behind the colon counts processes, as in MPICH; ports belong in hosts.yaml or ~/.ssh/config"
        _check_count(count, f":{count}", where, hint)
    return user or None, pattern


def _settings(settings: list[str], where: str) -> str | None:
    """Return the user among `key=value` words, and check the counts."""
    user = None
    for word in settings:
        key, equals, value = word.partition("=")
        if equals and key in _COUNT_KEYS:
            _check_count(value, word, where, f"write {key}=1 or more, or take the line out")
        elif equals and key in _USER_KEYS:
            _check_user(value, where)
            user = value
        else:
            near = difflib.get_close_matches(key, (*_COUNT_KEYS, *_USER_KEYS), n=1)
            known = f"did you mean `{near[0]}=`?" if near else "known here: slots=, max_slots=, user=; one host a line"
            _refuse(where, f"{word!r} is not understood", known)
    return user


def _check_count(value: str, shown: str, where: str, hint: str) -> None:
    if not re.fullmatch(r"[0-9]{1,4}", value) or not 1 <= int(value) <= MAX_SLOTS:
        _refuse(where, f"{shown} is not a number of processes from 1 to {MAX_SLOTS}", hint)


def _check_user(user: str, where: str) -> None:
    if not _USER.fullmatch(user):
        _refuse(where, f"{user!r} is not a valid user name", "use letters, digits, `.`, `_` and `-`")


def _refuse(where: str, problem: str, hint: str) -> NoReturn:
    raise HolmesError(f"{where}: {problem}", hint)
