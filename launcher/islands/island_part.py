"""What a launch has to know when it is one island of several."""

from __future__ import annotations

from dataclasses import dataclass

from holmes_runtime.config.run_settings import OuterSync
from launcher.islands.held_meeting import Meeting
from launcher.islands.told import Told

LEAST_SILENCE_S = 5.0  # nodes speak every 2 s


@dataclass(frozen=True)
class IslandPart:
    """`meeting` is that of all islands; `told` ends this one, which is lost after `tries` starts without a step.

    `outer_sync`: what its ranks have to know of the others.
    """

    outer_sync: OuterSync
    meeting: Meeting
    told: Told
    tries: int

    def take_silence(self, unheard_s: float) -> None:
        """One of its hosts has not been heard for so long; after the grace the others wait for the island no more."""
        is_heard = unheard_s < max(self.outer_sync.grace_s, LEAST_SILENCE_S)
        self.meeting.hear(self.outer_sync.island, is_heard)
