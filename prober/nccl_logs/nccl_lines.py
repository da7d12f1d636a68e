"""Messages of NCCL in any log, by file and line, without the prefixes of launchers and terminals.

A log is read line by line and long lines are cut, so memory does not grow with the log. NCCL writes
`HOST:PID:THREAD [GPU] FILE:LINE NCCL LEVEL message`. INFO has no file, and 2.28 and later write a time first. Torchrun,
Ray, mpirun, kubectl and log services add their own prefixes, and one line may hold two messages.
Source: NCCL 2.14 to 2.30, src/debug.cc.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import BinaryIO, NamedTuple

MAX_LINE_BYTES = 8_192
MAX_MESSAGE = 1_024  # characters read of a message
MAX_SHOWN = 300  # characters of a line kept as evidence
MAX_MESSAGES = 1_000_000  # of a log; after that only warnings are read, up to as many again
_MAX_MESSAGES_OF_LINE = 8
_SKIPPED_BYTES = 1 << 20
_PREFIX_CHARACTERS = 400

_LEVEL = re.compile(r"NCCL (INFO|WARN|ABORT|VERSION) ?")
_PREFIX = re.compile(
    r"(?:(?<![\w.<>-])(?P<host>[\w.<>-]{0,253}):(?P<pid>\w{1,20})(?::\w{1,20})? ?)?(?:\[(?P<gpu>\d{1,3}|-1)\] )?"
    r"(?:(?<![\w./+-])(?P<source>[\w./+-]{1,120}:\d{1,6}) (?:\(\w{1,80}\) )?)?$"
)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.,]{5,20}(?:Z|[+-]\d\d:?\d\d)?")  # log services may put it right before HOST
_CONTROLS = re.compile(
    r"\x1b(?:\[[0-9;?]{0,32}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)?|[@-Z\\-_])"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
_CALLS = b": opCount "  # of NCCL_DEBUG_SUBSYS=COLL: most of a long log, without facts about the network
_ANNOUNCES = b"Last error"  # of PyTorch's exceptions: the next line is NCCL's message without its prefix


class Evidence(NamedTuple):
    """A line that shows a fact: its file, its number from 1, and its text beginning with NCCL's prefix."""

    file: str
    line: int
    text: str


@dataclass(frozen=True)
class NcclMessage:
    """One message of NCCL. `host`, `pid` and `source` are empty if the line does not have them."""

    host: str
    pid: str
    source: str
    warns: bool
    text: str
    evidence: Evidence
    prefixed: bool
    gpu: int = -1

    def from_match(self, match: re.Match[str]) -> NcclMessage:
        """Return the message. Without NCCL's prefix, its evidence is cut to the part that matched."""
        if self.prefixed:
            return self
        shown = self.text[match.start() : min(match.end() + 80, match.start() + MAX_SHOWN)]
        return replace(self, evidence=self.evidence._replace(text=shown))


@dataclass
class LogSize:
    """Counts of a log. Lines longer than the limit are `cut`, and lines beyond the limit are `skipped`."""

    lines: int = 0
    messages: int = 0
    cut: int = 0
    skipped: int = 0


def nccl_messages(log: BinaryIO, name: str, size: LogSize) -> Iterator[NcclMessage]:
    """Yield the messages of NCCL in a log, and count its lines in `size`."""
    announced = False
    while raw := log.readline(MAX_LINE_BYTES):
        size.lines += 1
        if len(raw) == MAX_LINE_BYTES and not raw.endswith(b"\n"):
            size.cut += 1
            while (rest := log.readline(_SKIPPED_BYTES)) and not rest.endswith(b"\n"):
                pass
        mentioned = b"NCCL" in raw or b"nccl" in raw or b"SHARP" in raw or b"sharp_" in raw or b"SAT tree" in raw
        mentioned = mentioned or b"FI_EFA_" in raw or b"FI_PROVIDER" in raw
        if mentioned and size.messages >= MAX_MESSAGES * (1 + (b"NCCL WARN" in raw)):
            size.skipped += 1
        elif (announced or mentioned) and _CALLS not in raw:
            for message in _messages(raw, name, size.lines):
                size.messages += message.prefixed or "NCCL" in message.text or "nccl" in message.text
                yield message
        announced = _ANNOUNCES in raw


def _messages(raw: bytes, name: str, number: int) -> Iterator[NcclMessage]:
    text = raw.decode("utf-8", errors="replace").rstrip("\r\n")
    if not text.isprintable():
        text = _CONTROLS.sub(" ", text)
    text = _TIME.sub(" ", text)
    levels = list(itertools.islice(_LEVEL.finditer(text), _MAX_MESSAGES_OF_LINE))
    starts, prefixes, after = [], [], 0
    for level in levels:
        begin = max(after, level.start() - _PREFIX_CHARACTERS)
        prefix = _PREFIX.search(text[begin : level.start()])
        starts.append(begin + prefix.start() if prefix else level.start())
        prefixes.append(prefix)
        after = level.end()
    if not levels:
        shown = text.strip()[:MAX_MESSAGE]
        yield NcclMessage("", "", "", False, shown, Evidence(name, number, shown[:MAX_SHOWN]), prefixed=False)
        return
    for level, start, end, prefix in zip(levels, starts, [*starts[1:], len(text)], prefixes, strict=True):
        end = text.find("\\n", level.end(), end) if "\\n" in text[level.end() : end] else end  # inside a JSON record
        shown = text[start:end].strip(" |\t")
        yield NcclMessage(
            host=(prefix["host"] or "") if prefix else "",
            pid=(prefix["pid"] or "") if prefix else "",
            source=(prefix["source"] or "") if prefix else "",
            warns=level[1] in ("WARN", "ABORT"),
            text=text[level.end() : min(end, level.end() + MAX_MESSAGE)].strip(" |\t"),
            evidence=Evidence(name, number, shown[:MAX_SHOWN]),
            prefixed=True,
            gpu=int(prefix["gpu"] or -1) if prefix else -1,
        )
