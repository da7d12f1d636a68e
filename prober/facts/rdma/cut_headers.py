"""Headers that grep or head removed from the blocks of an RDMA tool, restored if only one reading is possible."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class BlockForm:
    """A tool's headers for a device and for a port below it, and the keys of a port's lines."""

    device_line: str  # a regular expression, like `port_line`
    port_line: str
    device_header: str  # with `{}` for the name
    port_header: str  # with `{}` for the number
    port_keys: frozenset[str]


def with_headers(lines: Iterable[str], form: BlockForm, device: str | None, port: int | None) -> Iterator[str]:
    """Yield the lines with the headers that are missing from all of them.

    The header of a device is known if the command names the device. The headers of ports are known if no line numbers
    a port: there is the one port in the command, or ports come in order from 1, and a repeated key begins the next.
    """
    lines = list(lines)
    unnamed = not any(re.match(form.device_line, line.strip()) for line in lines)
    unnumbered = not any(re.match(form.port_line, line.strip()) for line in lines)
    if unnamed and device is not None:
        yield form.device_header.format(device)
    number, seen = 0, set[str]()
    for line in lines:
        key = line.partition(":")[0].strip()
        if re.match(form.device_line, line.strip()):
            number, seen = 0, set()
        elif unnumbered and key in form.port_keys:
            if number == 0 or key in seen:
                number, seen = number + 1 if number else port or 1, set()
                yield form.port_header.format(number)
            seen.add(key)
        yield line
