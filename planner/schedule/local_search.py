"""Improve the best contenders by local search until no neighbour is better.

The closed form, which finds placements, counts neither the depth in flight nor the waits of particular schedules. So
the search simulates the best one's neighbours under every schedule. They have one micro-batch more or less in flight, a
layer, stage or run of stages moved, or all stages of one class of hosts moved to another class with room. At the end it
also starts from all orders of the best one's clusters. It skips neighbours with a lower bound above the best.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, groupby, permutations, product
from math import inf

from planner.cost.engines import engine_of
from planner.problem.candidates import Candidate, has_fixed_cut
from planner.problem.problem import Problem
from planner.schedule.assign_hosts import keeps_groups
from planner.schedule.least_memory import WORTH_MEMORY, in_least_memory
from planner.schedule.placement_simulator import PlacementSimulator, simulator_of
from planner.schedule.run_mode import RunMode
from planner.schedule.runners_up import Contender, best_of_each_crossing, fastest_first, plain, rank_contenders
from planner.schedule.simulate import MAX_SIMULATED
from planner.search.placement import Placement, PricedPlacement, even_shares
from planner.time_left import TimeLeft
from planner.tolerances import RELATIVE_TOLERANCE

STARTS = 16  # contenders to start from in addition to the best, if they are near it
NEAR = 0.1  # largest excess over the best, as a share of its step
MAX_STAGES = 6  # of longer pipelines, only the depth and the order of all stages change, not single stages
MAX_CLASSES = 4  # classes of hosts, for moves of stages from one to another
MAX_RUNS = 4  # runs of stages on the same hosts; up to this number, all their orders are tried
MAX_WORK = 400_000  # simulated forwards and backwards, once for depths and once for changes: half a second each
MORE_WORK = 2_000_000  # the same, for all starts with the degrees of the best
EVENLY = (1, 2, 4, 8)  # additional micro-batches in flight on all edges, tried everywhere: deeper is not always faster
BOUND_WORK, SIMULATION_WORK = 10, 500  # of a bound, per square of the number of stages; of the shortest simulation


def rank_improved(
    problem: Problem,
    found: Sequence[PricedPlacement],
    candidates: Sequence[Candidate] = (),
    left: TimeLeft | None = None,
    max_starts: int = STARTS,
    within_s: float = inf,
) -> list[Contender]:
    """Return contenders as `rank_contenders` does, each improved by local search until no neighbour is better.

    The search starts from `found` and from placements of `candidates` that may be faster. It first makes all of them
    deeper or shallower, and then changes the best within a limit of work. Finally, it runs the best and those near it
    in the least memory that is worth it.

    The search starts from the best and at most `max_starts` others; fewer starts also lower the limits of work. It
    spends more work on all starts with the degrees of the best. It skips everything for which no time is `left`. No
    start takes longer than `within_s`, so there may be none.
    """
    left = left or TimeLeft(inf)
    depths, climb = (_Climb(problem, MAX_WORK * max_starts // STARTS, left) for _ in range(2))
    starts = rank_contenders(problem, climb.with_other_cuts(found), max_starts, NEAR, left, candidates, within_s)
    if not starts:
        return []
    deeper = _fastest_first([depths.up_from(each, changed=False) for each in starts])
    climbed, seen = list[Contender](), set[tuple[int, ...]]()
    for each in deeper:  # of equal degrees and micro-batch size, only the best is changed
        kind = (*_degrees(each), each.found.placement.candidate.micro_batch_size)
        climbed.append(each if kind in seen else climb.up_from(each, changed=True))
        seen.add(kind)
    ranked = best_of_each_crossing(climbed)
    last = _Climb(problem, MORE_WORK * max_starts // STARTS, left)
    alike = [ranked[0], *(each for each in deeper if _degrees(each) == _degrees(ranked[0]))]
    ranked = best_of_each_crossing([*(last.up_from(each, changed=True) for each in alike), *ranked])
    others = [last.up_from(each, changed=True) for each in last.in_other_orders(ranked[0])]
    faster_s = ranked[0].mode.step_s * (1 - RELATIVE_TOLERANCE)
    ranked = best_of_each_crossing([*ranked, *(each for each in others if each.mode.step_s < faster_s)])
    near_s = ranked[0].mode.step_s * (1 + WORTH_MEMORY)
    near = (
        in_least_memory(problem, each) if each.mode.step_s <= near_s and not left.is_over else each for each in ranked
    )
    return best_of_each_crossing(list(near))


def _degrees(contender: Contender) -> tuple[int, int, int]:
    candidate = contender.found.placement.candidate
    return candidate.tp, candidate.pp, candidate.dp


def _fastest_first(contenders: Sequence[Contender]) -> list[Contender]:
    return [contenders[at] for at in fastest_first(contenders, [each.mode.step_s for each in contenders])]


@dataclass(frozen=True)
class _RunChoice:
    """A placement with a mode to run it in; `mode.step_s` is a lower bound."""

    placement: Placement
    simulator: PlacementSimulator
    mode: RunMode


class _Climb:
    """A climb from one contender to better ones, within a limit of work."""

    def __init__(self, problem: Problem, work: int, left: TimeLeft) -> None:
        self._problem, self._work, self._left = problem, work, left

    def up_from(self, contender: Contender, changed: bool) -> Contender:
        """Return the best contender that the climb reaches; only its depth may change unless `changed`."""
        best, tried = contender, set[tuple[Placement, RunMode]]()
        while (better := self._step(best, changed, tried)) is not None:
            best = better
        return best

    def with_other_cuts(self, found: Sequence[PricedPlacement]) -> list[PricedPlacement]:
        """Return `found`, and its long pipelines again with their fullest stages first, which are often far better.

        If first layers have no experts, even cuts are added: the search assumes that the first stage holds all of these
        layers, so another stage may have fewer layers than chunks.
        """
        if has_fixed_cut(self._problem.job):
            return list(found)
        long = [each for each in found if each.placement.candidate.pp > MAX_STAGES]
        others = [replace(each, placement=_fullest_first(each.placement)) for each in long]
        if self._problem.job.model.first_dense_layers:
            others += [replace(each, placement=_even(each.placement)) for each in found]
        return [*found, *(each for each in others if self._may_run(each.placement))]

    def in_other_orders(self, best: Contender) -> list[Contender]:
        """Return the fastest contenders with the runs of `best` in other orders, each run on its own hosts.

        The closed form does not distinguish orders with equal wires, and one step of a climb moves at most two runs.
        """
        if has_fixed_cut(self._problem.job):
            return []
        placement = best.found.placement
        orders = [each for each in _runs_reordered(placement) if each != placement and self._may_run(each)]
        found = [replace(best.found, placement=each) for each in orders]
        within_s = best.mode.step_s * (1 + NEAR)
        return rank_contenders(self._problem, found, left=self._left, within_s=within_s)

    def _step(self, best: Contender, changed: bool, tried: set[tuple[Placement, RunMode]]) -> Contender | None:
        """Return the best neighbour; None if none is better, or the work is used up."""
        better: Contender | None = None
        within_s = best.mode.step_s
        for choice in sorted(self._nearby(best, changed, tried), key=lambda choice: choice.mode.step_s):
            pp, simulated = choice.placement.candidate.pp, min(MAX_SIMULATED, *choice.placement.microbatches)
            work = 4 * pp * simulated + SIMULATION_WORK
            if work > self._work or self._left.is_over or choice.mode.step_s >= within_s * (1 - RELATIVE_TOLERANCE):
                break
            self._work -= work
            self._problem.simulated.add(plain(choice.placement))
            mode = choice.simulator.timed(choice.mode, within_s)
            if mode.step_s < within_s * (1 - RELATIVE_TOLERANCE):
                found = replace(best.found, placement=choice.placement)
                better = Contender(found, mode, choice.placement.crossing(self._problem.fleet))
                within_s = mode.step_s
        return better

    def _nearby(self, best: Contender, changed: bool, tried: set[tuple[Placement, RunMode]]) -> Iterator[_RunChoice]:
        """Yield the neighbours that memory and job.yaml allow, each once."""
        placement = best.found.placement
        for each in self._placements(placement) if changed else (placement,):
            if self._work <= 0 or self._left.is_over:
                return
            simulator = simulator_of(self._problem, each)
            if not simulator.may_take_less(best.mode.step_s):
                continue
            modes = simulator.allowed_modes(eager=False) if changed else ()
            for mode in (*modes, *_deeper_or_shallower(self._problem, best.mode, each)):
                if self._work > 0 and (each, mode) not in tried and simulator.fits(mode):
                    tried.add((each, mode))
                    self._work -= BOUND_WORK * placement.candidate.pp**2
                    yield _RunChoice(each, simulator, simulator.bounded(mode))

    def _placements(self, placement: Placement) -> Iterator[Placement]:
        """Yield placements with a layer moved to another stage, or stages moved to another position or class.

        A stage moves with or without its layers. Of two stages, order and cut may also change at once, since another
        order may be better only with another cut. Runs of stages on the same hosts are swapped too. A long pipeline is
        only reordered as a whole.
        """
        if has_fixed_cut(self._problem.job):
            return
        is_short = placement.candidate.pp <= MAX_STAGES
        found = self._changed(placement) if is_short else [placement, _fullest_first(placement)]
        yield from filter(self._may_run, found)

    def _may_run(self, placement: Placement) -> bool:
        """Return True if its stages fit into memory, and its clusters keep the replicas that belong together."""
        coeffs = self._problem.coefficients(placement.candidate)
        rooms = zip(placement.layers, placement.sites, coeffs.capacity, strict=True)
        fits = min(placement.layers) > 0 and all(held <= room[c] for held, row, room in rooms for c in set(row))
        return fits and self._keeps_shards(placement) and keeps_groups(self._problem, placement)

    def _keeps_shards(self, placement: Placement) -> bool:
        """Return True if each of a stage's clusters has the number of replicas that share weights or an instance."""
        candidate, classes = placement.candidate, self._problem.fleet.classes
        if candidate.weight_shards == candidate.copies == 1:
            return True
        clusters = (Counter(classes[c].cluster for c in row) for row in placement.sites)
        return all(set(held.values()) == {candidate.dp // candidate.copies} for held in clusters)

    def _changed(self, placement: Placement) -> Iterable[Placement]:
        """Return placements with a change to one or two stages, or to a class, even if they exceed memory."""
        candidate, layers, sites = placement.candidate, placement.layers, placement.sites
        found = list[Placement]()
        for giver, taker in permutations(range(candidate.pp), 2):
            moved = [held - (s == giver) + (s == taker) for s, held in enumerate(layers)]
            found.append(replace(placement, layers=tuple(moved)))
            order = [s for s in range(candidate.pp) if s != giver]
            order.insert(taker, giver)
            rows, held = tuple(sites[s] for s in order), tuple(layers[s] for s in order)
            if rows != sites:
                cuts = (layers, held) if candidate.pp > 2 else (layers, held, tuple(moved))
                found += [replace(placement, sites=rows, layers=cut) for cut in cuts]
        return dict.fromkeys([*found, *_with_runs_swapped(placement), *self._on_another_class(placement)])

    def _on_another_class(self, placement: Placement) -> Iterator[Placement]:
        """Yield placements with all stages of one class of hosts moved to another class with room."""
        slots = self._problem.coefficients(placement.candidate).group_slots
        held = Counter(c for row in placement.sites for c in row)
        if len(slots) > MAX_CLASSES:
            return
        for giver, taker in product(held, range(len(slots))):
            if giver != taker and held[giver] + held[taker] <= slots[taker]:
                rows = [[taker if c == giver else c for c in row] for row in placement.sites]
                replicas = sorted(zip(zip(*rows, strict=True), placement.microbatches, strict=True))
                columns, microbatches = zip(*replicas, strict=True)
                sites = tuple(zip(*columns, strict=True))
                if all(list(row) == sorted(row) for row in sites):
                    yield replace(placement, sites=sites, microbatches=microbatches)


def _runs_reordered(placement: Placement) -> Iterator[Placement]:
    """Yield the placement with its runs of stages in every order, if there are 3 to `MAX_RUNS` runs."""
    runs = _runs(placement)
    if 2 < len(runs) <= MAX_RUNS:
        for order in permutations(runs):
            yield _in_order(placement, [s for run in order for s in run])


def _runs(placement: Placement) -> list[list[int]]:
    """Return the stages of each run: neighbouring stages on the same hosts."""
    return [list(run) for _, run in groupby(range(placement.candidate.pp), key=lambda s: placement.sites[s])]


def _with_runs_swapped(placement: Placement) -> Iterator[Placement]:
    """Yield placements with two runs of stages swapped, together with their layers."""
    runs = _runs(placement)
    for one, other in combinations(range(len(runs)), 2):
        swapped = [*runs[:one], runs[other], *runs[one + 1 : other], runs[one], *runs[other + 1 :]]
        yield _in_order(placement, [s for run in swapped for s in run])


def _fullest_first(placement: Placement) -> Placement:
    """Return the placement with its fullest stages first: their micro-batches in flight wait least for messages."""
    return _in_order(placement, sorted(range(placement.candidate.pp), key=lambda s: -placement.layers[s]))


def _even(placement: Placement) -> Placement:
    """Return the placement with layers cut evenly."""
    return replace(placement, layers=even_shares(sum(placement.layers), placement.candidate.pp))


def _in_order(placement: Placement, order: Sequence[int]) -> Placement:
    """Return the placement with its stages in that order, together with their hosts and layers."""
    layers, sites = tuple(placement.layers[s] for s in order), tuple(placement.sites[s] for s in order)
    return replace(placement, layers=layers, sites=sites)


def _deeper_or_shallower(problem: Problem, mode: RunMode, placement: Placement) -> Iterator[RunMode]:
    """Yield modes as deep as `mode`, one micro-batch deeper or shallower on one or all edges, and evenly deep."""
    fixed, pp, most = problem.job.parallel, placement.candidate.pp, max(placement.microbatches) - 1
    may_deepen = "eager" in engine_of(problem.job).schedules and fixed.schedule in (None, "eager")
    if pp == 1 or not may_deepen or (fixed.chunks or 1) > 1:
        return
    now = mode.extra_in_flight or (0,) * (pp - 1)
    rows = {now: None, tuple(extra + 1 for extra in now): None, tuple(max(0, extra - 1) for extra in now): None}
    for edge in range(pp - 1):
        for change in (1, -1):
            rows[tuple(max(0, extra + change * (e == edge)) for e, extra in enumerate(now))] = None
    for extra in EVENLY:
        rows[(extra,) * (pp - 1)] = None
    for row in rows:
        if 0 < max(row) <= most:
            yield RunMode("eager", 1, row, placement.layers, 0.0)
