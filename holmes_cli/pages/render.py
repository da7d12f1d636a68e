"""Templates to pages of HTML that need nothing from the network to be shown."""

from __future__ import annotations

import re
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined

import templates


def render(template: str, **values: object) -> str:
    """Render the file `template` of templates/ with `values`, which are escaped."""
    loader = FunctionLoader(lambda name: files(templates).joinpath(name).read_text(encoding="utf-8"))
    pages = Environment(autoescape=True, undefined=StrictUndefined, loader=loader, trim_blocks=True)
    pages.filters["split_blocks"] = split_blocks
    return pages.get_template(template).render(values)


def split_blocks(cell: str) -> list[str]:
    """Return the parts of a table's cell: text and, at odd places, the bars that the screen draws as blocks."""
    return re.split("([\u2588-\u258f]+)", cell)
