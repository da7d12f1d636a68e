"""The call stack of this rank's main thread, and the call in it that works without waiting for another rank.

Ranks wait for one another in torch's `distributed` package and in holmes_runtime, except for the packages listed in
NEVER_WAITING, which a test checks. Calls in the rest of torch and in the standard library count as work of their
caller. All other files are the user's code or its libraries.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import NamedTuple

import torch

MAX_CALLS = 20  # innermost calls of a stack that are reported
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
    """Return the call stack of this process's main thread, innermost call first."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    calls = []
    while frame is not None:
        calls.append(Call(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return tuple(calls)


def working_call(calls: tuple[Call, ...]) -> Call | None:
    """Return the innermost of `calls` that works by itself; None if one inside it waits for another rank.

    `calls` are sorted innermost first. Calls in the standard library and torch count as work of their caller.
    """
    for call in calls:
        if call.file.startswith(tuple(f"{_OURS}/{name}/" for name in NEVER_WAITING)):
            return call
        if call.file.startswith(_WAITING):
            return None
        is_standard = call.file.startswith(_STANDARD) and not call.file.startswith(_INSTALLED)
        if not is_standard and not call.file.startswith((f"{_TORCH}/", "<")):
            return call
    return None
