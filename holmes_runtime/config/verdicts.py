"""Verdicts of ranks, for launcher and planner: parts slower than planned, and changes made because of them.

Free of torch.
"""

from __future__ import annotations

from typing import NamedTuple

from holmes_runtime.config.codec import EdgeSettings


class HostIsSlow(NamedTuple):
    """A host computes `ratio` times as long as planned."""

    host: str
    ratio: float

    @property
    def sentence(self) -> str:
        """The verdict as a sentence."""
        return f"slow host {self.host}: computes {self.ratio:.1f}x longer than planned"


class LinkIsSlow(NamedTuple):
    """A message takes `ratio` times as long as planned: `taken_s` seconds, not `planned_s`.

    Between two clusters, this is the worst of `links` slow links that share the `trunk`, and it stands for all of them.
    If all links of the trunk are slow, so is the trunk: it carries `carried_bytes_per_s`, not `planned_bytes_per_s`.
    """

    sender: str
    receiver: str
    ratio: float
    taken_s: float
    planned_s: float
    trunk: tuple[str, str] | None = None
    links: int = 1
    carried_bytes_per_s: float | None = None
    planned_bytes_per_s: float | None = None

    @property
    def sentence(self) -> str:
        """The verdict as a sentence."""
        if self.trunk is not None and self.carried_bytes_per_s is not None and self.planned_bytes_per_s is not None:
            rates = f"{_line_rate(self.carried_bytes_per_s)}, planned {_line_rate(self.planned_bytes_per_s)}"
            message = f"{self.sender} to {self.receiver} takes {self.taken_s:.3g} s, not {self.planned_s:.3g} s"
            return f"the trunk {' - '.join(self.trunk)} carries {rates}: a message from {message}"
        longer = f"{self.ratio:.1f}x longer than planned ({self.taken_s:.3g} s a message, not {self.planned_s:.3g} s)"
        others = (
            f"; the worst of {self.links} between {' and '.join(self.trunk)}" if self.trunk and self.links > 1 else ""
        )
        return f"slow link {self.sender}-{self.receiver}: {longer}{others}"


class AllHostsSlow(NamedTuple):
    """Every host computes longer than planned, `least` to `most` times as long: the plan itself is wrong."""

    least: float
    most: float

    @property
    def sentence(self) -> str:
        """The verdict as a sentence."""
        return (
            f"every host computes {self.least:.1f}x to {self.most:.1f}x longer than planned: the plan "
            "took the wrong speed (measure it with `holmes calibrate`)"
        )


class EdgeAdapted(NamedTuple):
    """An edge uses the settings `now` from the next step on. `earlier` and `later` are the hosts at its ends.

    `activations_s` and `gradients_s` are the seconds of one message packed as `before`, in the slowest replica.
    """

    earlier: tuple[str, ...]
    later: tuple[str, ...]
    before: EdgeSettings
    now: EdgeSettings
    activations_s: float
    gradients_s: float

    @property
    def sentence(self) -> str:
        """The verdict as a sentence."""
        names = ("activations", "gradients", "extra micro-batches in flight")
        changed = [
            f"{name} {old} -> {new}" for name, old, new in zip(names, self.before, self.now, strict=True) if old != new
        ]
        return (
            f"edge {'+'.join(self.earlier)}-{'+'.join(self.later)}: {', '.join(changed)} from the next step on "
            f"({self.activations_s:.3g} s a message of activations, {self.gradients_s:.3g} s of gradients)"
        )


class DataIsSlow(NamedTuple):
    """A rank waits for its samples for `waited_s` of a step of `step_s`, although they are read one step ahead."""

    host: str
    rank: int
    waited_s: float
    step_s: float

    @property
    def sentence(self) -> str:
        """The verdict as a sentence."""
        return (
            f"slow data on {self.host}: rank {self.rank} waits {self.waited_s:.2g} s of a step of {self.step_s:.2g} s "
            "for its samples: look at the disk or share that `data:` names"
        )


def _line_rate(bytes_per_s: float) -> str:
    bits = bytes_per_s * 8
    return f"{bits / 1e9:.3g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.3g} Mbit/s"


SlowPart = HostIsSlow | LinkIsSlow
Verdict = SlowPart | AllHostsSlow | DataIsSlow | EdgeAdapted
