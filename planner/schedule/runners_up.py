"""Rank the search's best placements, run as fast as memory allows, and say why the runners-up lost."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from operator import itemgetter

from holmes_core.errors import ANSWER_IS_NO, HolmesError
from holmes_core.records.job import Job
from holmes_core.records.plan import Alternative, Crossing
from holmes_core.units import format_seconds
from planner.problem.candidates import RECOMPUTE, Candidate
from planner.problem.coefficients import Coefficients
from planner.problem.problem import Problem
from planner.schedule.assign_hosts import check_kept_groups, keeps_groups
from planner.schedule.other_shapes import other_placements
from planner.schedule.placement_simulator import PlacementSimulator, simulator_of
from planner.schedule.run_mode import SIMPLEST, RunMode, StepParts, simplest
from planner.schedule.simulate import MAX_SIMULATED
from planner.search.placement import Placement, PricedPlacement
from planner.time_left import TimeLeft
from planner.tolerances import RELATIVE_TOLERANCE

WORK_WHEN_LATE = 200_000  # forwards and backwards that are simulated even when late: a few tenths of a second
NEXT_BEST = 3  # runners-up, followed by the best of every other crossing


@dataclass(frozen=True)
class Contender:
    """A placement, the mode in which it runs, and its traffic between clusters."""

    found: PricedPlacement
    mode: RunMode
    crossing: Crossing

    @property
    def run(self) -> tuple[Placement, RunMode]:
        """The placement and its mode, independent of the fill assumed by its closed form."""
        return plain(self.found.placement), self.mode._replace(step_s=0.0)


def rank_contenders(
    problem: Problem,
    found: Sequence[PricedPlacement],
    next_best: int = NEXT_BEST,
    near: float = inf,
    left: TimeLeft | None = None,
    others: Iterable[Candidate] = (),
    within_s: float = inf,
) -> list[Contender]:
    """Return the fastest contender and its runners-up, by their seconds as simulated on classes of hosts.

    Candidates in `others` that may be faster are placed and take part; see other_shapes.py. Placements that take longer
    than `within_s` are left out, so the result may be empty.

    There are `next_best` runners-up; those beyond `NEXT_BEST` may exceed the fastest step by at most the share `near`.
    The best of every other crossing follows. When no time is `left`, only placements simulated so far are ranked.

    Raises:
        HolmesError: job.yaml fixes a schedule that none of them can run.
    """
    contest, left = _Contest(problem, next_best, near, within_s), left or TimeLeft(inf)
    contest.run(found, left)
    contest.run(other_placements(problem, others, min(within_s, contest.best_s), left), left)
    contenders = [
        Contender(each.found, simplest(each.simulated), each.crossing)
        for each in contest.entrants
        if each.simulated and each.best_s <= within_s
    ]
    if not contenders and found and within_s == inf:
        if not contest.entrants:
            check_kept_groups(problem, found[0].placement)
        raise _none_can_run(problem.job, len(found))
    return best_of_each_crossing(contenders, next_best)


def best_of_each_crossing(contenders: Sequence[Contender], next_best: int = NEXT_BEST) -> list[Contender]:
    """Return the fastest, the `next_best`, and then the best of every other crossing. Equal runs occur once."""
    order = fastest_first(contenders, [contender.mode.step_s for contender in contenders])
    unlike = list({contenders[index].run: contenders[index] for index in reversed(order)}.values())[::-1]
    ranked = unlike[: 1 + next_best]
    for each in unlike[1 + next_best :]:
        if each.crossing not in {other.crossing for other in ranked}:
            ranked.append(each)
    return ranked


class _Entrant:
    """A placement while its run modes are simulated."""

    def __init__(self, problem: Problem, found: PricedPlacement) -> None:
        self.found, self.crossing = found, found.placement.crossing(problem.fleet)
        self.simulator = simulator_of(problem, found.placement)
        self.simulated: list[RunMode] = []
        self.best_s = inf  # of the modes simulated so far
        microbatches = min(MAX_SIMULATED, *found.placement.microbatches)
        self.work = 2 * found.placement.candidate.pp * microbatches  # roughly the forwards and backwards of one mode

    def simulate(self, mode: RunMode, within_s: float) -> None:
        """Simulate `mode` for its seconds; above `within_s` a lower bound is enough."""
        self.simulated.append(self.simulator.timed(mode, within_s))
        self.best_s = min(self.best_s, self.simulated[-1].step_s)


class _Contest:
    """Placements that keep groups of ranks together. Each is simulated while it may still be ranked."""

    def __init__(self, problem: Problem, next_best: int, near: float, within_s: float) -> None:
        self._problem, self._next_best, self._near, self._within_s = problem, next_best, near, within_s
        self._entrants: dict[Placement, _Entrant] = {}

    @property
    def entrants(self) -> Collection[_Entrant]:
        """All placements so far, each once regardless of the fill in its closed form."""
        return self._entrants.values()

    @property
    def best_s(self) -> float:
        """The seconds of the fastest so far."""
        return min((each.best_s for each in self.entrants), default=inf)

    def run(self, found: Iterable[PricedPlacement], left: TimeLeft) -> None:
        """Add placements, and simulate the modes that may still be ranked, lowest bound first.

        A placement enters with a quick bound on all its modes, which a closer one then replaces. These two exclude most
        placements before each mode gets a bound.
        """
        number = count()  # among equal bounds, the earlier one comes first
        waiting: list[tuple[float, int, _Entrant, RunMode | None]] = []
        for each in found:
            if (key := plain(each.placement)) not in self._entrants and keeps_groups(self._problem, each.placement):
                entrant = self._entrants[key] = _Entrant(self._problem, each)
                waiting.append((entrant.simulator.paced_s, next(number), entrant, None))
        heapify(waiting)
        work, ranked_within_s = 0, self._ranked_within_s()
        while waiting and not (work > WORK_WHEN_LATE and left.is_over):
            bound_s, order, entrant, mode = heappop(waiting)
            within_s = ranked_within_s[entrant.crossing] * (1 + RELATIVE_TOLERANCE)
            if bound_s > within_s:
                continue
            if mode is not None:
                entrant.simulate(mode, within_s)
                self._problem.simulated.add(plain(entrant.found.placement))
                work, ranked_within_s = work + entrant.work, self._ranked_within_s()
                continue
            if bound_s < entrant.simulator.least_s:
                heappush(waiting, (entrant.simulator.least_s, order, entrant, None))
                continue
            for bounded in entrant.simulator.modes():
                heappush(waiting, (bounded.step_s, next(number), entrant, bounded))

    def _ranked_within_s(self) -> dict[Crossing, float]:
        """Return the seconds within which a placement may still be ranked, by crossing."""
        known = sorted(each.best_s for each in self.entrants)
        known += [inf] * (max(self._next_best, NEXT_BEST) + 1 - len(known))
        within_s = max(known[NEXT_BEST], min(known[self._next_best], known[0] * (1 + self._near)))
        found: dict[Crossing, float] = {}
        for each in self.entrants:
            found[each.crossing] = min(each.best_s, found.get(each.crossing, inf))
        return {crossing: min(max(within_s, best_s), self._within_s) for crossing, best_s in found.items()}


def plain(placement: Placement) -> Placement:
    """Return the placement with the fill of 1F1B, since its simulation does not depend on the fill."""
    return replace(placement, candidate=placement.candidate._replace(fill="1f1b"))


def _none_can_run(job: Job, num_placements: int) -> HolmesError:
    fixed = job.parallel
    return HolmesError(
        f"none of the {num_placements} best placements can run the schedule fixed in job.yaml "
        f"(schedule {fixed.schedule}, chunks {fixed.chunks}, recompute {fixed.recompute}): "
        "memory is too small for its micro-batches in flight, micro-batches do not fill rounds of pp, or a stage has "
        "fewer layers than chunks",
        "leave parallel.schedule and parallel.chunks out of job.yaml",
        ANSWER_IS_NO,
    )


def fastest_first(contenders: Sequence[Contender], seconds: Sequence[float]) -> list[int]:
    """Return the positions of the contenders by `seconds`; among equally fast ones, the simplest comes first.

    Simpler means, in this order: whole weights on each replica, fewer optimizer instances, less recomputation, a
    simpler schedule, a better closed form.
    """
    rest = sorted(range(len(contenders)), key=lambda index: seconds[index])
    order: list[int] = []
    while rest:
        equal = [index for index in rest if seconds[index] <= seconds[rest[0]] * (1 + RELATIVE_TOLERANCE)]
        order += sorted(equal, key=lambda index: _complexity(contenders[index]))
        rest = rest[len(equal) :]
    return order


def _complexity(contender: Contender) -> tuple[bool, int, int, int, float, Candidate]:
    candidate = contender.found.placement.candidate
    copies = candidate.weight_shards > 1, candidate.instances
    recompute, schedule = RECOMPUTE.index(candidate.recompute), SIMPLEST.index(contender.mode.schedule)
    return *copies, recompute, schedule, contender.found.objective_s, candidate


def parts_by_class(problem: Problem, contender: Contender) -> StepParts:
    """Return the parts of the contender's step as simulated on classes of hosts."""
    return simulator_of(problem, contender.found.placement).parts(contender.mode)


