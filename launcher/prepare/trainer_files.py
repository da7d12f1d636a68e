"""The configuration of ranks that run a trainer's own command, made from the plan."""

from __future__ import annotations

from holmes_core.records.plan import Plan
from holmes_runtime.config.islands.island_training import IslandTraining
from holmes_runtime.config.rank_grid import NetName
from holmes_runtime.config.run_settings import OuterSync
from holmes_runtime.config.trainer_config import SHARED, TrainerConfig, TrainerNetwork, TrainerRank
from launcher.prepare.engine_arguments import command_of


def trainer_config_of(plan: Plan, outer_sync: OuterSync | None, timeout_s: float) -> TrainerConfig:
    """Return the command of every rank and each rank's interfaces, the fabric of its cluster first.

    With `outer_sync` the ranks are an island, whose waits are limited to `timeout_s`.
    """
    assert plan.job.trainer is not None
    fabrics = {node.fabric.network: node.fabric.net_name for node in plan.nodes if node.fabric is not None}
    nodes = {node.host: node for node in plan.nodes}
    ranks = []
    for rank in plan.ranks:
        node = nodes[rank.host]
        fabric = {} if node.fabric is None else {node.fabric.network: node.fabric.netdev}
        ranks.append(TrainerRank(rank.host, rank.local_rank, {**fabric, SHARED: node.shared_netdev}))
    on_shared: NetName | None = "Socket" if plan.job.device == "cuda" else None
    networks = (*(TrainerNetwork(name, net) for name, net in fabrics.items()), TrainerNetwork(SHARED, on_shared))
    tokens = plan.job.global_batch_size * plan.job.model.seq_length
    island = None
    if outer_sync is not None:
        island = IslandTraining(outer_sync, plan.job.steps, tokens, plan.world_size, timeout_s)
    return TrainerConfig(command_of(plan), plan.job.trainer.folder, networks, tuple(ranks), island)
