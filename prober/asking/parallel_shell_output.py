"""Output of a parallel shell: whose lines they are, by the label before each or by the headline above a block."""

from __future__ import annotations

import re

from holmes_core.errors import HolmesError
from holmes_core.hosts.host_pattern import expand_pattern

_LABEL = re.compile(r"([A-Za-z0-9_.-]+):(?: |\s*$)")
_HEADLINE = re.compile(r"^-{8,}\n(\S+)(?: \(\d+\))?\n-{8,}\n", re.MULTILINE)
_SAID_ITSELF = ("pdsh@", "clush: ", "srun: ")

Block = tuple[tuple[str, ...], str]
"""Hosts, and what each of them printed."""


def labels(text: str) -> tuple[str, ...]:
    """The hosts whose output it is, each once, in order; none unless all of it says whose it is."""
    return tuple(by_host(text))


def lines_of(text: str, host: str) -> str:
    """Return the output of that host, with its label before each line."""
    own = by_host(text).get(host, "")
    return "".join(f"{host}: {line}" for line in _lines(own))


def by_host(text: str) -> dict[str, str]:
    """Return the output of each host, without labels."""
    found: dict[str, list[str]] = {}
    for hosts, block in _blocks(text):
        for host in hosts:
            found.setdefault(host, []).append(block)
    return {host: "".join(blocks) for host, blocks in found.items()}


def without_labels(text: str) -> str:
    """Return the output of one host without labels, or nothing for several hosts, which must not mix."""
    found = by_host(text)
    if not found:
        return text
    return "" if len(found) > 1 else next(iter(found.values()))


def _blocks(text: str) -> list[Block]:
    """Lines by their labels (pdsh, clush, srun -l), or blocks by their headlines (dshbak, clush -b)."""
    text = "".join(line for line in _lines(text) if not line.startswith(_SAID_ITSELF))
    before, *parts = _HEADLINE.split(text)
    if parts and not before.strip():
        return [(_hosts(names), block) for names, block in zip(parts[::2], parts[1::2], strict=True)]
    lines = [line for line in _lines(text) if line.strip()]
    matches = [_LABEL.match(line) for line in lines]
    known = [((match.group(1),), line[match.end() :]) for match, line in zip(matches, lines, strict=True) if match]
    return list(known) if len(known) == len(lines) else []


def _lines(text: str) -> list[str]:
    """The lines with their ends, as a parallel shell cuts them: at nothing but newlines."""
    return re.findall(r".*\n|.+", text)


def _hosts(names: str) -> tuple[str, ...]:
    """`n1`, `n3`, `n4` of dshbak's `n[1,3-4]`."""
    try:
        return tuple(expand_pattern(names))
    except HolmesError:
        return (names,)
