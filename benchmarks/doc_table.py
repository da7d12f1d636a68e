"""Measured tables in the docs: what a benchmark writes between two marks of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def write_table(file: str, mark: str, lines: Sequence[str]) -> None:
    """Replaces what docs/`file` has between `<!-- MARK begins -->` and `<!-- MARK ends -->` by `lines`.

    Raises ValueError if a mark is missing.
    """
    path = DOCS / file
    begin, end = f"<!-- {mark} begins -->", f"<!-- {mark} ends -->"
    before, _, rest = path.read_text(encoding="utf-8").partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"{path} lacks {begin} or {end}")
    path.write_text("\n".join((before + begin, *lines, end)) + after, encoding="utf-8")
