"""The facts that an island's ranks need of the others, taken from the plan of islands."""

from __future__ import annotations

from holmes_core.records.plan import IslandsPlan
from holmes_runtime.config.run_settings import OuterSync


def outer_sync_of(plan: IslandsPlan, island: int) -> OuterSync:
    """Return the facts for that island of the plan."""
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
