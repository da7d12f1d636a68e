"""Write a placement out to a layout of ranks and process groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from holmes_core.records.job import Job
from holmes_core.records.plan import PlanGroup, PlanRank, PlanStage
from holmes_runtime.config.codec import Codec
from holmes_runtime.config.rank_grid import Axis, DataParallel
from planner.cost.collectives import Peers, expert_exchange_part
from planner.problem.candidates import Candidate
from planner.problem.context_groups import sequence_groups
from planner.problem.exchange_rates import are_even
from planner.problem.groups import expert_ranks, make_groups
from planner.problem.problem import Problem
from planner.schedule.run_mode import RunMode

EdgeCodecs = Mapping[tuple[Axis, int], Codec]
"""The codecs of messages between hosts, by axis (pp_forward or pp_backward) and the edge's earlier pipeline rank."""


@dataclass(frozen=True)
class Layout:
    """A placement written out to ranks and their groups, with its run mode; `microbatches` are per replica."""

    candidate: Candidate
    mode: RunMode
    ranks: tuple[PlanRank, ...]
    groups: tuple[PlanGroup, ...]
    microbatches: tuple[int, ...]
    codecs: EdgeCodecs = field(default_factory=dict)
    data_parallel: DataParallel = "flat"

    @property
    def layers(self) -> tuple[int, ...]:
        """The number of layers per stage."""
        return self.mode.layers

    @property
    def last_stage(self) -> int:
        """The stage with the head."""
        return len(self.layers) - 1

    @cached_property
    def first_shards(self) -> Mapping[tuple[int, int], PlanRank]:
        """The first tensor shard by (pipeline rank, replica)."""
        return {(rank.pp_rank, rank.dp_rank): rank for rank in self.ranks if rank.tp_rank == 0}

    @cached_property
    def groups_of_first_shards(self) -> tuple[PlanGroup, ...]:
        """The replica groups and edges of tensor shard 0. They stand for all tensor shards, which share a host."""
        return tuple(g for g in self.groups if g.axis != "tp" and self.ranks[g.ranks[0]].tp_rank == 0)

    def codec_of(self, group: PlanGroup) -> Codec:
        """Return the codec of the group's messages: "none" inside a host, and for groups that are not edges."""
        first, second = self.ranks[group.ranks[0]], self.ranks[group.ranks[-1]]
        return "none" if first.host == second.host else self.codecs.get((group.axis, first.pp_rank), "none")

    def with_codecs(self, codecs: EdgeCodecs) -> Layout:
        """Return the layout with these codecs on its edges and in their groups."""
        changed = replace(self, codecs=codecs)
        groups = (
            group if (codec := changed.codec_of(group)) == group.codec else group.model_copy(update={"codec": codec})
            for group in self.groups
        )
        return replace(changed, groups=tuple(groups))

    def stages_of(self, pp_rank: int) -> range:
        """Return the stages that a pipeline rank holds."""
        return range(pp_rank, len(self.layers), self.candidate.pp)

    def exchanged_parameters(self, job: Job, pp_rank: int, ranks_on_host: int) -> int:
        """Return a shard's parameters on a pipeline rank, each weighted by its traffic in the gradient exchange."""
        part = expert_exchange_part(self.candidate.execution(job), Peers(ranks_on_host, None))
        return self.candidate.weighed_parameters(job, self.layers, pp_rank, part)


def lay_out(
    problem: Problem,
    candidate: Candidate,
    mode: RunMode,
    ranks: tuple[PlanRank, ...],
    microbatches: tuple[int, ...],
    data_parallel: DataParallel = "flat",
) -> Layout:
    """Return the layout of `ranks` without codecs, with the groups they need on the problem's networks."""
    job = problem.job
    parameters = [candidate.rank_parameters(job, mode.layers, rank) for rank in range(candidate.pp)]
    shape = mode.chunks, data_parallel, job.model.tied_embeddings, sequence_groups(job), expert_ranks(job)
    groups = make_groups(problem.networks, ranks, parameters, *shape)
    return Layout(candidate, mode, ranks, groups, microbatches, data_parallel=data_parallel)


def may_be_hierarchical(ranks: Sequence[PlanRank]) -> bool:
    """Return True if replicas can sum gradients inside clusters first.

    All clusters with replicas of a stage must hold equally many of them, and some cluster several.
    """
    clusters: dict[int, list[str]] = {}
    for rank in ranks:
        if rank.tp_rank == 0:
            clusters.setdefault(rank.pp_rank, []).append(rank.cluster)
    return all(map(are_even, clusters.values())) and any(1 < len(set(each)) < len(each) for each in clusters.values())


def stages_of(pp: int, layers: Sequence[int], ranks: Sequence[PlanRank]) -> tuple[PlanStage, ...]:
    """Return the stages, each with its layers and with its clusters in the order of its replicas."""
    clusters: list[dict[str, None]] = [{} for _ in range(pp)]
    for rank in sorted(ranks, key=lambda rank: rank.dp_rank):
        clusters[rank.pp_rank][rank.cluster] = None
    starts = [sum(layers[:stage]) for stage in range(len(layers))]
    return tuple(
        PlanStage(index=stage, first_layer=start, stop_layer=start + held, clusters=tuple(clusters[stage % pp]))
        for stage, (start, held) in enumerate(zip(starts, layers, strict=True))
    )
