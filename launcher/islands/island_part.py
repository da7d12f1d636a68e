"""The facts that a launch needs as one island of several."""

from __future__ import annotations

from dataclasses import dataclass

from holmes_runtime.config.islands.rendezvous_messages import ToMeeting
from holmes_runtime.config.run_settings import OuterSync
from launcher.islands.rendezvous_server import RendezvousServer, Reply

MIN_SILENCE_S = 5.0  # nodes speak every 2 s


@dataclass(frozen=True)
class IslandPart:
    """The place of a launch among the islands. It is lost after `tries` starts without a step.

    `meeting` is shared by all islands. `outer_sync`: what its ranks need to know of the others.
    """

    outer_sync: OuterSync
    meeting: RendezvousServer
    tries: int

    def take(self, reply: Reply, message: ToMeeting) -> str | None:
        """Answer a request of a rank of this island; return the reason if it is refused."""
        return self.meeting.take(self.outer_sync.island, reply, message)

    @property
    def has_begun(self) -> bool:
        """True once the ranks of the present attempt have begun to take part in outer syncs."""
        return self.meeting.has_begun(self.outer_sync.island)

    def take_silence(self, unheard_s: float) -> None:
        """Report a host's silence of `unheard_s`; beyond the grace time the other islands stop waiting for this one."""
        is_heard = unheard_s < max(self.outer_sync.grace_s, MIN_SILENCE_S)
        self.meeting.hear(self.outer_sync.island, is_heard)
