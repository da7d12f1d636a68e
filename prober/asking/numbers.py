"""Numbers and ids in the output of tools."""

from __future__ import annotations

import re

from holmes_core.units import MIB


def number(text: str | None) -> float | None:
    """Return the number at the beginning of a text."""
    match = re.match(r"\s*(\d{1,9}(?:\.\d{1,9})?)(?![\d.])", text or "")
    return float(match.group(1)) if match else None


def whole_number(text: str | None) -> int | None:
    """Return a decimal or 0x number, if only blanks or a text in parentheses follow it."""
    match = re.fullmatch(r"(0[xX][0-9a-fA-F]{1,16}|-?\d{1,18})\s*(?:\(.*\))?", (text or "").strip())
    if not match:
        return None
    return int(match.group(1), 16) if match.group(1)[:2].lower() == "0x" else int(match.group(1))


def mebibytes(text: str | None) -> int | None:
    """Return the bytes of `81559 MiB`, `81559MiB` or `81559`, as nvidia-smi prints memory."""
    match = re.fullmatch(r"(\d{1,9}) ?(?:MiB)?", text or "")
    return int(match.group(1)) * MIB if match else None


def guid(text: str | None) -> str | None:
    """Return any spelling of a GUID as `xxxx:xxxx:xxxx:xxxx`, or None for zeros and other text."""
    digits = re.sub(r"^0[xX]|[:\s]", "", (text or "").strip()).lower()
    if not re.fullmatch(r"[0-9a-f]{16}", digits) or set(digits) == {"0"}:
        return None
    return ":".join(digits[start : start + 4] for start in range(0, 16, 4))
