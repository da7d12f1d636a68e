"""Templates to pages of HTML that need nothing from the network to be shown."""

from __future__ import annotations

from importlib.resources import files

from jinja2 import Environment, StrictUndefined

import templates


def render(template: str, **values: object) -> str:
    """Render the file `template` of templates/ with `values`, which are escaped."""
    source = files(templates).joinpath(template).read_text(encoding="utf-8")
    return Environment(autoescape=True, undefined=StrictUndefined).from_string(source).render(values)
