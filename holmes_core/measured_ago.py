"""The age of measurements, for display."""

from __future__ import annotations

from collections.abc import Iterable

from holmes_core.units import format_duration

SOON_S = 60.0  # younger measurements count as new


def measured_ago(moments_s: Iterable[float | None], now_s: float | None) -> str:
    """Return `3.0 days ago` for the oldest moment; nothing if none is known or all are less than a minute old."""
    known = [moment for moment in moments_s if moment is not None]
    if not known or now_s is None or now_s - min(known) < SOON_S:
        return ""
    return f"{format_duration(now_s - min(known))} ago"
