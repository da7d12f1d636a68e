"""Groups as trainers' own code makes them under the hook, over torch's fake backend: the plan's, on its networks."""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holmes_core.records.inventory import FabricKind
from holmes_core.records.plan import Plan
from holmes_core.records.trainer_settings import TrainerName
from holmes_runtime.config.node_config import TRAINER_VARIABLE
from holmes_runtime.config.rank_metrics import GroupRecord
from holmes_runtime.hook import group_hook
from holmes_runtime.hook.group_report import GroupReport
from launcher.prepare.engine_arguments import engine_arguments
from launcher.prepare.prepare import trainer_config_of
from tests.planner.fleets import gpu_inventory, plan_for
from tests.planner.test_engine_plans import all_groups
from tests.planner.trainer_plans import drawn_plan, trainer_job

REPLACED = "_new_process_group_helper", "_get_split_source", "split_group", "_hash_ranks_to_str", "ProcessGroupGloo"
Made = dict[str, set[tuple[int, ...]]]
FEW, ALL = 4, 200
each_drawn_plan = pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.exhaustive] if seed >= FEW else []) for seed in range(ALL)]
)


def drawn_engine_plan(engine: TrainerName, seed: int) -> Plan:
    """The drawn plan of that seed; the test is left out where nothing fits."""
    plan = drawn_plan(engine, seed)
    if plan is None:
        pytest.skip("no plan fits that fleet")
    return plan


class Hooked:
    """Ranks of a plan, one after another in this process, with torch hooked for each; `told` holds their records."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._file, self._patch = folder / "trainer.json", monkeypatch
        self.dist: Any = pytest.importorskip("torch.distributed")
        self._fake: Any = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
        self.told: list[GroupRecord] = []

    def made_by(self, plan: Plan, groups_of_rank: Callable[[], dict[str, Any]]) -> Made:
        """The members of every group of several ranks that the calls make, rank by rank, and one made late."""
        self._file.write_text(trainer_config_of(plan, None, 1.0).to_json(), encoding="utf-8")
        made: Made = {}
        for rank in range(plan.world_size):
            with self._patch.context() as patch:
                self._hook(patch, rank)
                self.dist.init_process_group(
                    "fake", store=self._fake.FakeStore(), rank=rank, world_size=plan.world_size
                )
                try:
                    for name, group in groups_of_rank().items():
                        made.setdefault(name, set()).add(tuple(self.dist.get_process_group_ranks(group)))
                    self.dist.new_group([0, plan.world_size - 1])
                finally:
                    self.dist.destroy_process_group()
        self._check_networks(plan)
        return {name: {each for each in held if len(each) > 1} for name, held in made.items()}

    def _hook(self, patch: pytest.MonkeyPatch, rank: int) -> None:
        c10d, told = self.dist.distributed_c10d, self.told

        class Recorded(GroupReport):
            def begin(self) -> None:
                """Start no thread."""

            def _write_group(self, record: GroupRecord) -> None:
                told.append(record)

        patch.setattr(group_hook, "GroupReport", Recorded)
        for name in REPLACED:
            patch.setattr(c10d, name, getattr(c10d, name))
        group_hook.hook_groups(c10d, {TRAINER_VARIABLE: str(self._file), "RANK": str(rank)})

    def _check_networks(self, plan: Plan) -> None:
        """Check each group's network by its members, and by the plan where that has the group."""
        ranks, nodes = plan.ranks, {node.host: node for node in plan.nodes}
        planned = {tuple(sorted(group.ranks)): group for group in plan.groups}
        for record in self.told:
            node = nodes[ranks[record.rank].host]
            hosts = {ranks[member].host for member in record.ranks}
            inside = len({ranks[member].cluster for member in record.ranks}) == 1
            on_fabric = inside and all(nodes[host].fabric is not None for host in hosts)
            if len(hosts) == 1:
                expected: tuple[str | None, str | None] = None, None
            elif on_fabric and node.fabric is not None:
                expected = node.fabric.network, node.fabric.netdev
            else:
                expected = "shared", node.shared_netdev
            assert (record.network, record.interface) == expected, record
            group = planned.get(tuple(sorted(record.ranks)))
            if group is not None and len(hosts) > 1:
                assert record.network == group.network, record
        members = {(record.rank, tuple(sorted(record.ranks))) for record in self.told}
        last = plan.world_size - 1
        assert members >= {(rank, (0, last)) for rank in (0, last)} or last == 0
        axes = {group for axis in ("tp", "dp", "dp_across") for group in all_groups(plan, axis)}
        assert members >= {(rank, group) for group in axes for rank in group}


