"""Tables at most as wide as the terminal, wrapped between words: the widest columns shrink first."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

BORDER = 1  # columns left of all cells, and right of each, with a space on both of its sides
PADDING = 2


def fitted_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    width: int,
    title: str | None = None,
    unwrapped: Collection[str] = (),
) -> Table:
    """Return the table of `rows`, at most `width` characters wide; cells are plain text.

    Columns under headings in `unwrapped` shrink last.
    """
    cells = [tuple(row) for row in rows]
    room = width - BORDER - (PADDING + BORDER) * len(headings)
    whole = [index for index, heading in enumerate(headings) if heading in unwrapped]
    table = Table(title=title, title_justify="left")
    for heading, size in zip(headings, column_widths((tuple(headings), *cells), room, whole), strict=True):
        table.add_column(heading, width=size, overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))
    return table


def column_widths(rows: Sequence[Sequence[str]], room: int, whole: Collection[int] = ()) -> list[int]:
    """Return the characters of each column, together at most `room`.

    The widest shrinks first, and none below its longest word until all have come down to theirs. Cells of columns in
    `whole` count as words.
    """
    columns = list(zip(*rows, strict=True))
    widths = [max(max(map(cell_len, cell.split("\n"))) for cell in column) for column in columns]
    words = [max((cell_len(word) for cell in column for word in cell.split()), default=1) for column in columns]
    words = [widths[index] if index in whole else word for index, word in enumerate(words)]
    excess = sum(widths) - room
    while excess > 0:
        loose = [index for index, width in enumerate(widths) if width > words[index]] or range(len(widths))
        widest = max(loose, key=widths.__getitem__)
        if widths[widest] == 1:
            break
        widths[widest] -= 1
        excess -= 1
    return widths
