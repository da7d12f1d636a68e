"""A notice, given once, that another program is called `holmes` too, with the command that starts each of the two."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from holmes_cli.app import COMPLETES
from holmes_core.state_folder import state_folder

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

MAX_READ_CHARS = 1 << 20
"""The part of a script or module that is read; console scripts of pip and uv have 300."""


def mention_other_command() -> None:
    """Print the notice to standard error, unless this environment and PATH were examined before."""
    # Metadata of other packages may be broken in any way, and none of them may keep a command from running.
    with contextlib.suppress(Exception):
        if not any(name in os.environ for name in COMPLETES):
            _look_once()


def _look_once() -> None:
    """Look where packages or PATH have changed since the last look; the marker also holds the notices given."""
    first = shutil.which("holmes")
    folders = [Path(name) for name in sys.path if name.endswith("-packages")]
    seen = f"{first} {[folder.stat().st_mtime_ns for folder in folders if folder.is_dir()]}"
    marker = state_folder() / f"looked-{zlib.crc32(sys.prefix.encode()):08x}"
    looked, _, given = marker.read_text("utf-8").partition("\n") if marker.exists() else ("", "", "")
    if looked != seen:
        from holmes_cli.screen.terminal import print_err
        from holmes_core.records.record_file import write_atomically

        notice = _notice(first)
        if notice not in given:
            print_err(notice)
            given = f"{notice}\n{given}"[:MAX_READ_CHARS]
        marker.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(marker, f"{seen}\n{given}", private=True)


def _notice(first: str | None) -> str:
    """Return the notice, empty if nothing else is called `holmes`; `first` is the one that PATH leads to."""
    from importlib.metadata import entry_points

    others = [
        f"the package {point.dist.name} {point.dist.version} in this environment has a command `holmes` too; "
        f"`{_start_of(point)}` starts that one"
        for point in entry_points(group="console_scripts", name="holmes")
        if point.dist is not None and not point.value.startswith("holmes_train.")
    ]
    if not others and first is not None and not _may_be_ours(Path(first)):
        others = [f"another `holmes` comes first on PATH; `{shlex.quote(first)}` starts that one"]
    if not others:
        return ""
    ours = "holmes-train" if shutil.which("holmes-train") else f"{shlex.quote(sys.executable)} -m holmes_train"
    return "\n".join([*(f"note: {other}" for other in others), f"hint: `{ours}` starts Holmes, which trains models"])


def _may_be_ours(script: Path) -> bool:
    """Return True for a script of this package, in whatever environment, and for a version manager's shim."""
    return "shims" in script.parts or "holmes_train" in _text(script)


def _start_of(point: EntryPoint) -> str:
    """Return the command that starts the program of an entry point, whichever package's script was installed last."""
    python, module = shlex.quote(sys.executable), point.module
    assert point.dist is not None
    if re.search(r"^if __name__ ==", _text(Path(str(point.dist.locate_file(f"{module.replace('.', '/')}.py")))), re.M):
        return f"{python} -m {module.removesuffix('.__main__')}"
    program = f"import sys; from {module} import {point.attr.split('.')[0]}; sys.exit({point.attr}())"
    return f"{python} -c {shlex.quote(program)}"


def _text(file: Path) -> str:
    """Return how a file begins, empty where it is missing."""
    if not file.is_file():
        return ""
    with open(file, encoding="utf-8", errors="replace") as opened:
        return opened.read(MAX_READ_CHARS)
