"""What a launch has to know when it is one island of several."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.islands.meeting import Meeting
from launcher.islands.told import Told


@dataclass(frozen=True)
class IslandPart:
    """`meeting` is that of all islands; `told` ends this one, which is lost after `tries` starts that came to no step."""

    meeting: Meeting
    told: Told
    tries: int
