"""Errors for refused configurations: `key: rule, got value`. Free of torch."""

from __future__ import annotations

import reprlib

SHOWN_CHARACTERS = 100  # shown of a text or a number in an error
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = SHOWN_CHARACTERS
_REPR.maxlist = _REPR.maxtuple = _REPR.maxdict = 12
_REPR.maxlevel = 4


def shown(value: object) -> str:
    """Return `value` for an error message, cut short. This is fast even if the value is long or deep."""
    return _REPR.repr(value)[: 3 * SHOWN_CHARACTERS]


class WrongValue(ValueError):
    """The `value` of `key` breaks a `rule`."""

    def __init__(self, key: str, value: object, rule: str) -> None:
        super().__init__(f"{key}: {rule}, got {shown(value)}")
        self.key, self.value, self.rule = key, value, rule


def check(key: str, value: object, rule: str, holds: bool) -> None:
    """Raise WrongValue unless the rule `holds`."""
    if not holds:
        raise WrongValue(key, value, rule)


def check_positive(record: object, *keys: str) -> None:
    """Raise ValueError for the first attribute among `keys` that is not above zero."""
    for key in keys:
        check(key, getattr(record, key), "must be positive", getattr(record, key) > 0)


def check_counts(record: object, max_value: int, *keys: str) -> None:
    """Raise ValueError for the first attribute among `keys`, one number or several, that is not 0 to `max_value`."""
    for key in keys:
        value = getattr(record, key)
        numbers: tuple[int, ...] = value if isinstance(value, tuple) else (value,)
        if numbers and not 0 <= min(numbers) <= max(numbers) <= max_value:
            check(key, value, f"must be 0 to {max_value}", holds=False)
