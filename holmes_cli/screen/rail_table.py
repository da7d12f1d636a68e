"""The RDMA ports that are rails, and why the others are not: rows for the screen and the page alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holmes_core.records.devices import Nic
from holmes_core.records.inventory import Host

HEADINGS = ("hosts", "ports", "kind", "rail", "why")
_MAX_NAMED = 3  # hosts or ports in a cell, as long as the numbers tell the rest
Row = tuple[str, str, str, str, str]


def rail_rows(hosts: Iterable[Host]) -> list[Row]:
    """Return a row per kind of equal ports, shared by hosts that have the same rows; none without RDMA ports."""
    alike: dict[tuple[tuple[str, str, str, str], ...], list[str]] = {}
    for host in hosts:
        rows = tuple(_rows_of(host))
        if rows:
            alike.setdefault(rows, []).append(host.name)
    return [(_listed(names), *row) for rows, names in alike.items() for row in rows]


def _rows_of(host: Host) -> Iterable[tuple[str, str, str, str]]:
    alike: dict[tuple[bool, str, str], list[Nic]] = {}
    for nic in host.nics:
        if nic.kind != "Ethernet":
            alike.setdefault((nic.rail is None, _kind(nic), nic.rail_why), []).append(nic)
    for (is_out, kind, why), nics in sorted(alike.items(), key=lambda item: item[0][0]):
        in_order = sorted(nics, key=lambda nic: nic.rail or 0)
        rails = [nic.rail for nic in in_order if nic.rail is not None]
        yield _listed([nic.hca for nic in in_order]), kind, "out" if is_out else _numbers(rails), why


def _numbers(rails: Sequence[int]) -> str:
    if len(rails) > 1 and rails[-1] - rails[0] == len(rails) - 1:
        return f"{rails[0]}-{rails[-1]}"
    return ", ".join(map(str, rails))


def _kind(nic: Nic) -> str:
    rate = f" {nic.rate_gbps:g} Gbit/s" if nic.rate_gbps and nic.state in ("Active", None) else ""
    return f"{nic.kind}{rate}"


def _listed(names: Sequence[str]) -> str:
    """Return all names if they are few, else the first, the last and their number."""
    if len(names) <= _MAX_NAMED:
        return ", ".join(names)
    return f"{names[0]} ... {names[-1]} ({len(names)})"
