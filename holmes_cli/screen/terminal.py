"""Two consoles: results go to standard output, progress and errors to standard error.

Text from ranks, hosts and files never commands the terminal: control characters are written out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from holmes_core.errors import HolmesError

WIDTH_WITHOUT_TERMINAL = 120


# All control characters but tab and newline, those that change the direction of text, and invisible ones
# (Unicode 16, Default_Ignorable_Code_Point, but for variation selectors).
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]+"
)


class _Written(dict[int, str]):
    """The written form of each control character, cached: a log may hold millions."""

    def __missing__(self, code: int) -> str:
        return self.setdefault(code, f"\\x{code:02x}")


_WRITTEN = _Written()


def neutral(text: str) -> str:
    """Return the text with control characters written out, `\\x1b`: a terminal shows them and does nothing."""
    return _CONTROLS.sub(lambda found: found[0].translate(_WRITTEN), text)


class NeutralConsole(Console):
    """A console on which only Rich itself moves the cursor, sets colours and titles."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments, with the text of every part made neutral."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=neutral(segment.text))


def _console(to_stderr: bool) -> Console:
    """Return a console that keeps its columns in a pipe or a log, where Rich would take 80 unless COLUMNS is set."""
    console = NeutralConsole(stderr=to_stderr, highlight=False, emoji=False)  # `cluster:b:` is no picture
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH_WITHOUT_TERMINAL
    return console


out = _console(to_stderr=False)
err = _console(to_stderr=True)


def print_out(text: str) -> None:
    """Print a line of any length to standard output as it is."""
    out.print(text, markup=False, soft_wrap=True)


def print_err(text: str) -> None:
    """Print a line of any length to standard error as it is."""
    err.print(text, markup=False, soft_wrap=True)


def show_error(error: HolmesError) -> None:
    """Print the error, then the hint."""
    err.print("[bold red]error:[/] ", end="")
    print_err(error.what)
    err.print("[bold]hint:[/] ", end="")
    print_err(error.hint)
