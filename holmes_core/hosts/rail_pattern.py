"""Patterns that name RDMA ports in `rails:` of hosts.yaml: `mlx5_0`, `mlx5_0:1`, `mlx5_[0-7]`, `mlx5_*`.

`*` and `?` are the shell's. Brackets hold numbers and ranges, as in host patterns: `mlx5_[0-3,8-11]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

MAX_NUMBERS = 1000  # in one bracket; no machine has as many devices

_PIECE = re.compile(r"(?P<text>[A-Za-z0-9._-]+)|(?P<wild>[*?])|\[(?P<numbers>[^\[\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")
_PORT = re.compile(r"[0-9]{1,3}")


def checked_rail_pattern(text: str) -> str:
    """Return `text` if it is a pattern.

    Raises:
        ValueError: It is malformed. The message names the wrong part.
    """
    _compiled(text)
    return text


def names_port(pattern: str, device: str, port: int) -> bool:
    """Return True if the pattern names that port. Without `:port` it names every port of its devices."""
    device_pattern, _, number = pattern.partition(":")
    return bool(_compiled(device_pattern).fullmatch(device)) and (not number or int(number) == port)


def named_by(patterns: Iterable[str], device: str, port: int) -> bool:
    """Return True if one of the patterns names that port."""
    return any(names_port(pattern, device, port) for pattern in patterns)


def _compiled(text: str) -> re.Pattern[str]:
    device, colon, port = text.partition(":")
    if colon and not _PORT.fullmatch(port):
        raise ValueError(f"{text!r}: {port!r} is not a port number; write `mlx5_0:1`, or the device alone")
    parts, position = [], 0
    while position < len(device):
        piece = _PIECE.match(device, position)
        if piece is None:
            raise ValueError(
                f"{text!r}: column {position + 1}: {device[position]!r} cannot stand here; "
                "write device names such as `mlx5_0`, `mlx5_[0-7]` or `mlx5_*`"
            )
        if piece["text"] is not None:
            parts.append(re.escape(piece["text"]))
        elif piece["wild"] is not None:
            parts.append(".*" if piece["wild"] == "*" else ".")
        else:
            parts.append(f"(?:{'|'.join(_numbers(text, piece['numbers']))})")
        position = piece.end()
    if not parts:
        raise ValueError(f"{text!r} names no device; write `mlx5_0`, `mlx5_[0-7]` or `mlx5_*`")
    return re.compile("".join(parts))


def _numbers(text: str, inside: str) -> Iterable[str]:
    """Return the numbers between two brackets, as wide as they are written."""
    found: list[str] = []
    for part in inside.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"{text!r}: {part!r} is neither a number nor a range; write `mlx5_[0-3,8]`")
        low, high = match[1], match[2] or match[1]
        if int(low) > int(high):
            raise ValueError(f"{text!r}: {part} runs backwards; write {high}-{low}")
        if int(high) - int(low) >= MAX_NUMBERS:
            raise ValueError(f"{text!r}: {part} is more than {MAX_NUMBERS} numbers; write a smaller range")
        found += [str(number).zfill(len(low)) for number in range(int(low), int(high) + 1)]
    return found
