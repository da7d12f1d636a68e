"""Groups as the trainers' own code makes them, where it is installed, over torch's fake backend: the plan's."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holmes_core.records.job import TrainerName
from holmes_core.records.plan import Plan
from launcher.prepare.engine_arguments import engine_arguments
from tests.planner.test_engine_plans import all_groups
from tests.planner.trainer_plans import drawn_plan

SEEDS = range(4)
Made = dict[str, set[tuple[int, ...]]]


def plans(engine: TrainerName) -> Iterator[Plan]:
    """The drawn plans of an engine."""
    yield from (plan for seed in SEEDS if (plan := drawn_plan(engine, seed)) is not None)


def made_by(plan: Plan, groups_of_rank: Callable[[], dict[str, Any]]) -> Made:
    """The members of every group of several ranks that the calls make, rank by rank."""
    dist = pytest.importorskip("torch.distributed")
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    made: Made = {}
    for rank in range(plan.world_size):
        dist.init_process_group("fake", store=fake.FakeStore(), rank=rank, world_size=plan.world_size)
        try:
            for name, group in groups_of_rank().items():
                made.setdefault(name, set()).add(tuple(dist.get_process_group_ranks(group)))
        finally:
            dist.destroy_process_group()
    return {name: {each for each in held if len(each) > 1} for name, held in made.items()}


def pipelines(plan: Plan) -> set[tuple[int, ...]]:
    """The ranks of every pipeline of several stages."""
    columns: dict[tuple[int, int], list[int]] = {}
    for rank in sorted(plan.ranks, key=lambda rank: rank.pp_rank):
        columns.setdefault((rank.dp_rank, rank.tp_rank), []).append(rank.rank)
    return {tuple(column) for column in columns.values() if len(column) > 1}


def of_mesh(mesh: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """The groups of a device mesh along its dimensions of these names."""
    return {name: mesh[name].get_group() for name in names if name in mesh.mesh_dim_names}


def test_megatron_core_makes_the_groups_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    state = pytest.importorskip("megatron.core.parallel_state")
    dist = pytest.importorskip("torch.distributed")
    options = types.SimpleNamespace(Options=lambda **_: types.SimpleNamespace(config=types.SimpleNamespace()))
    monkeypatch.setattr(dist, "ProcessGroupNCCL", options, raising=False)
    for plan in plans("megatron"):

        def groups(plan: Plan = plan) -> dict[str, Any]:
            state.destroy_model_parallel()
            state.initialize_model_parallel(plan.tp, plan.pp, create_gloo_process_groups=False)
            getters = state.get_tensor_model_parallel_group, state.get_data_parallel_group
            made = [*(each() for each in getters), state.get_pipeline_model_parallel_group()]
            return dict(zip(("tp", "dp", "pp"), made, strict=True))

        made = made_by(plan, groups)
        assert made == {"tp": all_groups(plan, "tp"), "dp": all_groups(plan, "dp"), "pp": pipelines(plan)}


def test_accelerate_makes_the_groups_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    config = pytest.importorskip("accelerate.parallelism_config")
    for plan in plans("accelerate"):
        if plan.zero == 1:
            continue  # DDP, one group of all
        for word in engine_arguments(plan)[1:]:
            monkeypatch.setenv(*word.split("=", 1))

        def groups() -> dict[str, Any]:
            return of_mesh(config.ParallelismConfig().build_device_mesh("cpu"), ("dp_replicate", "dp_shard", "tp"))

        made = made_by(plan, groups)
        assert made.get("dp_shard", set()) == all_groups(plan, "dp")
        assert made.get("dp_replicate", set()) == all_groups(plan, "dp_across")


def test_torchtitan_takes_the_arguments_and_makes_the_groups_of_the_plan() -> None:
    manager = pytest.importorskip("torchtitan.config.manager")
    dims = pytest.importorskip("torchtitan.distributed.parallel_dims")
    for plan in plans("torchtitan"):
        words = ["--module", "llama3", "--config", "llama3_debugmodel", *engine_arguments(plan)]
        parallelism = manager.ConfigManager().parse_args(words).parallelism

        def groups(parallelism: Any = parallelism, world: int = plan.world_size) -> dict[str, Any]:
            made = dims.ParallelDims.from_config(parallelism, world)
            made.build_mesh()
            meshes = {name: made.get_optional_mesh(name) for name in ("pp", "dp_replicate", "dp_shard", "tp")}
            return {name: mesh.get_group() for name, mesh in meshes.items() if mesh is not None}

        made = made_by(plan, groups)
        assert made.get("dp_shard", set()) == all_groups(plan, "dp")
        assert made.get("dp_replicate", set()) == all_groups(plan, "dp_across")
        assert made.get("tp", set()) == all_groups(plan, "tp")
        assert made.get("pp", set()) == pipelines(plan)
