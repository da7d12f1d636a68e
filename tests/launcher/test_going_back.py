"""Islands that go back: the steps of each at one moment, and refusals that name what is missing where."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holmes_core.errors import HolmesError
from holmes_core.records.plan import IslandsPlan
from holmes_runtime.config.run_settings import CheckpointSettings
from launcher.islands.going_back import require_checkpoints, steps_back
from planner.islands.uniform_links import with_uniform_links
from tests.planner.fleets import GBPS, bed_job, cpu_inventory
from tests.planner.islands_jobs import planned_mode

FAR = with_uniform_links(cpu_inventory([1, 1]), 0.002 * GBPS, 0.02)


@pytest.fixture(scope="module")
def planned() -> IslandsPlan:
    section = {"inner_steps": 10, "fragments": 2, "delay_steps": 2}
    saving = CheckpointSettings(path="/ck", every_steps=5)
    plan = planned_mode(FAR, bed_job(parallel={}, steps=100, islands=section, checkpoint=saving))
    assert isinstance(plan, IslandsPlan)
    return plan


def with_rounds_of(plan: IslandsPlan, *inner_steps: int) -> IslandsPlan:
    islands = []
    for island, steps in zip(plan.islands, inner_steps, strict=True):
        assert island.job.islands is not None
        job = island.job.model_copy(update={"islands": replace(island.job.islands, inner_steps=steps)})
        islands.append(island.model_copy(update={"job": job}))
    return plan.model_copy(update={"islands": tuple(islands)})


def test_a_faster_island_goes_back_to_the_step_that_it_had_reached(planned: IslandsPlan) -> None:
    assert steps_back(with_rounds_of(planned, 10, 15), 20) == (20, 30)
    assert steps_back(with_rounds_of(planned, 10, 10), 7) == (7, 7)


def test_a_moment_within_a_step_of_another_island_is_refused_with_the_next_best(planned: IslandsPlan) -> None:
    with pytest.raises(HolmesError, match=r"--resume-step 25: .* island 1 takes 15: .* taken 37\.50 steps") as caught:
        steps_back(with_rounds_of(planned, 10, 15), 25)
    assert "a multiple of 2;" in caught.value.hint
    assert caught.value.exit_code == 2


def test_islands_that_lack_the_step_are_named_with_those_that_have_it_and_the_steps_of_all(
    planned: IslandsPlan,
) -> None:
    plan = with_rounds_of(planned, 10, 20)
    require_checkpoints(plan, 20, [{10, 20}, {20, 40}])
    with pytest.raises(HolmesError) as caught:
        require_checkpoints(plan, 30, [{5, 10, 20, 30}, {20, 40}])
    assert caught.value.what == (
        "--resume-step 30: no checkpoint after step 60 of island 1 in /ck/island-1 of b1; those that have it: island 0"
    )
    assert caught.value.hint.startswith("all islands have --resume-step 10, 20;")


def test_islands_without_a_step_in_common_are_said_to_have_none(planned: IslandsPlan) -> None:
    with pytest.raises(HolmesError, match="no step is saved on all islands") as caught:
        require_checkpoints(planned, 30, [{10}, {20}])
    assert "island 0 in /ck/island-0 of a1; after step 30 of island 1" in caught.value.what
    assert caught.value.exit_code == 2
