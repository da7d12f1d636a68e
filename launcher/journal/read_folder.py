"""Reading a run folder, whoever wrote it. HolmesError is the only exception raised."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from holmes_core.errors import WRONG_USAGE, HolmesError
from holmes_core.records.regular_file import is_there, open_regular

HINT = "give a folder that `holmes launch` wrote"
SHOWN_CHARACTERS = 200  # of the reason


@contextlib.contextmanager
def reading(path: Path, hint: str = HINT, exit_code: int = WRONG_USAGE) -> Iterator[None]:
    """Turn any failure to read `path` into a HolmesError that names it."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)[:SHOWN_CHARACTERS]
        raise HolmesError(f"{path}: cannot be read: {why}", hint, exit_code) from None
    except RecursionError:
        raise HolmesError(f"{path}: cannot be read: nested too deeply", hint, exit_code) from None
    except (ValueError, TypeError, LookupError, ArithmeticError, EOFError, zlib.error) as error:
        why = f"{type(error).__name__}: {error}" if isinstance(error, LookupError) else str(error)
        raise HolmesError(f"{path}: cannot be read: {why[:SHOWN_CHARACTERS]}", hint, exit_code) from None


def open_in(folder: Path, path: Path, max_bytes: int) -> BinaryIO:
    """Open a regular file inside a run's folder.

    Raises:
        HolmesError: it is not a regular file, is larger than `max_bytes`, or cannot be read.
    """
    with reading(path):
        return open_regular(path, max_bytes, inside=folder)


def read_in(folder: Path, path: Path, max_bytes: int) -> bytes | None:
    """Return the bytes of a file in a run's folder, None if it is absent.

    Raises:
        HolmesError: as for `open_in`.
    """
    if not is_there(path):
        return None
    with open_in(folder, path, max_bytes) as file, reading(path):
        return file.read(max_bytes)
