"""JSON lists in the output of iproute2's tools."""

from __future__ import annotations

import json
import re
from typing import Any


def json_list(text: str) -> list[dict[str, Any]]:
    """Return the JSON list in `text`, which may have warnings around it. A list that is cut off ends earlier."""
    start = re.search(r"\[\s*(?=\{)", text)
    if not start:
        return []
    decoder, entries, at = json.JSONDecoder(), [], start.end()
    while at < len(text) and text[at] == "{":
        try:
            entry, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):  # a number of thousands of digits is no JSONDecodeError
            break
        entries.append(entry)
        while at < len(text) and text[at] in ", \t\r\n":
            at += 1
    return entries
