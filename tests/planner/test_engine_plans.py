"""Plans for trainers: nothing that an engine lacks, its own groups, and no degree that fixing would better."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from holmes_core.errors import HolmesError
from holmes_core.records.job import Parallel
from holmes_core.records.plan import Plan
from holmes_core.records.trainer_settings import TrainerName
from planner.advice.engine_price import engine_sentence
from planner.cost.counts import state_bytes
from planner.cost.engines import ENGINES
from planner.layout.verify import check_engine
from planner.problem.candidates import candidate_of
from tests.planner.fleets import bed_job, cpu_inventory, gpt_7b, gpu_inventory, plan_for
from tests.planner.test_metamorphic import NOT_PROVEN
from tests.planner.trainer_plans import SMALL_SEEDS, TRAINERS, drawn, drawn_plan, trainer_job
from tests.seeds import seeds

# Independent of the planner's own table: schedules, and whether it has pipelines and shards weights.
HAS: dict[TrainerName, tuple[set[str], bool, bool]] = {
    "megatron": ({"1f1b", "interleaved"}, True, False),
    "torchtitan": ({"gpipe", "1f1b", "interleaved"}, True, True),
    "deepspeed": ({"1f1b"}, True, False),
    "accelerate": ({"1f1b"}, False, True),
    "torch": ({"1f1b"}, False, True),
}
SMALL = {"num_layers": 8, "hidden_size": 1024, "num_heads": 16, "seq_length": 512, "vocab_size": 1000}


def all_groups(plan: Plan, axis: str) -> set[tuple[int, ...]]:
    """The members of the plan's groups of an axis, in the order of ranks."""
    return {tuple(sorted(group.ranks)) for group in plan.groups if group.axis == axis}


