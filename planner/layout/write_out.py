"""Placements written out with ranks and groups, and predicted: the plan, the runners-up, the usual order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holmes_core.records.plan import Alternative, Prediction
from planner.cost.engines import engine_of
from planner.layout.edge_codecs import choose_codecs
from planner.layout.layout import Layout, lay_out, may_be_hierarchical
from planner.layout.predict import predict, predict_step_s
from planner.layout.rail_matching import match_rails
from planner.layout.usual_order import best_usual, usual_ranks
from planner.problem.group_places import misplaced_group
from planner.problem.problem import Problem
from planner.schedule.assign_hosts import assign, hosts_by_stage, number_ranks
from planner.schedule.run_mode import StepParts
from planner.schedule.runners_up import Contender, alternative, choose_schedule, fastest_first, parts_by_class
from planner.search.branch_and_bound import SearchResult
from planner.search.placement import Placement
from planner.time_left import TimeLeft
from planner.tolerances import RELATIVE_TOLERANCE

MAX_RANKS_WRITTEN = 4096  # in all; with more, contenders are compared by classes and only the best is written out
MAX_FORWARDS_WRITTEN = 60_000  # in one replica of each, in all: likewise


@dataclass(frozen=True)
class WrittenPlan:
    """A placement that is written out, and its prediction."""

    placement: Placement
    layout: Layout
    prediction: Prediction


def write_best(
    problem: Problem, contenders: Sequence[Contender], left: TimeLeft
) -> tuple[WrittenPlan, tuple[Alternative, ...]]:
    """Return the fastest contender written out, and the others, fastest first.

    If it is cheap and there is time, all are written out and compared by their predictions. Otherwise, the order of the
    simulation by classes stands. The seconds of the others are then scaled by the ratio of the best one's prediction to
    its simulation.
    """
    all_written = [_write_out(problem, contenders[0])]
    for each in contenders[1:] if not _are_many(contenders) else ():
        if left.is_over:
            break
        all_written.append(_write_out(problem, each))
    if len(all_written) < len(contenders):
        written = all_written[0]
        own, *others = (parts_by_class(problem, each) for each in contenders)
        scale = written.prediction.step_s / own.step_s if own.step_s else 1.0
        rest = zip(contenders[1:], others, strict=True)
        return written, tuple(alternative(each, theirs, own, scale) for each, theirs in rest)
    first, *slower = fastest_first(contenders, [written.prediction.step_s for written in all_written])
    parts = [step_parts_of(written.prediction) for written in all_written]
    return all_written[first], tuple(alternative(contenders[at], parts[at], parts[first]) for at in slower)


def best_step_s(problem: Problem, contenders: Sequence[Contender]) -> float:
    """Return the seconds of the step that `write_best` would predict for the fastest contender."""
    written = contenders[:1] if _are_many(contenders) else contenders
    seconds = [contender_step_s(problem, each) for each in written]
    return seconds[fastest_first(written, seconds)[0]]


def contender_step_s(problem: Problem, contender: Contender) -> float:
    """Return the predicted seconds of the contender's step, written out."""
    return predict_step_s(problem, lay_out_contender(problem, contender))


def _are_many(contenders: Sequence[Contender]) -> bool:
    candidates = [each.found.placement.candidate for each in contenders]
    forwards = sum(each.found.placement.candidate.pp * max(each.found.placement.microbatches) for each in contenders)
    return sum(c.tp * c.pp * c.dp for c in candidates) > MAX_RANKS_WRITTEN or forwards > MAX_FORWARDS_WRITTEN


def step_parts_of(prediction: Prediction) -> StepParts:
    """Return the parts by which runners-up are compared."""
    return StepParts(
        prediction.compute_s + prediction.exposed_tp_s,
        prediction.bubble_s,
        prediction.exposed_edge_s,
        prediction.exposed_dp_s,
        prediction.optimizer_s,
    )


def _write_out(problem: Problem, contender: Contender) -> WrittenPlan:
    layout = lay_out_contender(problem, contender)
    return WrittenPlan(contender.found.placement, layout, predict(problem, layout))


def lay_out_contender(problem: Problem, contender: Contender) -> Layout:
    """Return the contender's ranks and groups, with the best codecs and levels of data parallelism."""
    placement, tp = contender.found.placement, contender.found.placement.candidate.tp
    assigned = assign(problem, placement)
    group_slots = match_rails(assigned, problem.fleet, problem.rails, tp, wraps=contender.mode.chunks > 1)
    ranks = number_ranks(problem.job, group_slots, hosts_by_stage(group_slots), tp)
    flat = lay_out(problem, placement.candidate, contender.mode, ranks, placement.microbatches)
    return choose_codecs(problem, _with_clusters_first(problem, flat))


def lay_out_again(problem: Problem, layout: Layout) -> Layout:
    """Return the same ranks on the networks of `problem`, with the best codecs and levels there."""
    parts = layout.candidate, layout.mode, layout.ranks, layout.microbatches
    return choose_codecs(problem, _with_clusters_first(problem, lay_out(problem, *parts)))


def _with_clusters_first(problem: Problem, flat: Layout) -> Layout:
    """Return the layout with data parallelism in two levels, if that is possible and faster."""
    candidate, engine = flat.candidate, engine_of(problem.job)
    if candidate.copies == 1 and (engine.copies_update or candidate.weight_shards > 1):
        return flat
    if not engine.two_levels or not may_be_hierarchical(flat.ranks):
        return flat
    parts = flat.candidate, flat.mode, flat.ranks, flat.microbatches
    tried = lay_out(problem, *parts, data_parallel="hierarchical")
    if candidate.copies > 1:
        return tried
    flat_s, tried_s = (predict_step_s(problem, layout) for layout in (flat, tried))
    return tried if tried_s < flat_s * (1 - RELATIVE_TOLERANCE) else flat


def write_usual(problem: Problem, result: SearchResult) -> WrittenPlan | None:
    """Return the usual order at its best, under 1F1B unless job.yaml fixes the schedule; None if no even cut fits."""
    found = best_usual(problem, result.ranked)
    if found is None:
        return None
    job = problem.job
    plain = job.parallel.schedule or ("interleaved" if (job.parallel.chunks or 1) > 1 else "1f1b")
    as_usual = job.with_parallel(schedule=plain)
    candidate = found.placement.candidate
    mode = choose_schedule(as_usual, problem.coefficients(candidate), found.placement)
    if mode is None:
        return None
    ranks = usual_ranks(problem, candidate)
    if misplaced_group(job, ranks):
        return None
    layout = lay_out(problem, candidate, mode, ranks, found.placement.microbatches)
    return WrittenPlan(found.placement, layout, predict(problem, layout))
