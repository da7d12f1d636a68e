"""The meeting of islands in a test's own process: what agents and the controller do in a run."""

from __future__ import annotations

from holmes_runtime.config.rendezvous_messages import ToMeeting
from holmes_runtime.node.admission.rendezvous_gate import RendezvousGate
from holmes_runtime.node.admission.store_gate import GATE_ADDRESS
from launcher.islands.rendezvous_server import RendezvousServer


class MeetingPlace:
    """The gates of so many nodes, and the meeting behind all. `addresses` are by node what ranks find it by."""

    def __init__(self, nodes: int = 1) -> None:
        self.meeting = RendezvousServer()
        self.gates = [self._gate(node) for node in range(nodes)]
        self._sends = [gate.hand_on for gate in self.gates]

    @property
    def addresses(self) -> list[str]:
        return [f"{GATE_ADDRESS}:{gate.port}" for gate in self.gates]

    def _gate(self, node: int) -> RendezvousGate:
        def report(message: ToMeeting) -> None:
            assert self.meeting.take(self._sends[node], message) is None

        return RendezvousGate(report)