def mesh(*sizes: int, along: int) -> set[tuple[int, ...]]:
    """The groups along one dimension of a device mesh over 0, 1, ..., the last dimension fastest; none of one rank."""
    total, stride = 1, 1
    for size in sizes:
        total *= size
    for size in sizes[along + 1 :]:
        stride *= size
    starts = (rank for rank in range(total) if rank // stride % sizes[along] == 0)
    groups = {tuple(start + stride * step for step in range(sizes[along])) for start in starts}
    return {group for group in groups if len(group) > 1}


def check(plan: Plan, engine: TrainerName) -> None:
    """Check that the engine can run the plan, and groups so when told the plan's degrees."""
    schedules, has_pipelines, shards = HAS[engine]
    assert plan.schedule in schedules
    assert has_pipelines or plan.pp == 1
    assert shards or plan.zero == 1
    assert len(set(plan.microbatches)) == 1
    assert not plan.optimizer_offload
    assert all(group.codec == "none" for group in plan.groups)
    if engine == "deepspeed":
        assert len({stage.num_layers for stage in plan.stages}) == 1
    copies = plan.dp // plan.weight_shards if plan.zero == 3 else plan.optimizer_instances
    assert copies == 1 or engine != "deepspeed"
    sizes = plan.pp, copies, plan.dp // copies, plan.tp
    assert all_groups(plan, "tp") == mesh(*sizes, along=3)
    assert all_groups(plan, "dp") == mesh(*sizes, along=2)
    assert all_groups(plan, "dp_across") == mesh(*sizes, along=1)
    edges = {pair for group in mesh(*sizes, along=0) for pair in pairwise(group)}
    assert edges <= {group.ranks for group in plan.groups if group.axis == "pp_forward"}
    if (plan.zero == 3 and plan.dp > 1) or copies > 1:
        clusters = [{plan.ranks[rank].cluster for rank in group} for group in all_groups(plan, "dp")]
        assert all(len(names) == 1 for names in clusters) or plan.usual_order == plan.prediction
    check_local_ranks(plan)


def check_local_ranks(plan: Plan) -> None:
    """Local ranks follow the numbers on each host, and nodes the first of them."""
    hosts: dict[str, list[int]] = {}
    for rank in plan.ranks:
        hosts.setdefault(rank.host, []).append(rank.local_rank)
    assert all(held == list(range(len(held))) for held in hosts.values())
    assert [node.host for node in plan.nodes] == list(hosts)


@pytest.mark.parametrize("engine", TRAINERS)
@pytest.mark.parametrize("seed", seeds(200, few=1, more=3))
def test_a_drawn_plan_is_one_that_the_engine_runs(engine: TrainerName, seed: int) -> None:
    plan = drawn_plan(engine, seed)
    if plan is not None:
        check(plan, engine)


def degrees_of(engine: TrainerName) -> Iterator[dict[str, Any]]:
    """Degrees that the planner may choose for it."""
    yield {"dp": 2}
    if HAS[engine][1]:
        yield from ({"pp": 1}, {"pp": 2})
    if engine in ("megatron", "torchtitan"):
        yield {"tp": 2}


@pytest.mark.parametrize("engine", TRAINERS)
@pytest.mark.parametrize("seed", seeds(SMALL_SEEDS, few=0, more=2))
def test_fixing_a_degree_never_betters_a_plan(engine: TrainerName, seed: int) -> None:
    inventory, job = drawn(engine, seed)
    job = job.model_copy(update={"parallel": Parallel(zero=job.parallel.zero)})
    try:
        free_s = plan_for(inventory, job).prediction.step_s
    except HolmesError:
        return
    for degrees in degrees_of(engine):
        fixed = job.model_copy(update={"parallel": Parallel(zero=job.parallel.zero, **degrees)})
        try:
            assert free_s <= plan_for(inventory, fixed).prediction.step_s * (1 + NOT_PROVEN)
        except HolmesError:
            continue


@pytest.mark.parametrize("engine", TRAINERS)
def test_trainers_are_planned_on_cpus(engine: TrainerName) -> None:
    trainer = {"engine": engine, "command": ["python", "train.py"]}
    plan = plan_for(cpu_inventory([2, 2]), bed_job(trainer=trainer, data=None, parallel={}, slots_per_host=2))
    check(plan, engine)
    assert plan.tp == 1


@pytest.mark.parametrize(
    ("engine", "fixed", "what"),
    [
        ("torch", {"pp": 2}, "parallel.pp is 2, which engine torch does not have"),
        ("torch", {"tp": 2}, "parallel.tp is 2, which engine torch does not have"),
        ("accelerate", {"layers": [4, 4]}, "parallel.pp is 2, which engine accelerate does not have"),
        ("megatron", {"schedule": "gpipe"}, "gpipe, which engine megatron does not have"),
        ("megatron", {"zero": 3}, "zero 3 with engine megatron"),
        ("deepspeed", {"chunks": 2}, "interleaved, which engine deepspeed does not have"),
        ("deepspeed", {"layers": [5, 3]}, "gives every stage the same number of layers"),
        ("deepspeed", {"pp": 3}, "gives every stage the same number of layers"),
        ("torchtitan", {"zero": 1}, "zero 1 with engine torchtitan"),
        ("torchtitan", {"optimizer_offload": True}, "optimizer_offload"),
    ],
)
def test_fixed_values_that_an_engine_lacks_are_refused(engine: TrainerName, fixed: dict[str, Any], what: str) -> None:
    with pytest.raises(HolmesError, match=what) as refused:
        plan_for(gpu_inventory([1]), trainer_job(engine, model=SMALL, global_batch_size=64, parallel=fixed))
    assert refused.value.exit_code == 2


def test_zero_says_whether_a_script_of_torch_is_ddp_or_fsdp() -> None:
    fleet = gpu_inventory([1, 1])
    ddp, fsdp = (
        plan_for(fleet, trainer_job("torch", model=SMALL, global_batch_size=64, parallel={"zero": zero}))
        for zero in (None, 3)
    )
    assert (ddp.zero, fsdp.zero) == (1, 3)
    assert ddp.prediction.memory_bytes > fsdp.prediction.memory_bytes  # its states are whole


def test_fsdp_takes_models_with_tied_tables() -> None:
    job = trainer_job("accelerate", model={**SMALL, "tied_embeddings": True}, global_batch_size=64)
    assert plan_for(gpu_inventory([1, 1]), job).zero == 3


def test_torchtitan_takes_models_with_tied_tables_without_a_pipeline() -> None:
    asked: dict[str, Any] = {"model": {**SMALL, "tied_embeddings": True}, "global_batch_size": 64}
    plan = plan_for(gpu_inventory([1, 1]), trainer_job("torchtitan", **asked))
    assert (plan.zero, plan.pp) == (3, 1)
    with pytest.raises(HolmesError, match=r"parallel\.pp is 2, .* does not have with model\.tied_embeddings"):
        plan_for(gpu_inventory([1, 1]), trainer_job("torchtitan", **asked, parallel={"pp": 2}))
    with pytest.raises(HolmesError, match=r"parallel\.tp is 2, which engine torch does not have\nhint"):
        plan_for(gpu_inventory([1, 1]), trainer_job("torch", **asked, parallel={"tp": 2}))


def test_a_plan_that_an_engine_would_number_or_run_otherwise_is_noticed() -> None:
    job = trainer_job("megatron", model=SMALL, global_batch_size=64, parallel={"tp": 1, "pp": 1, "dp": 8})
    plan = plan_for(gpu_inventory([1]), job)
    assert check_engine(plan) == []
    first, second = (plan.ranks[at].model_copy(update={"dp_rank": 1 - at}) for at in (0, 1))
    swapped = plan.model_copy(update={"ranks": (first, second, *plan.ranks[2:])})
    assert "rank 0 is number 1 to engine megatron" in check_engine(swapped)
    assert "engine megatron has no schedule eager" in check_engine(plan.model_copy(update={"schedule": "eager"}))
    apart = plan.model_copy(update={"groups": (plan.groups[0].model_copy(update={"ranks": (0, 1, 2, 3)}),)})
    assert "groups of axis dp differ from those that engine megatron forms" in check_engine(apart)


@pytest.mark.slow
def test_the_price_of_an_engine_is_a_sentence() -> None:
    fleet, trainer = cpu_inventory([2, 1]), {"engine": "megatron", "command": ["python", "train.py"]}
    plan = plan_for(fleet, bed_job(trainer=trainer, data=None, parallel={}))
    (sentence,) = engine_sentence(fleet, plan, 60.0)
    assert sentence.startswith("Planned for megatron: 1f1b instead of eager, +4% per step")
    one = cpu_inventory([1])
    (sentence,) = engine_sentence(one, plan_for(one, bed_job(trainer=trainer, data=None, parallel={})), 60.0)
    assert "no choice that it lacks" in sentence
    assert engine_sentence(one, plan_for(one, bed_job(parallel={})), 60.0) == ()


def test_gradients_are_reduced_when_each_engine_reduces_them() -> None:
    """FSDP2 in every backward, unless it is told to wait, as accelerate does; then whole gradients take memory."""
    plans = {}
    for engine in ("torch", "accelerate"):
        for samples in (1, 2):  # of two on each replica
            fixed = {"dp": 32, "zero": 3, "micro_batch_size": samples, "recompute": "full"}
            job = trainer_job(engine, model=SMALL, precision="fp32", global_batch_size=64, parallel=fixed)
            plans[engine, 2 // samples] = plan_for(gpu_inventory([2, 2]), job)
    sent = {
        (*key, network): sum(
            each.sent_bytes for each in plan.prediction.traffic if (each.network == "shared") == (network == "shared")
        )
        for key, plan in plans.items()
        for network in ("shared", "inside")
    }
    assert {plan.weight_shards for plan in plans.values()} == {16}
    assert sent["torch", 2, "shared"] == pytest.approx(2 * sent["torch", 1, "shared"], rel=1e-6)
    assert sent["accelerate", 2, "shared"] == sent["accelerate", 1, "shared"] == sent["torch", 1, "shared"]
    assert sent["torch", 2, "inside"] > sent["accelerate", 2, "inside"] > sent["torch", 1, "inside"]
    assert plans["torch", 2].prediction.step_s > plans["accelerate", 2].prediction.step_s

    execution = {key: candidate_of(plan).execution(plan.job) for key, plan in plans.items()}
    whole = [state_bytes(1000, each) - state_bytes(1000, execution["torch", 1]) for each in execution.values()]
    assert whole == [0, 0, 4000, 0]


@pytest.mark.parametrize(("pp", "across", "whole"), [(1, 4 * 8, 0), (2, 4, 2 + 4)])
def test_torchtitan_reduces_in_every_backward_but_once_in_a_pipeline(pp: int, across: int, whole: int) -> None:
    engine = ENGINES["torchtitan"]
    assert engine.across_bytes(2, pp, 8) == (across, across)
    assert engine.whole_bytes(2, pp, 8) == whole
    assert engine.whole_bytes(2, pp, 1) == 0


def test_copies_of_shards_keep_states_and_all_reduce_gradients_between_clusters() -> None:
    """torch's HSDP; the bundled trainer updates each weight once, and sends it to the other clusters as 16 bits."""
    fixed = {"zero": 3, "tp": 1, "pp": 1}
    jobs = trainer_job("torch", parallel={"zero": 3}), gpt_7b(parallel=fixed)
    hsdp, bundled = (plan_for(gpu_inventory([2, 2]), job) for job in jobs)
    assert (hsdp.weight_shards, hsdp.dp) == (bundled.weight_shards, bundled.dp) == (16, 32)
    assert candidate_of(hsdp).execution(hsdp.job).dp == 16
    assert candidate_of(bundled).execution(bundled.job).dp == 32
    crossing = [
        sum(each.sent_bytes for each in plan.prediction.traffic if each.network == "shared") for plan in (hsdp, bundled)
    ]
    assert crossing[0] / crossing[1] == pytest.approx((4 + 4) / (4 + 2))
