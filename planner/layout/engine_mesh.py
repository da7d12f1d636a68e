"""The numbers that other trainers give their ranks, and the groups they form. A plan is checked against both.

Megatron (its order tp-cp-ep-dp-pp), torchtitan, DeepSpeed, accelerate and torch's device meshes all compute groups from
RANK, tensor shards innermost and stages outermost: rank = tp + TP (dp + DP pp). If weights are sharded inside clusters,
dp = shard + SHARDS replicate. Sources: megatron.core.parallel_state; torchtitan's ParallelDims; DeepSpeed's
PipeModelDataParallelTopology; accelerate's ParallelismConfig.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from holmes_core.records.plan import Plan


class MeshDegrees(NamedTuple):
    """Degrees of a mesh. Every `shards` of the dp replicas, with consecutive numbers, form one group."""

    tp: int
    pp: int
    dp: int
    shards: int

    def rank(self, pp_rank: int, dp_rank: int, tp_rank: int) -> int:
        """Return the engine's number of the rank at these coordinates."""
        return tp_rank + self.tp * (dp_rank + self.dp * pp_rank)

    def groups(self) -> dict[str, set[tuple[int, ...]]]:
        """Return the members of every group of several ranks: tp, pp, dp, and inside dp the shards and their copies."""
        tp, pp, dp, block = range(self.tp), range(self.pp), range(self.dp), range(self.shards)
        copies = range(self.dp // self.shards)
        groups = {
            "tp": {tuple(self.rank(p, d, t) for t in tp) for p, d in product(pp, dp)},
            "pp": {tuple(self.rank(p, d, t) for p in pp) for d, t in product(dp, tp)},
            "dp": {tuple(self.rank(p, d, t) for d in dp) for p, t in product(pp, tp)},
            "shard": {
                tuple(self.rank(p, at + self.shards * copy, t) for at in block)
                for p, t, copy in product(pp, tp, copies)
            },
            "replicate": {
                tuple(self.rank(p, at + self.shards * copy, t) for copy in copies)
                for p, t, at in product(pp, tp, block)
            },
        }
        return {name: {each for each in held if len(each) > 1} for name, held in groups.items()}


def mesh_faults(plan: Plan) -> Iterator[str]:
    """Yield a sentence for each rank and group that the engine would number or form differently."""
    is_flat = plan.data_parallel == "flat"
    mesh = MeshDegrees(plan.tp, plan.pp, plan.dp, plan.dp if is_flat else plan.dp_group_size)
    for each in plan.ranks:
        number = mesh.rank(each.pp_rank, each.dp_rank, each.tp_rank)
        if each.rank != number:
            yield f"rank {each.rank} is number {number} to engine {plan.job.engine}"
    made = mesh.groups()
    for axis, name in (("tp", "tp"), ("dp", "dp" if is_flat else "shard"), ("dp_across", "replicate")):
        planned = {tuple(sorted(group.ranks)) for group in plan.groups if group.axis == axis}
        if planned != (set() if axis == "dp_across" and is_flat else made[name]):
            yield f"groups of axis {axis} differ from those that engine {plan.job.engine} forms"
    pipelines = {number: group for group in made["pp"] for number in group}
    for group in plan.groups:
        if group.axis in ("pp_forward", "pp_backward", "tied") and len({pipelines[each] for each in group.ranks}) > 1:
            yield f"group {group.name} is not inside a pipeline of engine {plan.job.engine}"
