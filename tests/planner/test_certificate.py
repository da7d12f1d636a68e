"""The certificate of a plan: no placement of its degrees is better, and any solver finds the same from the file."""

from __future__ import annotations

import subprocess
from pathlib import Path

import highspy
import pulp
import pytest

from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import Plan
from planner.problem.candidates import candidate_of, enumerate_candidates
from planner.problem.problem import read_problem
from planner.search import certificate
from planner.search.closed_form import SiteBlock, blocks_step_s
from planner.search.solve import Solution, solve_replicas
from planner.search.whole_replicas import place_whole_replicas
from tests.planner.fleets import bed_job, cpu_inventory, gpt_7b, gpu_inventory, plan_anew, plan_for
from tests.seeds import few_of

SLOWER = {"emulate": {"forward_s_per_layer": 0.002, "backward_s_per_layer": 0.004, "slowdown": {"b": 2.5}}}
CASES = {
    "pipeline": (gpu_inventory([2, 2]), gpt_7b()),
    "nothing": (cpu_inventory([4]), bed_job(parallel={"pp": 2})),
    "both": (cpu_inventory([3, 1]), bed_job(parallel={"layers": [7, 3]})),
    "data": (cpu_inventory([2, 2]), bed_job(parallel={"dp": 4, "pp": 1}, compute=SLOWER)),
}


def solved_by_highs(path: Path) -> tuple[float, dict[str, float]]:
    """Objective and assignment of the program in the file."""
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.readModel(str(path))
    solver.run()
    names = [solver.getColName(column)[1] for column in range(solver.getNumCol())]
    return solver.getInfo().objective_function_value, dict(zip(names, solver.getSolution().col_value, strict=True))


def solved_by_cbc(path: Path) -> tuple[float, dict[str, float]]:
    """The same by the CBC that comes with PuLP."""
    answer = path.with_suffix(".sol")
    command = [
        pulp.PULP_CBC_CMD().path,
        str(path),
        "ratioGap",
        "0",
        "solve",
        "printingOptions",
        "all",
        "solution",
        str(answer),
    ]
    subprocess.run(command, capture_output=True, timeout=60, check=True)
    head, *rows = answer.read_text(encoding="utf-8").splitlines()
    return float(head.split()[-1]), {row.split()[1]: float(row.split()[2]) for row in rows}


def priced(plan: Plan, inventory: Inventory, values: dict[str, float]) -> float:
    """The closed form of an assignment of stages in blocks, by the names of its variables."""
    held = [name.split("_") for name, value in values.items() if name.startswith("n_") for _ in range(round(value))]
    problem = read_problem(inventory, plan.job)
    coeffs = problem.coefficients(candidate_of(plan))
    kinds = ("first", "only", "middle", "last")
    sites: dict[int, list[tuple[int, int]]] = {}
    for _, site, kind, layers in held:
        sites.setdefault(int(site), []).append((kinds.index(kind), int(layers)))
    order = sorted(sites, key=lambda site: values[f"P_{site}"])
    blocks = [SiteBlock((site,), tuple(layers for _, layers in sorted(sites[site]))) for site in order]
    assert sum(sum(block.layers) for block in blocks) == plan.job.model.num_layers
    assert sum(len(block.layers) for block in blocks) == plan.pp
    return blocks_step_s(coeffs, blocks)


@pytest.mark.parametrize("crossing", few_of(1, ["nothing", "pipeline", "both", "data"]))
def test_another_solver_finds_the_certificate_in_the_file(crossing: str, tmp_path: Path) -> None:
    inventory, job = CASES[crossing]
    plan = plan_for(inventory, job, lp=tmp_path / "placement.lp")
    least_s = plan.solve.certificate_s
    assert (plan.solve.crossing, plan.solve.programs > 0) == (crossing, True)
    assert least_s is not None
    assert plan.solve.objective_s * (1 - 1e-6) <= least_s <= plan.solve.placement_s * (1 + 1e-6)
    for solved in (solved_by_highs, solved_by_cbc):
        objective_s, values = solved(tmp_path / "placement.lp")
        assert objective_s == pytest.approx(least_s, rel=1e-5)
        if crossing in ("pipeline", "nothing"):
            assert priced(plan, inventory, values) == pytest.approx(least_s, rel=1e-5)


@pytest.mark.parametrize(("sizes", "slow"), few_of(1, [([1, 3], 2.5), ([2, 1, 1], 1.7), ([2, 2, 2], 1.2)]))
def test_replicas_of_the_program_are_no_slower_than_the_best_of_all_sets(sizes: list[int], slow: float) -> None:
    """Unequal clusters share micro-batches as the program finds best, and nothing is lost by dealing them out."""
    compute = {"emulate": {**SLOWER["emulate"], "slowdown": {"b": slow}}}
    job = bed_job(parallel={"pp": 1}, compute=compute, global_batch_size=60)
    problem = read_problem(cpu_inventory(sizes), job)
    for candidate in enumerate_candidates(job, problem.fleet):
        coeffs = problem.coefficients(candidate)
        dealt, solved_s = place_whole_replicas(coeffs), solve_replicas(coeffs, None, 10.0)
        assert (dealt is None) == (solved_s is None)
        assert dealt is None or solved_s == pytest.approx(dealt.objective_s, rel=1e-6)


@pytest.mark.slow
def test_a_program_that_the_time_limit_ends_certifies_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bound is no placement's seconds, so that the plan must not show it as the best of its degrees."""
    monkeypatch.setattr(certificate, "solve", lambda *_: Solution("time limit", None, None, bound_s=1e-3))
    assert plan_anew(*CASES["pipeline"]).solve.certificate_s is None
