"""After how many steps an island comes to exchanges."""

from __future__ import annotations


def due_after(exchange: int, inner_steps: int, fragments: int) -> int:
    """The steps after which an exchange begins: that of a round's last fragment at its end."""
    round_number, fragment = divmod(exchange, fragments)
    return round_number * inner_steps + (fragment + 1) * inner_steps // fragments


def taken_since(passed_s: float, interval_s: float, interval_steps: int, most: int) -> int:
    """Steps in so many seconds, at `interval_steps` an interval, of islands that wait for one another after `most`."""
    return most if passed_s >= interval_s else min(most, int(passed_s / interval_s * interval_steps))
