"""Host patterns in the grammar of Slurm's node lists and of pdsh: `node[01-16]`, `rack[1-2]-n[1,3,5-7],login1`."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NoReturn

from holmes_core.errors import HolmesError

NAME_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$"
NAME_LENGTH = 253  # a DNS name's, RFC 1035
MAX_HOSTS = 100_000

_PIECE = re.compile(r"(?P<text>[A-Za-z0-9._-]+)|\[(?P<numbers>[^\[\]]*)\]|(?P<comma> *, *)")
_RANGE = re.compile(r"([0-9]{1,15})(?:-([0-9]{1,15}))?")


@dataclass(frozen=True)
class _Numbers:
    """The numbers `low` to `high`, padded with zeros to `width` digits."""

    low: int
    high: int
    width: int

    @property
    def count(self) -> int:
        """The length of the range."""
        return self.high - self.low + 1

    def __iter__(self) -> Iterator[str]:
        return (str(number).zfill(self.width) for number in range(self.low, self.high + 1))


_Piece = str | tuple[_Numbers, ...]


def is_pattern(text: str) -> bool:
    """Return True if `text` is more than one plain name."""
    return "[" in text or "]" in text or "," in text


def expand_pattern(text: str) -> tuple[str, ...]:
    """Return the host names that `text` stands for, in its order, numbers as wide as they are written.

    Raises:
        HolmesError: `text` is malformed, names a host twice, makes an impossible name, or stands for more than 100,000
        hosts. It names text and column.
    """
    hosts = _parse(text)
    count = sum(math.prod(_count(piece) for piece in pieces) for pieces in hosts)
    if count > MAX_HOSTS:
        _refuse(text, None, f"{count} hosts, more than {MAX_HOSTS}", "write a smaller range")
    names = [name for pieces in hosts for name in _names(pieces)]
    seen: set[str] = set()
    for name in names:
        if len(name) > NAME_LENGTH or not re.fullmatch(NAME_PATTERN, name):
            _refuse(text, None, f"{name!r} is not a valid host name", "a name begins and ends with a letter or digit")
        if name in seen:
            _refuse(text, None, f"{name} is listed twice", "take one of them out")
        seen.add(name)
    return tuple(names)


def _parse(text: str) -> list[list[_Piece]]:
    """Return each host of the list as its pieces: plain text, or the numbers of a bracket."""
    hosts: list[list[_Piece]] = [[]]
    position, end = len(text) - len(text.lstrip(" ")), len(text.rstrip(" "))
    while position < end:
        piece = _PIECE.match(text, position, end)
        if piece is None:
            _refuse_character(text, position)
        if piece["comma"] is not None:
            if not hosts[-1]:
                _refuse(text, position, "a host name is missing before the comma", "take the comma out")
            hosts.append([])
        elif piece["text"] is not None:
            hosts[-1].append(piece["text"])
        else:
            hosts[-1].append(tuple(_numbers(text, piece.start("numbers"), piece["numbers"])))
        position = piece.end()
    if not hosts[-1]:
        _refuse(text, end, "a host name is missing at the end", "write one")
    return hosts


def _numbers(text: str, position: int, inside: str) -> Iterator[_Numbers]:
    """Yield the ranges between two brackets, which start at `position` in `text`."""
    for part in inside.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            _refuse(text, position, f"{part!r} is neither a number nor a range", "write numbers as in `node[01-04,7]`")
        low, high = match[1], match[2] or match[1]
        if int(low) > int(high):
            _refuse(text, position, f"{part} runs backwards", f"write {high}-{low}")
        if high.startswith("0") and len(high) != len(low):
            _refuse(text, position, f"{part} pads its ends differently", "write both ends with as many digits")
        yield _Numbers(int(low), int(high), len(low))
        position += len(part) + 1


def _count(piece: _Piece) -> int:
    return 1 if isinstance(piece, str) else sum(numbers.count for numbers in piece)


def _names(pieces: Iterable[_Piece]) -> Iterator[str]:
    choices = [[piece] if isinstance(piece, str) else itertools.chain(*piece) for piece in pieces]
    return ("".join(chosen) for chosen in itertools.product(*choices))


def _refuse_character(text: str, position: int) -> NoReturn:
    character = text[position]
    if character in "*?!":
        hint = "wildcards name no hosts by themselves; write them as `node[01-16]`"
        _refuse(text, position, f"{character!r} matches names, it does not make them", hint)
    if character in "[]":
        _refuse(text, position, f"{character!r} has no partner", "write brackets in pairs, none inside another")
    _refuse(text, position, f"{character!r} cannot stand in a host name", "use letters, digits, `.`, `_` and `-`")


def _refuse(text: str, position: int | None, problem: str, hint: str) -> NoReturn:
    shown = repr(text) if len(text) <= 80 else repr(text[:77] + "...")
    where = "" if position is None else f"column {position + 1}: "
    raise HolmesError(f"host pattern {shown}: {where}{problem}", hint)
