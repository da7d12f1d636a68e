"""InfiniBand's P_Keys: the partition in which hosts' ports can talk, and its index in their tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

FULL_MEMBER = 0x8000  # bit of a P_Key; two limited members of a partition cannot talk. Source: IBTA, volume 1, 10.9

Tables = Mapping[str, Sequence[Sequence[int]]]
"""By host, the P_Key tables of its ports, by index; 0 is a void entry."""


def can_talk(keys: Mapping[str, set[int]]) -> bool:
    """Return True if all hosts whose ports use these keys can talk. A host without keys is not known and left out.

    All must be in the same partitions, and at most one of them may have keys of limited members alone.
    """
    known = [of_host for of_host in keys.values() if of_host]
    partitions = {frozenset(key & ~FULL_MEMBER for key in of_host) for of_host in known}
    return len(partitions) <= 1 and sum(is_limited(of_host) for of_host in known) <= 1


def is_limited(keys: set[int]) -> bool:
    """Return True if none of the keys is a full member's."""
    return all(not key & FULL_MEMBER for key in keys)


def full_member_indices(tables: Tables) -> dict[str, int] | None:
    """Return, by host, the index at which all its ports are full members of the one partition of all hosts.

    None if there is no such partition, or several, since only the fabric's owner knows the right one.
    """
    of_hosts = [_indices(ports) for ports in tables.values()]
    if not of_hosts or not all(tables.values()):
        return None
    common = set.intersection(*(set(each) for each in of_hosts))
    if len(common) != 1:
        return None
    (key,) = common
    return {host: each[key] for host, each in zip(tables, of_hosts, strict=True)}


def _indices(ports: Sequence[Sequence[int]]) -> dict[int, int]:
    """Return, by full member's key, its lowest common index in the tables of all `ports`."""
    found: dict[int, int] = {}
    for index, entries in enumerate(zip(*ports, strict=False)):
        if len(set(entries)) == 1 and entries[0] & FULL_MEMBER:
            found.setdefault(entries[0], index)
    return found