@pytest.fixture
def hooked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hooked:
    return Hooked(tmp_path, monkeypatch)


def pipelines(plan: Plan) -> set[tuple[int, ...]]:
    """The ranks of every pipeline of several stages."""
    columns: dict[tuple[int, int], list[int]] = {}
    for rank in sorted(plan.ranks, key=lambda rank: rank.pp_rank):
        columns.setdefault((rank.dp_rank, rank.tp_rank), []).append(rank.rank)
    return {tuple(column) for column in columns.values() if len(column) > 1}


def of_mesh(mesh: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """The groups of a device mesh along its dimensions of these names."""
    return {name: mesh[name].get_group() for name in names if name in mesh.mesh_dim_names}


def rearranged(ranks: Any, pattern: str, **sizes: int) -> Any:
    """As einops does it, for the one pattern that Megatron-Core has."""
    assert pattern == "(l s u) -> (l u) s"
    return ranks.reshape(*(sizes[each] for each in "lsu")).transpose(0, 2, 1).reshape(-1, sizes["s"])


def check_megatron(plan: Plan, hooked: Hooked, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that Megatron-Core makes the plan's groups; of several optimizer instances those inside and between."""
    state = pytest.importorskip("megatron.core.parallel_state")
    if not state.HAVE_EINOPS:  # which it asks for groups of several optimizer instances alone
        monkeypatch.setattr(state, "HAVE_EINOPS", True)
        monkeypatch.setattr(state, "einops", types.SimpleNamespace(rearrange=rearranged), raising=False)
    options = types.SimpleNamespace(Options=lambda **_: types.SimpleNamespace(config=types.SimpleNamespace()))
    monkeypatch.setattr(hooked.dist, "ProcessGroupNCCL", options, raising=False)
    words = engine_arguments(plan)
    named = "--num-distributed-optimizer-instances"
    instances = int(words[words.index(named) + 1]) if named in words else 1

    def groups() -> dict[str, Any]:
        state.destroy_model_parallel()
        state.initialize_model_parallel(
            plan.tp, plan.pp, create_gloo_process_groups=False, num_distributed_optimizer_instances=instances
        )
        made = {"tp": state.get_tensor_model_parallel_group(), "pp": state.get_pipeline_model_parallel_group()}
        made["dp"] = state.get_data_parallel_group(with_context_parallel=True, partial_data_parallel=True)
        if instances > 1:
            made["dp_across"] = state.get_inter_distributed_optimizer_instance_group()
        return made

    made = hooked.made_by(plan, groups)
    across = {"dp_across": all_groups(plan, "dp_across")} if instances > 1 else {}
    assert made == {"tp": all_groups(plan, "tp"), "dp": all_groups(plan, "dp"), "pp": pipelines(plan), **across}


@pytest.mark.slow
@each_drawn_plan
def test_megatron_core_makes_the_groups_of_the_plan(seed: int, hooked: Hooked, monkeypatch: pytest.MonkeyPatch) -> None:
    check_megatron(drawn_engine_plan("megatron", seed), hooked, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fixed", [{"tp": 2, "pp": 1, "dp": 4}, {"tp": 2, "pp": 2, "dp": 6}, {"tp": 2, "pp": 1, "dp": 6}]
)
def test_megatron_core_makes_the_groups_of_several_optimizer_instances(
    fixed: dict[str, int], hooked: Hooked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those inside are on a cluster's fabric, those between on the shared network."""
    count = fixed["dp"] // 2
    kinds: list[FabricKind] = ["InfiniBand", "RoCE", "InfiniBand"]
    fleet = gpu_inventory([2 * fixed["pp"]] * count, 2, kinds=kinds[:count])
    small = {"num_layers": 8, "hidden_size": 1024, "num_heads": 16, "seq_length": 512, "vocab_size": 32000}
    plan = plan_for(fleet, trainer_job("megatron", model=small, global_batch_size=96, parallel=fixed))
    assert plan.optimizer_instances == count
    check_megatron(plan, hooked, monkeypatch)
    assert {group.network for group in plan.groups if group.axis == "dp_across"} == {"shared"}
    assert {group.network for group in plan.groups if group.axis == "dp"} == {*"abc"[:count]}


@each_drawn_plan
def test_accelerate_makes_the_groups_of_the_plan(seed: int, hooked: Hooked, monkeypatch: pytest.MonkeyPatch) -> None:
    config = pytest.importorskip("accelerate.parallelism_config")
    plan = drawn_engine_plan("accelerate", seed)
    for word in engine_arguments(plan)[1:]:
        monkeypatch.setenv(*word.split("=", 1))

    def groups() -> dict[str, Any]:
        if plan.zero == 1:
            return {"dp_shard": hooked.dist.group.WORLD}  # DDP, one group of all
        return of_mesh(config.ParallelismConfig().build_device_mesh("cpu"), ("dp_replicate", "dp_shard", "tp"))

    made = hooked.made_by(plan, groups)
    assert made.get("dp_shard", set()) == all_groups(plan, "dp")
    assert made.get("dp_replicate", set()) == all_groups(plan, "dp_across")


@each_drawn_plan
def test_mesh_of_torch_makes_the_groups_of_the_plan(seed: int, hooked: Hooked) -> None:
    plan = drawn_engine_plan("torch", seed)
    meshes = pytest.importorskip("torch.distributed.device_mesh")

    def groups() -> dict[str, Any]:
        sizes = plan.dp // plan.weight_shards, plan.weight_shards
        if plan.zero == 1:
            return {"dp_shard": hooked.dist.group.WORLD}
        names = ("dp_replicate", "dp_shard")
        plain = meshes.init_device_mesh("cpu", sizes, mesh_dim_names=names)
        own = meshes.init_device_mesh("cpu", sizes, mesh_dim_names=names, backend_override=dict.fromkeys(names, "fake"))
        return of_mesh(plain, names) | {f"own {name}": group for name, group in of_mesh(own, names).items()}

    made = hooked.made_by(plan, groups)
    for prefix in ("", "own ") if plan.zero == 3 else ("",):
        assert made.get(f"{prefix}dp_shard", set()) == all_groups(plan, "dp")
        assert made.get(f"{prefix}dp_replicate", set()) == all_groups(plan, "dp_across")


@each_drawn_plan
def test_torchtitan_takes_the_arguments_and_makes_the_groups_of_the_plan(seed: int, hooked: Hooked) -> None:
    manager = pytest.importorskip("torchtitan.config.manager")
    dims = pytest.importorskip("torchtitan.distributed.parallel_dims")
    plan = drawn_engine_plan("torchtitan", seed)
    words = ["--module", "llama3", "--config", "llama3_debugmodel", *engine_arguments(plan)]
    parallelism = manager.ConfigManager().parse_args(words).parallelism

    def groups() -> dict[str, Any]:
        made = dims.ParallelDims.from_config(parallelism, plan.world_size)
        made.build_mesh()
        meshes = {name: made.get_optional_mesh(name) for name in ("pp", "dp_replicate", "dp_shard", "tp")}
        return {name: mesh.get_group() for name, mesh in meshes.items() if mesh is not None}

    made = hooked.made_by(plan, groups)
    assert made.get("dp_shard", set()) == all_groups(plan, "dp")
    assert made.get("dp_replicate", set()) == all_groups(plan, "dp_across")
    assert made.get("tp", set()) == all_groups(plan, "tp")
    assert made.get("pp", set()) == pipelines(plan)
