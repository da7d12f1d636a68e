"""The rendezvous of islands in a test's own process: the part of agents and the controller in a run."""

from __future__ import annotations

import threading
import time
from functools import partial

from holmes_runtime.config.islands.rendezvous_messages import ToMeeting
from holmes_runtime.node.admission.rendezvous_gate import RendezvousGate
from holmes_runtime.node.admission.store_gate import GATE_ADDRESS
from launcher.islands.rendezvous_server import RendezvousServer

LOOK_S = 0.02


class MeetingPlace:
    """A gate for each island, at `addresses`, and the rendezvous behind all."""

    def __init__(self, num_islands: int = 2, quorum: int = 1) -> None:
        self.meeting = RendezvousServer(num_islands, quorum)
        self.gates = [RendezvousGate(partial(self._take, island)) for island in range(num_islands)]
        self._sends = [gate.hand_on for gate in self.gates]
        threading.Thread(target=self._look, daemon=True).start()

    @property
    def addresses(self) -> list[str]:
        return [f"{GATE_ADDRESS}:{gate.port}" for gate in self.gates]

    def _take(self, island: int, message: ToMeeting) -> None:
        assert self.meeting.take(island, self._sends[island], message) is None

    def _look(self) -> None:
        while True:
            self.meeting.look()
            time.sleep(LOOK_S)
