"""Which branch the search refines next, which it closes and which it leaves open: with refinements made up by hand."""

from __future__ import annotations

from planner.problem.candidates import Candidate
from planner.problem.problem import read_problem
from planner.search.branch_and_bound import explore
from planner.search.placement import Placement, PricedPlacement
from planner.search.refinements import (
    Branch,
    Form,
    Refinement,
    SearchState,
    early_bound,
    exchange_bound,
    fixed_cut_placement,
    fixed_cut_program,
    full_lower_bound,
    greedy_placements,
    open_paces,
    programs,
    refinements_of,
    whole_replicas,
)
from tests.planner.fleets import bed_job, cpu_inventory


def new_state() -> SearchState:
    """A search on one host with all the time it needs."""
    return SearchState(read_problem(cpu_inventory([1]), bed_job(parallel={})), 1000.0)


def branch(dp: int, bound_s: float, *refinements: Refinement, form: Form = "blocks") -> Branch:
    """One of candidates that are told apart by dp."""
    return Branch(bound_s, Candidate(1, 1, dp, 1), form, refinements)


class Script:
    """Refinements that return, or find, what a test says, and the order in which they were taken."""

    def __init__(self) -> None:
        self.taken: list[str] = []

    def bound(self, name: str, bound_s: float | None) -> Refinement:
        """Returns `bound_s`, None to close the branch."""

        def refine(_: SearchState, __: Branch) -> float | None:
            self.taken.append(name)
            return bound_s

        return refine

    def find(self, name: str, objective_s: float) -> Refinement:
        """Finds a placement of `objective_s`, the last of its branch."""

        def refine(state: SearchState, refined: Branch) -> None:
            self.taken.append(name)
            placement = Placement(refined.candidate, (10,), ((0,) * refined.candidate.dp,), (1,) * refined.candidate.dp)
            state.keep(refined.key, PricedPlacement(objective_s, placement))

        return refine


def test_the_branch_of_the_lowest_bound_is_refined_next_and_its_refinements_in_order() -> None:
    script = Script()
    one = branch(
        1, 1.0, script.bound("one, first", 5.0), script.bound("one, second", 6.0), script.bound("one, third", None)
    )
    two = branch(2, 3.0, script.bound("two, first", 4.0), script.bound("two, second", None))
    explore(new_state(), [two, one])
    assert script.taken == ["one, first", "two, first", "two, second", "one, second", "one, third"]


def test_a_bound_never_falls() -> None:
    script, state = Script(), new_state()
    other = branch(2, 4.0, script.bound("lower", 1.0), script.find("next", 6.0))
    explore(state, [branch(1, 3.0, script.bound("higher", 4.5), script.find("best", 5.0)), other])
    assert script.taken == ["higher", "lower", "next", "best"]


def test_of_a_closed_branch_programs_are_left_out_and_its_bound_stays_open() -> None:
    script, state = Script(), new_state()
    explore(state, [branch(1, 1.0, script.find("best", 5.0)), branch(2, 5.0, open_paces)])
    assert state.incumbent_s == 5.0
    assert state.open_bounds_s == [5.0]


def test_a_program_that_its_share_of_the_time_ended_leaves_its_bound_open() -> None:
    script, state = Script(), new_state()

    def ends_early(state: SearchState, _: object) -> None:
        state.ran_out = True
        state.leave_open(4.0)

    explore(state, [branch(1, 1.0, script.find("best", 5.0))])
    assert not state.ran_out
    explore(state, [branch(2, 2.0, ends_early)])
    assert (state.is_late, state.ran_out, state.open_bounds_s) == (False, True, [4.0])


def test_a_closed_branch_of_mixed_form_is_left_open() -> None:
    script, state = Script(), new_state()
    mixed = branch(2, 6.0, script.find("mixed", 7.0), form="mixed")
    explore(state, [branch(1, 1.0, script.find("best", 5.0)), mixed])
    assert script.taken == ["best"]
    assert state.open_bounds_s == [6.0]


def test_progress_counts_the_branches_that_have_no_more_refinements() -> None:
    script = Script()
    told: list[tuple[int, int, float | None]] = []
    one = branch(1, 1.0, script.bound("one", 4.0), script.find("found", 5.0))
    two = branch(2, 2.0, script.bound("two", None))
    explore(new_state(), [one, two], lambda *each: told.append(each))
    assert told == [(1, 2, None), (2, 2, 5.0)]


def test_refinements_come_in_the_order_of_what_they_cost() -> None:
    bounds = (early_bound, exchange_bound, full_lower_bound)
    assert refinements_of(bed_job(parallel={}), "blocks") == (*bounds, greedy_placements, open_paces, programs)
    assert refinements_of(bed_job(parallel={}), "mixed") == (*bounds, open_paces, programs)
    assert refinements_of(bed_job(parallel={}), "whole replicas") == (whole_replicas,)
    fixed = bed_job(parallel={"layers": [7, 3]})
    assert refinements_of(fixed, "blocks") == (*bounds, fixed_cut_placement, fixed_cut_program)
    assert refinements_of(fixed, "mixed") == (*bounds, fixed_cut_program)
