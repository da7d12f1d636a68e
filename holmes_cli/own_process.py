"""Start Holmes as another process with the same code and Python, whatever its working folder holds."""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

_PACKAGE = __name__.rpartition(".")[0]  # inside holmes_train where it is installed
_START = (
    f"import sys; sys.path[:] = [*filter(None, sys.path), sys.argv.pop(1)]; from {_PACKAGE}.app import main; main()"
)
"""Like `python -m holmes_cli`, but without the working folder on the path, where other modules could have our names.
Python's own option for that, -P, needs 3.11."""


def holmes_words(*arguments: str) -> list[str]:
    """Return the command line of `holmes ARGUMENTS`."""
    top = files(_PACKAGE.split(".")[0])
    return [sys.executable, "-c", _START, str(Path(str(top)).parent), *arguments]
