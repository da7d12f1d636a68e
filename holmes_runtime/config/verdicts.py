"""What is slower than planned: rank 0 judges, the launcher and its planner go by it. Free of torch."""

from __future__ import annotations

from typing import NamedTuple


class HostIsSlow(NamedTuple):
    """A host computes `ratio` times as long as planned."""

    host: str
    ratio: float

    @property
    def sentence(self) -> str:
        """For people."""
        return f"slow host {self.host}: computes {self.ratio:.1f}x longer than planned"


class LinkIsSlow(NamedTuple):
    """A message takes `ratio` times as long as planned: `taken_s` seconds, not `planned_s`."""

    sender: str
    receiver: str
    ratio: float
    taken_s: float
    planned_s: float

    @property
    def sentence(self) -> str:
        """For people."""
        return (
            f"slow link {self.sender}-{self.receiver}: {self.ratio:.1f}x longer than planned "
            f"({self.taken_s:.3g} s a message, not {self.planned_s:.3g} s)"
        )


class AllHostsSlow(NamedTuple):
    """Every host computes longer than planned, from `least` to `most` times as long: it is the plan that is wrong."""

    least: float
    most: float

    @property
    def sentence(self) -> str:
        """For people."""
        return (
            f"every host computes {self.least:.1f}x to {self.most:.1f}x longer than planned: the plan "
            "took the wrong speed (measure it with `python -m holmes_runtime.calibrate`)"
        )


SlowPart = HostIsSlow | LinkIsSlow
Verdict = SlowPart | AllHostsSlow