def alternative(other: Contender, parts: StepParts, best: StepParts, scale: float = 1.0) -> Alternative:
    """Return a runner-up and why it lost to `best`. Its step is `scale` times the sum of its parts."""
    candidate, mode = other.found.placement.candidate, other.mode
    return Alternative(
        crossing=other.crossing,
        tp=candidate.tp,
        pp=candidate.pp,
        dp=candidate.dp,
        micro_batch_size=candidate.micro_batch_size,
        recompute=candidate.recompute,
        zero=3 if candidate.weight_shards > 1 else 1,
        schedule=mode.schedule,
        chunks=mode.chunks,
        step_s=parts.step_s * scale,
        why=why_slower(best, parts),
    )


def why_slower(best: StepParts, other: StepParts) -> str:
    """Return the part of the step that grew most, and by how much."""
    if other.step_s <= best.step_s * (1 + RELATIVE_TOLERANCE):
        return "equally fast; the plan prefers less recomputation, then a simpler schedule, then the closed form's best"
    grown = (
        (other.compute_s - best.compute_s, "the busiest rank computes"),
        (other.bubble_s - best.bubble_s, "ranks wait for one another"),
        (other.edges_s - best.edges_s, "messages between stages take"),
        (other.gradients_s - best.gradients_s, "gradients take"),
        (other.optimizer_s - best.optimizer_s, "the optimizer takes"),
    )
    longer_s, what = max(grown, key=itemgetter(0))
    return f"{what} {format_seconds(longer_s)} longer"


def choose_schedule(job: Job, coeffs: Coefficients, placement: Placement) -> RunMode | None:
    """Return the fastest mode for `placement`; None if memory or micro-batches rule out all that job.yaml allows."""
    simulator = PlacementSimulator(job, coeffs, placement)
    run: list[RunMode] = []
    for mode in sorted(simulator.modes(), key=lambda mode: mode.step_s):
        within_s = min((each.step_s for each in run), default=inf) * (1 + RELATIVE_TOLERANCE)
        if mode.step_s <= within_s:
            run.append(simulator.timed(mode, within_s))
    return simplest(run) if run else None
