"""The table of docs/settings.md, written from the settings that plans are made with: `python -m tests.doc_settings`."""

from __future__ import annotations

from pathlib import Path

from holmes_core.node_settings import BY_PLAN, CONSTANT, FOR_TRAINERS, Setting

PAGE = Path(__file__).parent.parent / "docs" / "settings.md"
BEGIN, END = "<!-- settings begin -->\n", "<!-- settings end -->\n"


def table() -> str:
    """The rows, those of every plan on GPUs last."""
    lines = ["| variable | value | when | why | source | yours counts |", "|---|---|---|---|---|---|"]
    return "\n".join([*lines, *map(_row, (*BY_PLAN, *FOR_TRAINERS, *CONSTANT))]) + "\n"


def _row(setting: Setting) -> str:
    value = f"`{setting.value}`" if setting in (*FOR_TRAINERS, *CONSTANT) else setting.value
    words = (f"`{setting.name}`", value, setting.when, setting.reason, setting.source, "no" if setting.fixed else "yes")
    return f"| {' | '.join(words)} |"


def page(text: str) -> str:
    """`text` of the page with the table as it is now."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
