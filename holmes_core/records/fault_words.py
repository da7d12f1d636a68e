"""What is wrong with a value, said to who wrote the file: pydantic's words are of tuples and regular expressions."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic_core import ErrorDetails

_WORDS = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    **dict.fromkeys(("tuple_type", "list_type"), "must be a list, such as [a, b]"),
    **dict.fromkeys(("dict_type", "model_type", "mapping_type"), "must be keys and values, such as {{key: value}}"),
    "string_type": "must be text",
    "finite_number": "must be a finite number",
    "literal_error": "must be {expected}",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "too_short": "must list at least {min_length}",
    "too_long": "must list at most {max_length}",
    "string_too_long": "must have at most {max_length} characters",
}
PATTERNS = {
    "^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$": (
        "must be a name of letters, digits, dots, dashes and underscores that begins and ends with a letter or digit"
    ),
    "^[A-Za-z_][A-Za-z0-9_]*$": "must be the name of a variable: letters, digits and underscores, no digit first",
    r"^(/[^:]*|[^/:]+(/[^/:]+)*)\.py:[A-Za-z_]\w*$": "must be FILE.py:FUNCTION",
    r"^[^\n\r\x00]*$": "must be one line",
    "^[!-~]+$": "must be one word of ASCII characters",
    "^/": "must be an absolute path",
}


def fault_words(fault: ErrorDetails) -> str:
    """What the value must be."""
    context = {key: _plain(value) for key, value in fault.get("ctx", {}).items()}
    if fault["type"] == "string_pattern_mismatch":
        return PATTERNS.get(context["pattern"], fault["msg"])
    words = _WORDS.get(fault["type"])
    return fault["msg"].removeprefix("Value error, ") if words is None else words.format(**context)


def _plain(value: object) -> object:
    """A limit as one writes it: 0, where the key's numbers are broken ones."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def without_echoes(faults: Iterable[ErrorDetails]) -> list[ErrorDetails]:
    """All but that a list is too short for want of the entries that are at fault themselves."""
    faults = list(faults)
    above = {fault["loc"][:end] for fault in faults for end in range(len(fault["loc"]))}
    return [fault for fault in faults if fault["type"] != "too_short" or fault["loc"] not in above]
