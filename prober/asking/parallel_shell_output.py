"""Output of a parallel shell, split by host: by the label before each line or the headline above each block."""

from __future__ import annotations

import re

from holmes_core.errors import HolmesError
from holmes_core.hosts.host_pattern import expand_pattern

_LABEL = re.compile(r"([A-Za-z0-9_.-]+):(?: |\s*$)")
_HEADLINE = re.compile(r"^-{8,}\n(\S+)(?: \(\d+\))?\n-{8,}\n", re.MULTILINE)
_OWN_MESSAGES = ("pdsh@", "clush: ", "srun: ")

Block = tuple[tuple[str, ...], str]
"""Hosts and the output that each of them printed."""


def labels(text: str) -> tuple[str, ...]:
    """Return the hosts of the output in order, or none if a line has no label."""
    return tuple(by_host(text))


def lines_of(text: str, host: str) -> str:
    """Return the output of one host, with its label before each line."""
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
    """Return the output of one host without labels. Return nothing for several hosts, which must not be mixed."""
    found = by_host(text)
    if not found:
        return text
    return "" if len(found) > 1 else next(iter(found.values()))


def _blocks(text: str) -> list[Block]:
    """Return lines by their labels (pdsh, clush, srun -l), or blocks by their headlines (dshbak, clush -b)."""
    text = "".join(line for line in _lines(text) if not line.startswith(_OWN_MESSAGES))
    before, *parts = _HEADLINE.split(text)
    if parts and not before.strip():
        return [(_hosts(names), block) for names, block in zip(parts[::2], parts[1::2], strict=True)]
    lines = [line for line in _lines(text) if line.strip()]
    matches = [_LABEL.match(line) for line in lines]
    known = [((match.group(1),), line[match.end() :]) for match, line in zip(matches, lines, strict=True) if match]
    return list(known) if len(known) == len(lines) else []


def _lines(text: str) -> list[str]:
    """Return the lines with their ends. Like a parallel shell, split at newlines only."""
    return re.findall(r".*\n|.+", text)


def _hosts(names: str) -> tuple[str, ...]:
    """Return `n1`, `n3`, `n4` for dshbak's `n[1,3-4]`."""
    try:
        return tuple(expand_pattern(names))
    except HolmesError:
        return (names,)
