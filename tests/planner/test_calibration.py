"""Constants from a run's folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holmes_core.errors import HolmesError
from holmes_core.records.compute import Calibration
from holmes_core.records.islands import island_name
from holmes_core.records.plan import IslandsPlan, Plan
from planner.advice.calibration import calibrate, calibrated
from planner.cost.memory_margin import TRAINING_MARGIN, training_margin
from planner.islands.uniform_links import with_uniform_links
from planner.layout.reprice import reprice
from planner.problem.candidates import candidate_of
from tests.planner.fleets import GBPS, bed_job, cpu_inventory, gpt_7b, gpu_inventory, plan_for
from tests.planner.islands_jobs import planned_mode

BED = cpu_inventory([2, 2])
FAR = with_uniform_links(cpu_inventory([1, 1]), 0.002 * GBPS, 0.02)


def run_folder(folder: Path, plan: Plan, step_s: float, compute_s: float, memory_bytes: int = 0) -> Path:
    """A run of three steps, the first of which is slow."""
    one = {"step_s": step_s, "compute_s": compute_s, "memory_bytes": memory_bytes}
    steps = [{**one, "step_s": 9 * step_s, "compute_s": 9.0}, one, one]
    (folder / "plan.json").write_text(plan.to_json(), encoding="utf-8")
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, steps)) + "\n", encoding="utf-8")
    return folder


def test_a_run_as_predicted_changes_nothing(tmp_path: Path) -> None:
    plan = plan_for(BED, bed_job())
    run = run_folder(tmp_path, plan, plan.prediction.step_s, plan.prediction.compute_s)
    found = calibrate(BED, run)
    assert found.compute_factor == pytest.approx(1)
    assert found.network_efficiency == pytest.approx(1, abs=1e-3)


def test_slow_compute_and_slow_networks_are_told_apart(tmp_path: Path) -> None:
    plan = plan_for(BED, bed_job())
    slow = calibrated(plan.job, Calibration(run="x", compute_factor=1.3, network_efficiency=0.6))
    measured = reprice(BED, plan.model_copy(update={"job": slow}))
    found = calibrate(BED, run_folder(tmp_path, plan, measured.step_s, 1.3 * plan.prediction.compute_s))
    assert found.compute_factor == pytest.approx(1.3)
    assert found.network_efficiency == pytest.approx(0.6, abs=2e-3)
    assert found.run == str(tmp_path)


def test_a_calibrated_plan_records_the_run_and_is_no_slower_than_it(tmp_path: Path) -> None:
    plan = plan_for(BED, bed_job())
    run = run_folder(tmp_path, plan, 1.5 * plan.prediction.step_s, 1.2 * plan.prediction.compute_s)
    job = calibrated(plan.job, calibrate(BED, run))
    same = reprice(BED, plan.model_copy(update={"job": job}))
    assert same.step_s == pytest.approx(1.5 * plan.prediction.step_s, rel=0.01)
    again = plan_for(BED, job)
    assert again.job.compute.calibration is not None
    assert again.job.compute.calibration.run == str(tmp_path)
    assert again.prediction.step_s <= 1.01 * same.step_s


def test_a_run_of_one_step_is_refused(tmp_path: Path) -> None:
    run = run_folder(tmp_path, plan_for(BED, bed_job()), 1.0, 1.0)
    first = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[0]
    (run / "metrics.jsonl").write_text(first + "\n", encoding="utf-8")
    with pytest.raises(HolmesError, match="it has no step after the first") as caught:
        calibrate(BED, run)
    assert caught.value.exit_code == 2


def test_a_run_whose_metrics_end_in_half_a_line_is_refused(tmp_path: Path) -> None:
    run = run_folder(tmp_path, plan_for(BED, bed_job()), 1.0, 1.0)
    metrics = (run / "metrics.jsonl").read_text(encoding="utf-8")
    (run / "metrics.jsonl").write_text(metrics[:-10], encoding="utf-8")
    with pytest.raises(HolmesError, match=r"metrics\.jsonl: nothing to calibrate with: a line is not one JSON object"):
        calibrate(BED, run)


def test_a_run_on_other_hosts_is_refused_with_one_of_them(tmp_path: Path) -> None:
    run = run_folder(tmp_path, plan_for(cpu_inventory([1, 1, 2]), bed_job()), 1.0, 1.0)
    with pytest.raises(HolmesError, match="it ran on c1, which is not a reachable host of the inventory"):
        calibrate(BED, run)


@pytest.mark.slow
def test_the_memory_a_run_measured_sets_the_margin(tmp_path: Path) -> None:
    inventory = gpu_inventory([1, 1])
    plan = plan_for(inventory, gpt_7b())
    fullest, reserve = max(plan.prediction.memory_bytes), candidate_of(plan).execution(plan.job).reserve_bytes
    counted = (fullest - reserve) / (1 + TRAINING_MARGIN)
    parts = plan.prediction.step_s, plan.prediction.compute_s
    used = [calibrate(inventory, run_folder(tmp_path, plan, *parts, int(counted * part))) for part in (0.9, 1.02)]

    assert [each.memory_margin for each in used] == pytest.approx([0.01, 0.03], abs=1e-4)
    again = plan_for(inventory, calibrated(plan.job, used[0]))
    assert training_margin(again.job) == used[0].memory_margin


def test_a_run_on_cpus_says_nothing_of_a_gpu_s_memory(tmp_path: Path) -> None:
    plan = plan_for(BED, bed_job())
    run = run_folder(tmp_path, plan, plan.prediction.step_s, plan.prediction.compute_s, 10**9)
    assert calibrate(BED, run).memory_margin is None


@pytest.fixture(scope="module")
def islands() -> IslandsPlan:
    """Two islands of a host each, with a network between them that no step of theirs uses."""
    section = {"inner_steps": 10, "fragments": 2, "delay_steps": 2}
    plan = planned_mode(FAR, bed_job(parallel={}, steps=100, islands=section))
    assert isinstance(plan, IslandsPlan)
    return plan


def islands_folder(folder: Path, plan: IslandsPlan, factors: tuple[float, ...]) -> Path:
    """A run of those islands, the compute of each as many times the planned seconds."""
    (folder / "plan.json").write_text(plan.to_json(), encoding="utf-8")
    for number, (island, factor) in enumerate(zip(plan.islands, factors, strict=True)):
        (folder / island_name(number)).mkdir()
        seconds = factor * island.prediction.compute_s
        run_folder(folder / island_name(number), island, 2 * island.prediction.step_s, seconds)
    return folder


def test_compute_of_islands_is_that_of_the_busiest_and_networks_between_them_stay(
    tmp_path: Path, islands: IslandsPlan
) -> None:
    run = islands_folder(tmp_path, islands, (1.2, 1.5))
    whole, first = calibrate(FAR, run), calibrate(FAR, run / island_name(0))
    assert [whole.compute_factor, first.compute_factor] == pytest.approx([1.5, 1.2])
    assert (whole.network_efficiency, first.network_efficiency) == (1.0, 1.0)
    assert (whole.run, first.run) == (str(run), str(run / "island-0"))


def test_a_calibrated_plan_of_islands_takes_the_longer_steps(tmp_path: Path, islands: IslandsPlan) -> None:
    run = islands_folder(tmp_path, islands, (1.5, 1.5))
    section = {"inner_steps": 10, "fragments": 2, "delay_steps": 2}
    again = planned_mode(FAR, calibrated(bed_job(parallel={}, steps=100, islands=section), calibrate(FAR, run)))
    assert isinstance(again, IslandsPlan)
    assert again.job.compute.calibration == calibrate(FAR, run)
    for island, before in zip(again.islands, islands.islands, strict=True):
        assert island.prediction.compute_s == pytest.approx(1.5 * before.prediction.compute_s)


def test_islands_one_of_which_has_no_steps_are_refused_with_its_folder(tmp_path: Path, islands: IslandsPlan) -> None:
    run = islands_folder(tmp_path, islands, (1.2, 1.5))
    (run / "island-1" / "metrics.jsonl").unlink()
    with pytest.raises(HolmesError, match=r"island-1/metrics\.jsonl: nothing to calibrate with") as caught:
        calibrate(FAR, run)
    assert caught.value.exit_code == 2
    assert "one island" in caught.value.hint
