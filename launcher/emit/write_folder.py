"""Write files into a folder of their own that appears whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

from holmes_core.errors import HolmesError
from launcher.prepare.bundle import as_bytes


def write_folder(folder: Path, files: Mapping[str, str]) -> None:
    """Write `files`, by relative name, to `folder`, private to this user. Scripts are made executable.

    Raises HolmesError if the folder is not empty or cannot be written.
    """
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise HolmesError(f"{folder}: already exists", "remove it, or choose another folder with `-o`")
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    try:
        temporary.mkdir(mode=0o700)
        for name, text in files.items():
            _write(temporary / name, text)
        temporary.replace(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            shutil.rmtree(temporary)
        raise HolmesError(
            f"{folder}: cannot be written: {error.strerror or error}", "choose a folder in one that is writable"
        ) from error


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    mode = 0o700 if text.startswith("#!") else 0o600
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(descriptor, "wb") as file:
        file.write(as_bytes(text))
