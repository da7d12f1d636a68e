"""Schedules chosen for placements whose numbers are worked by hand."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import pytest

from holmes_core.records.job import Job
from planner.cost.collectives import PassTimes, Path
from planner.cost.gpu_speeds import constant_speed
from planner.cost.slot import Slot
from planner.problem.candidates import Candidate
from planner.problem.coefficients import Coefficients
from planner.schedule.runners_up import choose_schedule
from planner.search.placement import Placement
from tests.planner.enumerator import random_coefficients
from tests.planner.fleets import bed_job

PLACEMENT = Placement(Candidate(1, 2, 1, 1), (1, 1), ((0,), (1,)), (12,))


def two_stages(edge_s: float, memory_bytes: int | None = None) -> Coefficients:
    """A stage of one layer of 3 s in each of two clusters, and messages of `edge_s` between them."""
    return replace(
        random_coefficients(1),
        candidate=PLACEMENT.candidate,
        num_layers=2,
        total_microbatches=12,
        cluster=(0, 1),
        group_slots=(1, 1),
        group_slots_per_host=(1, 1),
        memory_bytes=(memory_bytes,) * 2,
        capacity=((2, 2),) * 2,
        layer=(PassTimes(1.0, 2.0),) * 2,
        head=(PassTimes(0.0, 0.0),) * 2,
        net_names=("IB", "IB"),
        fabric_edge_s=(0.0, 0.0),
        shared_edge_s=(edge_s, edge_s),
        slots=(Slot(constant_speed(1.0), Path(1.0)),) * 2,  # whose update takes nothing
    )


def job(**parallel: object) -> Job:
    """The bed's job with a model of two layers and those things fixed."""
    model = {"num_layers": 2, "hidden_size": 352, "num_heads": 8, "seq_length": 128}
    return bed_job(model=model, global_batch_size=12, parallel=parallel)


@pytest.mark.parametrize("edge_s", [0.5, 1.0, 1.5, 2.0, 3.0])
def test_eager_keeps_no_more_in_flight_than_hides_the_edge(edge_s: float) -> None:
    """A micro-batch is back after two stages and two messages; 1F1B keeps two going, eager what else it takes."""
    mode = choose_schedule(job(schedule="eager"), two_stages(edge_s), PLACEMENT)
    assert mode is not None
    assert mode.extra_in_flight == (ceil((3 + 3 + 2 * edge_s) / 3) - 2,)


@pytest.mark.parametrize("edge_s", [0.5, 1.0, 2.0, 3.0])
def test_eager_hides_the_edge_in_the_steady_state(edge_s: float) -> None:
    """Twelve micro-batches at the pace of a stage, with one stage and two messages to fill and drain."""
    mode = choose_schedule(job(schedule="eager"), two_stages(edge_s), PLACEMENT)
    assert mode is not None
    assert mode.step_s == pytest.approx(11 * 3 + 2 * 3 + 2 * edge_s, rel=0.03)
    plain = choose_schedule(job(schedule="1f1b"), two_stages(edge_s), PLACEMENT)
    assert plain is not None
    assert plain.step_s > mode.step_s


def test_free_edges_need_nothing_more_in_flight() -> None:
    mode = choose_schedule(job(), two_stages(0.0), PLACEMENT)
    assert mode is not None
    assert mode.extra_in_flight == ()
    assert mode.schedule != "eager"


def test_no_schedule_is_chosen_where_memory_holds_none() -> None:
    assert choose_schedule(job(), two_stages(1.0, memory_bytes=2**20), PLACEMENT) is None


def test_a_fixed_schedule_is_kept() -> None:
    for name in ("gpipe", "1f1b", "eager", "zero-bubble"):
        mode = choose_schedule(job(schedule=name), two_stages(1.0), PLACEMENT)
        assert mode is not None
        assert mode.schedule == name
