"""What job.yaml and plan.json say to the ranks, they say in the run configuration's names, types and literals."""

from __future__ import annotations

from dataclasses import MISSING, fields
from functools import reduce
from operator import or_
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

from holmes_core.records import job, plan
from holmes_runtime.config import model_shape, rank_grid, run_config, run_settings, schedule

RECORDS: dict[type, type] = {
    job.Model: model_shape.ModelShape,
    job.Data: run_settings.Data,
    job.Evaluation: run_settings.Evaluation,
    job.Checkpointing: run_settings.Checkpointing,
    job.OptimizerSettings: run_settings.Optimizer,
    job.Emulation: run_settings.Emulation,
    plan.PlanStage: run_config.Stage,
    plan.PlanRank: rank_grid.Rank,
    plan.PlanGroup: rank_grid.Group,
}
STAYS: dict[type, set[str]] = {
    job.Model: {"preset"},
    plan.PlanStage: {"clusters"},
    plan.PlanRank: {"local_rank", "gpu"},  # torchrun numbers the ranks of a node
    plan.PlanGroup: {"network", "bandwidth_bytes_per_s"},
}
"""Of a record, what the ranks need not know."""
FILLED_IN = {"num_kv_heads", "ffn_hidden_size", "value_type"}  # may be left out of job.yaml, never afterwards
OWN = {"schema_version", "run_id", "resume", "expectation"}  # neither in the job nor in the plan
OTHER_NAMES = {"value_type": "precision", "threads_per_rank": "threads_per_slot", "emulation": "emulate"}


def shared_types(record: type) -> dict[str, Any]:
    """The types of a record's fields without pydantic's limits, by name, with the runtime's records for ours."""
    hints = get_type_hints(record)
    names = getattr(record, "model_fields", None) or {field.name for field in fields(record)}
    return {name: translated(hints[name]) for name in names}


def translated(hint: Any) -> Any:
    """The type with each of our records replaced by the runtime's."""
    if get_origin(hint) in (Union, UnionType):
        return reduce(or_, map(translated, get_args(hint)))
    if get_origin(hint) in (tuple, dict):
        return get_origin(hint)[tuple(map(translated, get_args(hint)))]
    return RECORDS.get(hint, hint) if isinstance(hint, type) else hint


@pytest.mark.parametrize("ours", RECORDS)
def test_a_record_and_the_one_made_of_it_agree(ours: type) -> None:
    said, read = shared_types(ours), shared_types(RECORDS[ours])

    assert said.keys() - STAYS.get(ours, set()) == read.keys()
    for name, kind in read.items():
        assert said[name] == as_said(name, kind), name


def as_said(name: str, kind: Any) -> Any:
    """The type in job.yaml of the field that the run configuration has as `kind`."""
    return kind | None if name in FILLED_IN else kind


def test_every_other_field_of_the_run_configuration_is_the_job_s_or_the_plan_s() -> None:
    said = {**shared_types(job.Job), **shared_types(job.Compute), **shared_types(plan.Plan)}

    for name, kind in shared_types(run_config.RunConfig).items():
        if name not in OWN:
            assert said[OTHER_NAMES.get(name, name)] == as_said(name, kind), name


def test_the_literals_are_the_same() -> None:
    assert get_args(job.Precision) == get_args(run_settings.Precision)
    assert get_args(job.Recompute) == get_args(run_settings.Recompute)
    assert get_args(job.ScheduleName) == get_args(schedule.ScheduleName)
    assert get_args(plan.Axis) == get_args(rank_grid.Axis)
    assert get_args(plan.NetName) == get_args(rank_grid.NetName)
    assert get_type_hints(job.Job)["schema_version"] == Literal[run_config.SCHEMA_VERSION]


@pytest.mark.parametrize("read", [*RECORDS.values(), run_config.RunConfig])
def test_defaults_are_the_job_s_alone(read: type) -> None:
    assert all(field.default is field.default_factory is MISSING for field in fields(read))
