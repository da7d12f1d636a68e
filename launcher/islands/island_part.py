"""The facts that a launch needs as one island of several."""

from __future__ import annotations

import time
from dataclasses import dataclass

from holmes_core.records.plan import IslandsPlan
from holmes_runtime.config.islands.rendezvous_messages import ToMeeting
from holmes_runtime.config.messages import RankFailed
from holmes_runtime.config.run_settings import OuterSync
from launcher.islands.rendezvous_server import RendezvousServer, Reply
from launcher.islands.run_tunnel import RunTunnel
from launcher.nodes.interrupts import Interrupts
from launcher.nodes.node_link import NodeMessage
from launcher.nodes.preflight import Fault

MIN_SILENCE_S = 5.0  # nodes speak every 2 s


@dataclass(frozen=True)
class IslandPart:
    """The place of a launch among the islands. It is lost after `tries` starts without a step.

    `meeting` and `tunnel` are shared by all islands. `outer_sync` holds the facts that its ranks need of the others.
    `own_data` is the cluster whose own data the island reads, if any.
    """

    outer_sync: OuterSync
    own_data: str | None
    meeting: RendezvousServer
    tries: int
    tunnel: RunTunnel

    def enter_tunnel(self, interrupts: Interrupts) -> list[Fault]:
        """See that this island's hosts are in the tunnel; return why they cannot be. Raises KeyboardInterrupt."""
        return self.tunnel.enter(self.outer_sync.island, interrupts)

    def tunnel_failure(self, now_s: float) -> NodeMessage | None:
        """Return the failure of the node whose end of the tunnel is lost, if one is."""
        lost = self.tunnel.lost(self.outer_sync.island)
        return lost and NodeMessage(lost[0], RankFailed(None, 1, lost[1], time.time()), now_s)

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


def outer_sync_of(plan: IslandsPlan, island: int) -> OuterSync:
    """Return the facts that an island's ranks need of the others."""
    mine = plan.islands[island]
    section, netdevs = mine.job.islands, {node.host: node.shared_netdev for node in mine.nodes}
    assert section is not None  # the record holds it
    sharing = [k for k in range(len(plan.islands)) if plan.own_data(k) == plan.own_data(island)]
    return OuterSync(
        **vars(section),
        island=island,
        num_islands=len(plan.islands),
        samples_before=sum(plan.round_samples[k] for k in sharing if k < island),
        round_samples=sum(plan.round_samples[k] for k in sharing),
        interfaces=tuple(netdevs[rank.host] for rank in mine.ranks),
        streams=1,
    )
