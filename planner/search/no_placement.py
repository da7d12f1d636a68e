"""The errors of a search that found no placement, with the change that would make one fit."""

from __future__ import annotations

from collections.abc import Sequence

from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.records.job import Job
from holmes_core.units import format_memory
from planner.cost.engines import engine_of
from planner.problem.candidates import Candidate, more_recompute, with_sharded_weights
from planner.problem.group_places import replicas_together
from planner.problem.memory_room import stages_memory_bytes
from planner.problem.problem import Problem
from planner.search.placement import even_shares, usual_cut


def out_of_time(time_limit_s: float) -> HolmesError:
    """Return the error for a search that reached the time limit before it found anything."""
    return HolmesError(
        f"no plan was found within {time_limit_s:g} s",
        "raise --time-limit, or narrow the search: fix parallel.pp, dp or micro_batch_size in job.yaml",
        ANSWER_IS_NO,
    )


def out_of_memory(problem: Problem, candidates: Sequence[Candidate]) -> HolmesError:
    """Return an error that names the candidate nearest to fitting, and the bytes it lacks."""
    job, classes = problem.job, problem.fleet.classes
    known = [
        (each.hardware.memory_bytes, each.hosts[0].name) for each in classes if each.hardware.memory_bytes is not None
    ]
    if not known:
        return _no_arrangement(problem, candidates)
    largest, name = max(known)
    leanest = (_leanest(job, candidate) for candidate in candidates)
    needed, nearest = min((_even_memory_bytes(job, candidate), candidate) for candidate in leanest)
    if needed <= largest:
        return _no_arrangement(problem, candidates)
    zero = ", zero 3" if nearest.weight_shards > 1 else ""
    states = ", optimizer states in host memory" if nearest.optimizer_offload else ""
    layers = f" with the fixed cut {job.parallel.layers}" if job.parallel.layers else ""
    ways = "add hosts so that pp can grow" if "pp" in engine_of(job).degrees else "add hosts"
    ways = "set parallel.zero to 3 (FSDP)" if job.engine == "torch" and job.zero != 3 else ways
    return HolmesError(
        f"GPU memory: no candidate fits{layers}; the nearest (tp {nearest.tp}, pp {nearest.pp}, dp {nearest.dp}, "
        f"micro_batch_size {nearest.micro_batch_size}, recompute {nearest.recompute}{zero}{states}) needs "
        f"{format_memory(needed)} on a GPU, the largest (host {name}) has {format_memory(largest)}: "
        f"{format_memory(needed - largest)} short",
        f"use GPUs with at least {format_memory(needed)}, {ways}, or lower hidden_size, "
        "num_layers or seq_length in job.yaml; degrees fixed under `parallel` may also be in the way",
        ANSWER_IS_NO,
    )


def _no_arrangement(problem: Problem, candidates: Sequence[Candidate]) -> HolmesError:
    """Return the error for slots and memory that suffice separately but not together, in whole stages."""
    one = min(candidates, key=lambda candidate: candidate.tp * candidate.pp * candidate.dp)
    group_slots = ", ".join(f"{each.cluster} {each.num_group_slots(one.tp)}" for each in problem.fleet.classes)
    parts = f", cp {problem.job.cp}" if problem.job.cp > 1 else ""
    together = replicas_together(problem.job, one.tp)
    kept = f", {together} of each kept together since they share experts or sequences" if together > 1 else ""
    return HolmesError(
        f"no stage arrangement fits: even tp {one.tp}, pp {one.pp}, dp {one.dp // problem.job.cp}{parts} finds no "
        f"{one.pp} stages of {one.dp} "
        f"tensor groups with enough memory{kept} (tensor groups by kind of host: {group_slots})",
        "lower parallel.dp, parallel.pp, parallel.ep or parallel.cp in job.yaml, or leave them out",
        ANSWER_IS_NO,
    )


def _leanest(job: Job, candidate: Candidate) -> Candidate:
    """Return the candidate with the most recomputation that job.yaml allows, and ZeRO-3 if it is allowed."""
    more = more_recompute(job, candidate)
    return with_sharded_weights(job, candidate) or candidate if more is None else _leanest(job, more)


def _even_memory_bytes(job: Job, candidate: Candidate) -> int:
    """Return the bytes the fullest rank needs if layers are cut evenly, or as fixed.

    If first layers have no experts, the first stage may also hold fewer layers than others.
    """
    pp, cuts = candidate.pp, [usual_cut(job, candidate.pp)]
    if job.model.first_dense_layers and job.parallel.layers is None and pp > 1:
        number = job.model.num_layers
        cuts += [(held, *even_shares(number - held, pp - 1)) for held in range(1, cuts[0][0])]
    return min(max(stages_memory_bytes(job, candidate, cut)) for cut in cuts)
