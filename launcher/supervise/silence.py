"""Nodes that have gone silent. Pure: time is passed in."""

from __future__ import annotations

from collections.abc import Collection

ASLEEP_S = 3.0  # a gap this long means that this machine was suspended or overloaded


class SilenceDetector:
    """The time of each node's last message. Call `silent` regularly: a gap between calls counts as our own pause."""

    def __init__(self, num_nodes: int, now_s: float) -> None:
        self._heard_s = dict.fromkeys(range(num_nodes), now_s)
        self._looked_s = now_s

    def take_word(self, node_rank: int, now_s: float) -> None:
        self._heard_s[node_rank] = now_s

    def longest_s(self, nodes: Collection[int], now_s: float) -> float:
        """Return the longest silence among these nodes, in seconds; 0 if there are none."""
        return max((now_s - self._heard_s[node_rank] for node_rank in nodes), default=0.0)

    def silent(self, now_s: float, limit_s: float) -> dict[int, float]:
        """Return the seconds of silence of each node that has been silent for longer than `limit_s`."""
        if now_s - self._looked_s > ASLEEP_S:  # this process itself did not listen
            self._heard_s = dict.fromkeys(self._heard_s, now_s)
        self._looked_s = now_s
        since_s = now_s - limit_s
        return {node_rank: now_s - heard_s for node_rank, heard_s in self._heard_s.items() if heard_s < since_s}
