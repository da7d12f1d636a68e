"""The step of a plan without some of its features, as in the Holmes paper's ablation (arXiv 2312.03549).

    pipeline  clusters joined by the pipeline; without it, ranks are in the usual order, and gradients use one ring
    uneven    the cut by speed; without it, each stage has as many layers, with the remainder on the first ones
    overlap   the exchange of gradients and weights during compute; without it, it follows a stage's last backward

Everything else stays as planned. Several features together may gain less than the sum of their gains.
"""

from __future__ import annotations

from collections.abc import Sequence

from holmes_core.errors import HolmesError
from holmes_core.records.advice import Ablation
from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import Plan, PlanRank
from holmes_core.units import format_memory
from planner.layout.layout import Layout, lay_out
from planner.layout.layout_costs import LayoutCosts
from planner.layout.reprice import layout_of
from planner.layout.usual_order import usual_ranks
from planner.problem.group_places import misplaced_group
from planner.problem.problem import Problem, read_problem
from planner.schedule.buckets import BucketSeconds
from planner.search.placement import even_shares

FEATURES = ("pipeline", "uneven", "overlap")


def parse_features(text: str) -> tuple[str, ...]:
    """Return the features named in `text`.

    Raises:
        HolmesError: A feature is unknown (wrong usage).
    """
    named = [each.strip() for each in text.split(",")]
    unknown = [each for each in named if each not in FEATURES]
    if unknown:
        raise HolmesError(f"--without {text}: unknown feature {unknown[0]!r}", f"name any of {', '.join(FEATURES)}")
    return tuple(each for each in FEATURES if each in named)


def ablations(inventory: Inventory, plan: Plan, features: Sequence[str]) -> tuple[Ablation, ...]:
    """Return the step of `plan` without each feature and, if there are several, without all of them."""
    if not features:
        return ()
    sets = [(each,) for each in features] + ([tuple(features)] if len(features) > 1 else [])
    problem = read_problem(inventory, plan.job)
    return tuple(_ablation(problem, plan, each) for each in sets)


def _ablation(problem: Problem, plan: Plan, without: tuple[str, ...]) -> Ablation:
    layout = layout_of(problem, plan)
    ranks = usual_ranks(problem, layout.candidate) if "pipeline" in without else layout.ranks
    parted = misplaced_group(problem.job, ranks)
    if parted:
        places = ", ".join(dict.fromkeys(f"{rank.host} of {rank.cluster}" for rank in parted))
        return Ablation(without=without, step_s=None, why=f"ranks of one group would be on {places}")
    layout = _layout_without(problem, layout, ranks, without)
    fault = _memory_fault(problem, layout)
    if fault is not None:
        return Ablation(without=without, step_s=None, why=fault)
    return Ablation(without=without, step_s=_step_s(problem, layout, "overlap" not in without), why="")


def _layout_without(problem: Problem, layout: Layout, ranks: tuple[PlanRank, ...], without: Sequence[str]) -> Layout:
    mode = layout.mode
    if "uneven" in without:
        mode = mode._replace(layers=even_shares(sum(mode.layers), len(mode.layers)))
    data_parallel = "flat" if "pipeline" in without else layout.data_parallel
    again = lay_out(problem, layout.candidate, mode, ranks, layout.microbatches, data_parallel)
    return again.with_codecs(layout.codecs)


def _memory_fault(problem: Problem, layout: Layout) -> str | None:
    """Return a sentence about the first rank whose GPU lacks memory; None if all fit or memory is not known."""
    execution = layout.candidate.execution(problem.job)
    pp, microbatches = layout.candidate.pp, max(layout.microbatches)
    needed = tuple(layout.mode.rank_memory_bytes(problem.job.model, execution, pp, microbatches))
    for rank in layout.ranks:
        room = problem.fleet.hosts[rank.host].hardware.memory_bytes
        if room is not None and needed[rank.pp_rank] > room:
            asked = f"rank {rank.rank} needs {format_memory(needed[rank.pp_rank])}"
            return f"{asked}, but a GPU of {rank.host} has room for {format_memory(room)}"
    return None


def _step_s(problem: Problem, layout: Layout, overlaps: bool) -> float:
    costs = LayoutCosts(problem, layout)
    buckets = costs.buckets() if overlaps else [[_together(stage)] for stage in costs.buckets()]
    return costs.step_s(buckets)


def _together(buckets: Sequence[BucketSeconds]) -> BucketSeconds:
    """Return a stage's buckets as one. Its weights are gathered as soon as its gradients are reduced."""
    return BucketSeconds(
        backward_s=sum(each.backward_s for each in buckets),
        reduce_s=sum(each.reduce_s + each.gather_s for each in buckets),
        late_s=max(each.late_s for each in buckets),
        across_reduce_s=sum(each.across_reduce_s + each.across_gather_s for each in buckets),
    )
