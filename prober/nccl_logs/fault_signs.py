"""Messages in `fault_signs.yaml` that are signs of a fault or of a choice, and harmless warnings."""

from __future__ import annotations

import re
from importlib.resources import files

import yaml

_DATA = yaml.safe_load(files(__package__).joinpath("fault_signs.yaml").read_text("utf-8"))
SIGNS: tuple[tuple[str, str, re.Pattern[str]], ...] = tuple(
    (sign, needle, re.compile(form)) for sign, needle, form in _DATA["signs"]
)
HARMLESS = re.compile("|".join(_DATA["harmless"]))  # warnings of sound runs, or that only follow another warning
