"""Bounds of possible values. A value outside them was damaged in transit and counts as not known."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from holmes_core.records.inventory import ImpossibleValue
from holmes_core.units import bytes_per_s_from_gbps
from prober.asking.merge import without

T = TypeVar("T", bound=Any)  # a record or dataclass whose unknown fields are None
Bounds = Mapping[str, tuple[float, float]]
"""The smallest and the largest value of each fact."""

TOP_GBPS = 3200.0  # four times the fastest port, InfiniBand XDR
TOP_BYTES_PER_S = bytes_per_s_from_gbps(TOP_GBPS)

_NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)  # of an RDMA device: IB_DEVICE_NAME_MAX
_NETDEV_NAME = re.compile(r"[\w.-]{1,15}", re.ASCII)  # IFNAMSIZ of linux/if.h, less the end of a string


def is_name(text: str, of_netdev: bool = False) -> bool:
    """Return True if a device or a netdev can have this name: one word of letters, digits, `_`, `.` and `-`."""
    return bool((_NETDEV_NAME if of_netdev else _NAME).fullmatch(text))


def possible(source: str, subject: str, facts: T, bounds: Bounds) -> tuple[T, list[ImpossibleValue]]:
    """Return the facts without values that are out of bounds, and a record of each such value."""
    found = [
        ImpossibleValue(source=source, subject=subject, fact=fact, value=f"{value:g}" if value < 1e15 else str(value))
        for fact, (least, most) in bounds.items()
        if (value := getattr(facts, fact)) is not None and not least <= value <= most
    ]
    return (without(facts, [each.fact for each in found]) if found else facts), found


def impossible_name(source: str, what: str, name: str) -> ImpossibleValue:
    """Return the record of a name that no device can have."""
    return ImpossibleValue(source=source, subject=what, fact="name", value=name[:80])


def named(source: str, what: str, facts: Iterable[T], name: str) -> tuple[list[T], list[ImpossibleValue]]:
    """Return the facts whose field `name` is a possible name, and a record of each other name."""
    known, found = [], []
    for each in facts:
        text = getattr(each, name)
        if is_name(text, of_netdev=what == "netdev"):
            known.append(each)
        else:
            found.append(impossible_name(source, what, text))
    return known, found
