"""Answers to the usual questions about a plan: other degrees, idle hosts, the cut, the wire, and the end of training.

Most answers are new plans under one more condition, each made in the remaining time; none is made after that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil, prod

from holmes_core.errors import HolmesError
from holmes_core.records.advice import PlanAnswer, PlannedStep
from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job
from holmes_core.records.plan import Plan
from holmes_core.units import format_duration, format_seconds
from planner.advice.ablation import ablations
from planner.advice.advise import faster_networks
from planner.advice.changes import FabricRate, LinkRate, MoreHost, TrunkRate, apply_changes
from planner.advice.left_out import left_out_sentences
from planner.layout.write_out import WrittenPlan, step_parts_of
from planner.make_plan import plan_quickly
from planner.problem.problem import Problem, read_problem
from planner.schedule.runners_up import why_slower
from planner.time_left import TimeLeft
from planner.tolerances import RELATIVE_TOLERANCE

WEEK_S = 7 * 86400.0
MAX_HOSTS = 64  # that the answer about a week may use
MAX_LINKS = 3  # whose rate is varied
FARTHEST = 5  # powers of two by which a rate is varied in each direction
CROSSES = {"pipeline": "pipeline", "data": "gradients", "both": "pipeline and gradients"}
TRIES = 3  # numbers of hosts that are tried for a week


def answers(inventory: Inventory, plan: Plan, left: TimeLeft) -> Iterator[PlanAnswer]:
    """Yield the answers until no time is left."""
    yield from _other_degrees(inventory, plan, left)
    yield from _idle(inventory, plan, left)
    yield from _cut(inventory, plan)
    yield from _wires(inventory, plan, left)
    yield from _week(inventory, plan, left)


def _in_short(problem: Problem, written: WrittenPlan, plan: Plan) -> PlannedStep:
    """Return a summary of a new plan, with its speed relative to `plan`, whose step has as many tokens."""
    candidate, step_s = written.placement.candidate, written.prediction.step_s
    return PlannedStep(
        tp=candidate.tp,
        pp=candidate.pp,
        dp=candidate.dp // plan.job.cp,
        micro_batch_size=candidate.micro_batch_size,
        crossing=written.placement.crossing(problem.fleet),
        hosts=len({rank.host for rank in written.layout.ranks}),
        step_s=step_s,
        ratio=plan.prediction.step_s / step_s if step_s else 1.0,
    )


def _under(inventory: Inventory, plan: Plan, job: Job, question: str, left: TimeLeft) -> PlanAnswer:
    """Return the answer from the plan of `job`: that it does not fit, or is slower, and why."""
    try:
        problem, written = plan_quickly(inventory, job, left.seconds)
    except HolmesError as error:
        return PlanAnswer(question=question, answer=f"no plan: {error.what}")
    short = _in_short(problem, written, plan)
    more = short.step_s / plan.prediction.step_s - 1 if plan.prediction.step_s else 0.0
    why = f"{more:.1%} slower: {why_slower(step_parts_of(plan.prediction), step_parts_of(written.prediction))}"
    if more <= RELATIVE_TOLERANCE:
        why = f"{-more:.1%} faster" if more < -RELATIVE_TOLERANCE else "equally fast; the plan takes the simpler one"
    return PlanAnswer(question=question, answer=f"{_degrees(short)}: {why}", plan=short)


def _degrees(short: PlannedStep) -> str:
    hosts = f"{short.hosts} host{'s' if short.hosts > 1 else ''}"
    crosses = "" if short.crossing == "nothing" else f", {CROSSES[short.crossing]} across clusters"
    return f"tp={short.tp} pp={short.pp} dp={short.dp} on {hosts}{crosses}"


def _other_degrees(inventory: Inventory, plan: Plan, left: TimeLeft) -> Iterator[PlanAnswer]:
    """Yield answers for other tensor degrees, fewer or more pipeline ranks, and half or double micro-batches."""
    fixed, fleet = plan.job.parallel, read_problem(inventory, plan.job).fleet
    most = max(len(host.gpus) for host in fleet.hosts.values())
    sizes = [size for exponent in range(most.bit_length()) if (size := 2**exponent) <= most]
    layers, batch = plan.job.model.num_layers, plan.job.global_batch_size
    tried = {
        "tp": sizes,
        "pp": [1, plan.pp // 2, plan.pp * 2] if plan.pp > 1 else [2],
        "micro_batch_size": [plan.micro_batch_size // 2, plan.micro_batch_size * 2],
    }
    for key, values in tried.items():
        now = getattr(plan, key)
        if getattr(fixed, key) is not None:
            yield PlanAnswer(
                question=f"why {key} {now}?", answer=f"job.yaml fixes it; --what-if {key}=... tries another"
            )
            continue
        for value in sorted({each for each in values if each and each != now}):
            possible = batch % value == 0 if key == "micro_batch_size" else key == "tp" or value <= layers
            if left.is_over or not possible:
                continue
            job, question = plan.job.with_parallel(**{key: value}), f"why not {key} {value}?"
            needed = prod(getattr(job.parallel, degree) or 1 for degree in ("tp", "pp", "dp"))
            if needed > (room := fleet.num_group_slots(1)):
                yield PlanAnswer(
                    question=question, answer=f"it takes {needed} ranks, but the hosts have room for {room}"
                )
            else:
                yield _under(inventory, plan, job, question, left)


def _idle(inventory: Inventory, plan: Plan, left: TimeLeft) -> Iterator[PlanAnswer]:
    """Yield answers for idle hosts or GPUs, and for the same tensor degree with as many of them as possible."""
    for sentence in left_out_sentences(plan, inventory):
        hosts, _, reason = sentence.removeprefix("Left out: ").partition(": ")
        yield PlanAnswer(question=f"why idle: {hosts}?", answer=reason.removesuffix("."))
    slots, used = read_problem(inventory, plan.job).fleet.num_group_slots(plan.tp), plan.pp * plan.dp
    fixed = plan.job.parallel
    ways = [(pp * (slots // pp), -pp) for pp in range(1, 2 * plan.pp + 1) if pp <= plan.job.model.num_layers]
    most, pp = max(way for way in ways)
    if most > used and fixed.pp is None and fixed.dp is None:
        job = plan.job.with_parallel(tp=plan.tp, pp=-pp, dp=most // (-pp * plan.job.cp))
        yield _under(inventory, plan, job, f"and with {most * plan.tp} ranks, not {used * plan.tp}?", left)


def _cut(inventory: Inventory, plan: Plan) -> Iterator[PlanAnswer]:
    """Yield the seconds of the stages, and the step with an even cut on the same hosts."""
    if plan.pp == 1:
        return
    layers = [stage.num_layers for stage in plan.stages]
    seconds = [max(row) for row in plan.prediction.microbatch_compute_s]
    slowest = f"a micro-batch takes {format_seconds(min(seconds))} to {format_seconds(max(seconds))} on a rank"
    question = f"why {', '.join(map(str, layers)) if len(layers) <= 8 else 'these'} layers?"
    if max(layers) - min(layers) <= 1:
        yield PlanAnswer(question=question, answer=f"an even cut; {slowest}")
        return
    (even,) = ablations(inventory, plan, ("uneven",))
    if even.step_s is None:
        yield PlanAnswer(question=question, answer=f"{slowest}; an even cut does not fit: {even.why}")
        return
    more = even.step_s / plan.prediction.step_s - 1
    compared = f"{more:.1%} slower" if more > 0 else f"{-more:.1%} faster"
    yield PlanAnswer(question=question, answer=f"{slowest}; an even cut is {compared}, {format_seconds(even.step_s)}")


def _wires(inventory: Inventory, plan: Plan, left: TimeLeft) -> Iterator[PlanAnswer]:
    """Yield the rates of the links between clusters, or inside the only one, at which the plan changes."""
    twice = [change for change, _ in faster_networks(inventory, plan.job) if not isinstance(change, TrunkRate)]
    between = [change for change in twice if isinstance(change, LinkRate)]
    for change in (between or twice)[:MAX_LINKS]:
        if left.is_over:
            return
        name = str(change).partition("=")[0]
        parts = [_where_it_changes(inventory, plan, change, sign, left) for sign in (-1, 1)]
        yield PlanAnswer(question=f"which rate of {name} changes the plan?", answer="; ".join(parts))


def _where_it_changes(inventory: Inventory, plan: Plan, twice: LinkRate | FabricRate, sign: int, left: TimeLeft) -> str:
    """Describe the first power of two below (`sign` -1) or above the present rate that changes the plan."""
    same, other = 0, FARTHEST + 1
    words, step = "", FARTHEST
    while other - same > 1 and not left.is_over:
        change = _scaled(twice, 2.0 ** (sign * step - 1))
        found = _another(change.applied_to(inventory), plan, left)
        if found is None:
            same = step
            if same == FARTHEST:
                break
        else:
            other, words = step, found
        step = (same + other) // 2
    end = _scaled(twice, 2.0 ** (sign * (other if words else same) - 1))
    rate = str(end).partition("=")[2]
    if words:
        return f"at {rate}: {words}"
    return f"the same {'down' if sign < 0 else 'up'} to {rate}" if same else "no time to try"


def _scaled(change: LinkRate | FabricRate, factor: float) -> LinkRate | FabricRate:
    return replace(change, bandwidth_bytes_per_s=change.bandwidth_bytes_per_s * factor)


def _another(inventory: Inventory, plan: Plan, left: TimeLeft) -> str | None:
    """Return a description of the plan on the changed inventory; None if it has the degrees and hosts of `plan`."""
    try:
        short = _in_short(*plan_quickly(inventory, plan.job, left.seconds), plan)
    except HolmesError as error:
        return f"no plan: {error.what}"
    same = (short.tp, short.pp, short.dp, short.crossing) == (plan.tp, plan.pp, plan.engine_dp, plan.solve.crossing)
    return None if same else f"{_degrees(short)}, {format_seconds(short.step_s)}"


def _week(inventory: Inventory, plan: Plan, left: TimeLeft) -> Iterator[PlanAnswer]:
    """Yield the steps and tokens of a week and, if the job takes longer, the number of additional hosts it needs."""
    job, step_s = plan.job, plan.prediction.step_s
    if not step_s:
        return
    steps, total_s = int(WEEK_S / step_s), job.steps * step_s
    tokens = steps * job.global_batch_size * job.model.seq_length
    room = f"a week has {steps} steps, {tokens / 1e9:.4g} billion tokens"
    whole = f"{'all' if total_s <= WEEK_S else 'not all'} {job.steps} steps, {format_duration(total_s)}"
    yield PlanAnswer(question="what fits into a week?", answer=f"{whole}; {room}")
    if total_s <= WEEK_S:
        return
    like = plan.nodes[-1].host
    count = ceil(len(plan.nodes) * (total_s / WEEK_S - 1))
    for _ in range(TRIES):
        if left.is_over or len(inventory.hosts) + count > MAX_HOSTS:
            return
        more = [MoreHost(f"more-{number}", like) for number in range(1, count + 1)]
        question = f"with {count} more host{'s' if count > 1 else ''} like {like}?"
        try:
            problem, written = plan_quickly(apply_changes(inventory, more), job, left.seconds)
        except HolmesError:
            return
        ends_s = job.steps * written.prediction.step_s
        short = _in_short(problem, written, plan)
        yield PlanAnswer(
            question=question, answer=f"all steps in {format_duration(ends_s)}: {_degrees(short)}", plan=short
        )
        if ends_s <= WEEK_S:
            return
        count = max(count + 1, ceil((len(plan.nodes) + count) * ends_s / WEEK_S) - len(plan.nodes))
