"""How a configuration is refused: `key: rule, got value`. Free of torch."""

from __future__ import annotations


def check(key: str, value: object, rule: str, holds: bool) -> None:
    """Raises ValueError, saying that `key` breaks the `rule` with this `value`, unless the rule `holds`."""
    if not holds:
        raise ValueError(f"{key}: {rule}, got {value!r}")


def check_positive(record: object, *keys: str) -> None:
    """Raises ValueError for the first of the attributes `keys` that is not above zero."""
    for key in keys:
        check(key, getattr(record, key), "must be positive", getattr(record, key) > 0)
