"""Conversions at the edge: text to bytes and seconds when read; GiB, GB/s and lists of names when shown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

MIB = 1024**2
GIB = 1024**3
ROUNDS_TO_A_SECOND = 0.9995  # the fewest seconds that three digits do not show as 999 ms


def bytes_per_s_from_gbps(gbps: float) -> float:
    """Return the bytes per second of a line rate in gigabits per second (10**9 bits)."""
    return gbps * 1e9 / 8


def bytes_per_s_from_mbps(mbps: float) -> float:
    """Return the bytes per second of a line rate in megabits per second (10**6 bits), the unit of ethtool."""
    return mbps * 1e6 / 8


def format_rate(bytes_per_s: float | None) -> str:
    """Return a line rate for display: `100 Mbit/s`, `2 Gbit/s`; `unknown` for None."""
    if bytes_per_s is None:
        return "unknown"
    bits = bytes_per_s * 8
    return f"{bits / 1e9:.4g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.4g} Mbit/s"


def format_bytes(size_bytes: float) -> str:
    """Return an amount of data in decimal units: `31.3 MB`."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.2f} {unit}"
    return f"{size_bytes:.0f} B"


def format_loss(loss: float | None) -> str:
    """Return `1.2346`; None is a loss that is not finite."""
    return "not finite" if loss is None else f"{loss:.4f}"


def format_seconds(seconds: float) -> str:
    """Return a duration: `1.24 s`, `35 ms`."""
    return f"{seconds:.2f} s" if seconds >= ROUNDS_TO_A_SECOND else f"{seconds * 1e3:.3g} ms"


def format_duration(seconds: float) -> str:
    """Return a long duration for display: `45 s`, `5.2 min`, `3.1 h`, `12.0 days`."""
    if seconds < 10:
        return format_seconds(seconds)
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


def format_memory(size_bytes: float | None) -> str:
    """Return an amount of memory in GiB, or MiB below one GiB; `unknown` for None."""
    if size_bytes is None:
        return "unknown"
    return f"{size_bytes / GIB:.1f} GiB" if size_bytes >= GIB else f"{size_bytes / MIB:.0f} MiB"


def format_names(names: Sequence[str], most: int) -> str:
    """Return all names, or the first `most` and the number of the rest: `a1, a2 and 6 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


SOON_S = 60.0  # younger measurements count as new


def measured_ago(moments_s: Iterable[float | None], now_s: float | None) -> str:
    """Return `3.0 days ago` for the oldest moment; nothing if none is known or all are less than a minute old."""
    known = [moment for moment in moments_s if moment is not None]
    if not known or now_s is None or now_s - min(known) < SOON_S:
        return ""
    return f"{format_duration(now_s - min(known))} ago"
