"""The price of an engine's limits, and the gain of frozen parameters: the plan compared with one without them."""

from __future__ import annotations

from collections.abc import Iterator

from holmes_core.errors import HolmesError
from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import Plan
from holmes_core.units import format_seconds
from planner.cost.engines import FreeTrainer, LongContextTrainer, engine_of
from planner.cost.trained import stage_of
from planner.layout.write_out import WrittenPlan
from planner.make_plan import plan_quickly, planned_step_s
from planner.problem.context_groups import LONG_TOKENS, context_degrees
from planner.time_left import TimeLeft

WORTH = 1.005  # a price below half a percent is ignored


def engine_sentence(inventory: Inventory, plan: Plan, limit_s: float) -> tuple[str, ...]:
    """Return a sentence about features that the engine of `plan` lacks, and their price.

    Empty for the bundled runtime, or if `limit_s` seconds are too few for a plan with free choice.
    """
    trainer = plan.job.trainer
    if trainer is None or plan.order == "usual" or limit_s <= 0:
        return ()
    job = plan.job.model_copy(update={"trainer": FreeTrainer(engine=trainer.engine)})
    try:
        _, free = plan_quickly(inventory, job, limit_s)
    except HolmesError:  # no time
        return ()
    step_s, free_s = plan.prediction.step_s, free.prediction.step_s
    if step_s <= free_s * WORTH:
        return (f"Planned for {trainer.engine}: no choice that it lacks would make the step shorter.",)
    what = ", ".join(_differences(plan, free)) or "its own choices"
    return (
        f"Planned for {trainer.engine}: {what}, {step_s / free_s - 1:+.0%} per step ({format_seconds(step_s)}, not "
        f"{format_seconds(free_s)}) compared with a free choice at the same speed.",
    )


def long_context_sentence(inventory: Inventory, plan: Plan, limit_s: float) -> tuple[str, ...]:
    """Return a sentence about long sequences that the engine of `plan` cannot split over ranks, with the price."""
    trainer, tokens, left = plan.job.trainer, plan.job.model.seq_length, TimeLeft(limit_s)
    if trainer is None or tokens < LONG_TOKENS or engine_of(plan.job).context is not None:
        return ()
    name = trainer.engine
    sharing = plan.job.model_copy(update={"trainer": LongContextTrainer(engine=name)})
    said = f"Sequences of {tokens:,} tokens: {name} has no context parallelism, so each rank computes whole sequences"
    best_s, best = plan.prediction.step_s / WORTH, 1
    for cp in context_degrees(sharing)[1:]:
        try:
            step_s = planned_step_s(inventory, sharing.with_parallel(cp=cp), left.seconds, best_s)
        except HolmesError:  # no room, or no time
            continue
        if step_s < best_s:
            best_s, best = step_s, cp
    if best == 1:
        return (f"{said}.",)
    more = plan.prediction.step_s / best_s - 1
    return (f"{said}, {more:+.0%} per step compared with cp {best} at the same speed ({format_seconds(best_s)}).",)


def trained_sentence(inventory: Inventory, plan: Plan, limit_s: float) -> tuple[str, ...]:
    """Return a sentence about the share of parameters that trains, and the plan for training all of them; another if
    the frozen ones are random.

    The plan for all is left out if there is none, or none within `limit_s` seconds.
    """
    job = plan.job
    if job.trainable is None:
        return ()
    is_real = job.trainer is None and job.compute.emulate is None
    random = ("The frozen weights are random: the job has no `weights`.",) if is_real and job.weights is None else ()
    count = stage_of(job.model, job.trainable, job.model.num_layers, (True, True))
    said = f"{count.trained:,} parameters train, {count.trained / count.whole:.2%} of all"
    if plan.order == "usual" or limit_s <= 0:
        return (f"{said}.", *random)
    try:
        _, whole = plan_quickly(inventory, job.model_copy(update={"trainable": None}), limit_s)
    except HolmesError:  # no room, or no time
        return (f"{said}.", *random)
    candidate, step_s = whole.layout.candidate, format_seconds(whole.prediction.step_s)
    mine, theirs = (plan.tp, plan.pp, plan.engine_dp), (candidate.tp, candidate.pp, candidate.dp // job.cp)
    at, instead = ("" if mine == theirs else " at tp {}, pp {}, dp {}".format(*each) for each in (theirs, mine))
    my_s = format_seconds(plan.prediction.step_s)
    return (f"{said}; training all would take {step_s} per step{at} instead of {my_s}{instead}.", *random)


def _differences(plan: Plan, free: WrittenPlan) -> Iterator[str]:
    """Yield descriptions of the plan's differences from `free`."""
    candidate, mode = free.layout.candidate, free.layout.mode
    degrees = (plan.tp, plan.pp, plan.engine_dp), (candidate.tp, candidate.pp, candidate.dp // plan.job.cp)
    if mode.schedule != plan.schedule and plan.pp > 1:
        yield f"{plan.schedule} instead of {mode.schedule}"
    if degrees[0] != degrees[1]:
        mine, theirs = ("tp {} pp {} dp {}".format(*each) for each in degrees)
        yield f"{mine} instead of {theirs}"
    elif free.layout.layers != tuple(stage.num_layers for stage in plan.stages) and mode.chunks == plan.chunks:
        yield "another cut of the layers"
    if len(set(free.layout.microbatches)) > 1:
        yield "equal micro-batches instead of unequal ones"
    if free.layout.data_parallel != plan.data_parallel:
        yield f"{plan.data_parallel} data parallelism instead of {free.layout.data_parallel}"
    elif plan.data_parallel == "hierarchical" and engine_of(plan.job).copies_update:
        yield "optimizer states in each cluster instead of once"
