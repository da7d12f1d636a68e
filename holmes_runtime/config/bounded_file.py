"""Read a file from outside: a regular file of bounded size, with JSON of bounded depth. Free of torch.

Links are followed and their targets checked: downloaded models often store each file once and link to it.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

MAX_LEVELS = 60  # nested lists and objects
MAX_VALUES = 4_000_000  # in one file: each takes about 100 bytes once parsed
_TOO_DEEP = f"nested more than {MAX_LEVELS} levels deep"


def open_bounded(path: Path, max_bytes: int | None = None) -> BinaryIO:
    """Open a regular file of at most `max_bytes`, if given. A pipe does not block.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is a pipe, a socket or a device, or it is too large; the message names the file.
    """
    _check_status(path, path.stat(), max_bytes)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        _check_status(path, os.fstat(descriptor), max_bytes)
    except ValueError:
        os.close(descriptor)
        raise
    return open(descriptor, "rb")


def read_json_object(path: Path, max_bytes: int) -> dict[str, Any]:
    """Return the JSON object in the file `path`.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file cannot be read or holds something else; the message names the file.
    """
    try:
        with open_bounded(path, max_bytes) as file:
            text = file.read(max_bytes + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
    if len(text) > max_bytes:
        raise ValueError(f"{path} has more than {max_bytes} bytes")
    return json_object(path, text)


def json_object(path: Path, text: bytes, keys_once: bool = False) -> dict[str, Any]:
    """Return the JSON object in `text`, the content of `path`. `keys_once` refuses repeated keys.

    Raises:
        ValueError: It is not a JSON object, or it is too large or too deep; the message names the file.
    """
    if sum(map(text.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise ValueError(f"{path} holds more than {MAX_VALUES} values")
    try:
        data = json.loads(text, object_pairs_hook=_once if keys_once else None)
    except RecursionError:
        raise ValueError(f"{path}: {_TOO_DEEP}") from None
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not _is_shallow(data):
        raise ValueError(f"{path}: {_TOO_DEEP}")
    if not isinstance(data, dict):
        raise ValueError(f"{path}: holds {type(data).__name__}, not keys and values")
    return data


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _is_shallow(data: object) -> bool:
    """Return True if parsed JSON has at most MAX_LEVELS levels. Even printing deeper data may fail."""
    level = [data]
    for _ in range(MAX_LEVELS + 1):
        level = [
            inner
            for value in level
            if isinstance(value, dict | list)
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return True
    return False


def _check_status(path: Path, status: os.stat_result, max_bytes: int | None) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise ValueError(f"{path} is a folder, not a file")
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(f"{path} is a pipe, socket or device, not a file")
    if max_bytes is not None and status.st_size > max_bytes:
        raise ValueError(f"{path} has {status.st_size} bytes; at most {max_bytes} are read")
