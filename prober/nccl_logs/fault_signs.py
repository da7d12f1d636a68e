"""Messages that are signs of a fault or of a choice, by name, from `fault_signs.yaml`; and warnings that are none."""

from __future__ import annotations

import re
from importlib.resources import files

import yaml

from prober.nccl_logs.nccl_lines import NcclMessage

_DATA = yaml.safe_load(files(__package__).joinpath("fault_signs.yaml").read_text("utf-8"))
SIGNS: tuple[tuple[str, str, re.Pattern[str]], ...] = tuple(
    (sign, needle, re.compile(form)) for sign, needle, form in _DATA["signs"]
)
_HARMLESS = re.compile("|".join(_DATA["harmless"]))


def is_harmless(message: NcclMessage) -> bool:
    """Return True for warnings that occur in sound runs, or that only follow another warning."""
    return bool(_HARMLESS.search(f"{message.source} {message.text}"))
