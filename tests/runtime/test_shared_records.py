"""What the controller's records and the nodes' both say, they say in the same names, types and literals."""

from __future__ import annotations

from dataclasses import MISSING, fields
from functools import reduce
from operator import or_
from types import UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

import pytest

from holmes_core.records import devices, job, plan, run
from holmes_runtime.config import (
    codec,
    messages,
    model_shape,
    node_config,
    rank_grid,
    rank_metrics,
    run_config,
    run_settings,
    schedule,
)

RECORDS: dict[type, type] = {
    job.Model: model_shape.ModelShape,
    job.RopeScaling: model_shape.RopeStretch,
    job.Data: run_settings.DataSettings,
    job.Source: run_settings.DataSource,
    job.Evaluation: run_settings.EvaluationSettings,
    job.Checkpointing: run_settings.CheckpointSettings,
    job.Profile: run_settings.ProfileSettings,
    job.OptimizerSettings: run_settings.Optimizer,
    job.Emulation: run_settings.EmulationSettings,
    plan.PlanStage: run_config.Stage,
    plan.PlanRank: rank_grid.Rank,
    plan.PlanGroup: rank_grid.Group,
}
STAYS: dict[type, set[str]] = {
    job.Model: {"preset"},
    plan.PlanStage: {"clusters"},
    plan.PlanRank: {"local_rank", "gpu", "cpus"},  # torchrun numbers the ranks of a node, and variables bind them
    plan.PlanGroup: {"network", "nvlink", "bandwidth_bytes_per_s", "trunk_bytes_per_s", "latency_s"},
}
"""Of a record, what the ranks need not know."""
MADE: dict[type, set[str]] = {job.Data: {"expected_tokenizer"}}
"""Of the runtime's record, what the job decides from more than its own record."""
FILLED_IN = {
    "num_kv_heads",
    "ffn_hidden_size",
    "value_type",
    "compile",
}  # may be left out of job.yaml alone
OWN = {
    "schema_version",
    "run_id",
    "resume",
    "from_scratch",
    "resume_step",
    "expectation",
    "outer_sync",
}  # neither in the job nor in the plan
OTHER_NAMES = {
    **{"value_type": "precision", "threads_per_rank": "threads_per_slot", "emulation": "emulate"},
    "lossiest_codec": "edges",
}


def shared_types(record: type) -> dict[str, Any]:
    """The types of a record's fields without pydantic's limits, by name, with the runtime's records for ours."""
    return {name: translated(hint) for name, hint in get_type_hints(record).items() if get_origin(hint) is not ClassVar}


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

    made = MADE.get(ours, set())
    assert said.keys() - STAYS.get(ours, set()) == read.keys() - made
    for name in read.keys() - made:
        assert said[name] == as_said(name, read[name]), name


def as_said(name: str, kind: Any) -> Any:
    """The type in job.yaml of the field that the run configuration has as `kind`."""
    return kind | None if name in FILLED_IN else kind


def test_every_other_field_of_the_run_configuration_is_the_job_s_or_the_plan_s() -> None:
    sources = (job.Job, job.Compute, job.Wire, plan.Plan)
    said = {name: kind for source in sources for name, kind in shared_types(source).items()}

    for name, kind in shared_types(run_config.RunConfig).items():
        if name not in OWN:
            assert said[OTHER_NAMES.get(name, name)] == as_said(name, kind), name


@pytest.mark.parametrize(
    ("ours", "theirs", "both"),
    [
        (plan.Node, node_config.NodeConfig, {"host", "node_rank", "num_ranks"}),
        (job.Job, node_config.NodeConfig, {"master_port"}),
        (run.Failure, messages.RankFailed, {"rank", "exit_code", "message", "time_s", "last_lines"}),
        (plan.InterfaceTraffic, rank_metrics.ByteCounters, {"sent_bytes", "received_bytes"}),
    ],
)
def test_what_a_node_says_of_the_same_thing_has_the_same_type(ours: type, theirs: type, both: set[str]) -> None:
    said, read = shared_types(ours), shared_types(theirs)

    assert {name: said[name] for name in both} == {name: read[name] for name in both}


def test_the_literals_are_the_same() -> None:
    assert get_args(job.Precision) == get_args(run_settings.Precision)
    assert get_args(shared_types(job.Data)["documents"]) == get_args(run_settings.Documents)
    assert get_args(job.Recompute) == get_args(run_settings.Recompute)
    assert get_args(job.ScheduleName) == get_args(schedule.ScheduleName)
    assert get_args(plan.Axis) == get_args(rank_grid.Axis)
    assert get_args(plan.DataParallel) == get_args(rank_grid.DataParallel)
    with_dp = {"dp_across", "tied"}  # waited for together with "dp"
    axes = [axis for axis in get_args(rank_grid.Axis) if axis not in with_dp]
    assert rank_metrics.WaitSeconds._fields == (*axes, "sync")
    assert get_args(job.Codec) == get_args(codec.Codec)
    assert get_args(devices.NetName) == get_args(rank_grid.NetName)
    assert get_type_hints(job.Job)["schema_version"] == Literal[run_config.SCHEMA_VERSION]


@pytest.mark.parametrize("read", [*RECORDS.values(), run_config.RunConfig])
def test_defaults_are_the_job_s_alone(read: type) -> None:
    assert all(field.default is field.default_factory is MISSING for field in fields(read))
