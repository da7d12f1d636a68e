"""What a launch has to know when it is one island of several."""

from __future__ import annotations

from dataclasses import dataclass

from holmes_runtime.config.run_settings import OuterSync
from launcher.islands.held_meeting import Meeting
from launcher.islands.told import Told


@dataclass(frozen=True)
class IslandPart:
    """`meeting` is that of all islands; `told` ends this one, which is lost after `tries` starts without a step.

    `outer_sync`: what its ranks have to know of the others.
    """

    outer_sync: OuterSync
    meeting: Meeting
    told: Told
    tries: int
