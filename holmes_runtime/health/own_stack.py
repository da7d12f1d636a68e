"""The calls that a thread of this rank is in, and the innermost of them that waits for no other rank.

Ranks wait for one another in torch's `distributed` and in this package. Everything else is the user's code or a library
of it, but for the standard library and torch: these work for whoever called them. So a file here that waits needs no
entry anywhere; those packages of ours that never wait for another rank are named, and a test holds them to it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import torch

MAX_CALLS = 20  # of a stack, the innermost
NEVER_WAITING = ("data", "model", "published")  # packages of holmes_runtime
_OURS = Path(__file__).parents[1]
_TORCH = Path(torch.__file__).parent
_WAITING = (f"{_TORCH}/distributed/", f"{_OURS}/")
_STANDARD = f"{Path(os.__file__).parent}/"
_INSTALLED = tuple(f"{_STANDARD}{name}/" for name in ("site-packages", "dist-packages"))


class Call(NamedTuple):
    """A call on a stack: file, line and function."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f'File "{self.file}", line {self.line}, in {self.function}'


def main_calls() -> tuple[Call, ...]:
    """Return the calls that the main thread of this process is in, the innermost first."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return tuple(Call(each.f_code.co_filename, each.f_lineno, each.f_code.co_name) for each in _outwards(frame))


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def working_call(calls: tuple[Call, ...]) -> Call | None:
    """Return the innermost of `calls`, innermost first, if it waits for no other rank; else None.

    Calls in the standard library and torch count as their caller's.
    """
    for call in calls:
        if call.file.startswith(tuple(f"{_OURS}/{name}/" for name in NEVER_WAITING)):
            return call
        if call.file.startswith(_WAITING):
            return None
        if not _works_for_its_caller(call.file):
            return call
    return None


def _works_for_its_caller(file: str) -> bool:
    is_standard = file.startswith(_STANDARD) and not file.startswith(_INSTALLED)
    return is_standard or file.startswith((f"{_TORCH}/", "<"))
