"""Megatron's optimizer with an instance in each cluster: when it is planned, what it costs, and what it sends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holmes_cli.screen.plan_tables import describe_degrees
from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import Plan, PlanGroup, Prediction
from holmes_core.records.trainer_settings import TrainerName, TrainerSettings
from holmes_runtime.config.model_shape import bucket_bytes, gradient_order
from launcher.prepare.engine_arguments import command_of, engine_arguments
from planner.advice.engine_price import engine_sentence
from planner.layout.layout import Layout, lay_out
from planner.layout.layout_costs import LayoutCosts
from planner.layout.predict import predict
from planner.layout.reprice import layout_of, reprice
from planner.layout.verify import verify
from planner.problem.candidates import Candidate
from planner.problem.problem import Problem, read_problem
from planner.schedule.buckets import BucketExchange, StagePart, make_buckets
from planner.schedule.placement_simulator import PlacementSimulator
from planner.search.placement import Placement
from planner.search.whole_replicas import place_whole_replicas
from tests.planner.fleets import gpu_inventory, plan_for
from tests.planner.measured_links import measured, with_latency, with_links
from tests.planner.trainer_plans import trainer_job

FIXED = {"tp": 8, "pp": 1, "dp": 4, "micro_batch_size": 2, "recompute": "none"}
TWO = gpu_inventory([2, 2], shared_gbps=10.0)
JOB = trainer_job("megatron", global_batch_size=64, parallel=FIXED)


def in_one_ring(inventory: Inventory, plan: Plan) -> Prediction:
    """The prediction of the plan's ranks with one instance of the optimizer."""
    problem = read_problem(inventory, plan.job)
    own = layout_of(problem, plan)
    candidate = own.candidate._replace(instances=1)
    return predict(problem, lay_out(problem, candidate, own.mode, own.ranks, own.microbatches))


def problem_and_layout(inventory: Inventory, plan: Plan) -> tuple[Problem, Layout]:
    problem = read_problem(inventory, plan.job)
    return problem, layout_of(problem, plan)


def groups_of(plan: Plan, axis: str) -> dict[tuple[int, ...], PlanGroup]:
    """The first shard's groups of an axis, by their members."""
    return {group.ranks: group for group in plan.groups if group.axis == axis and group.ranks[0] % plan.tp == 0}


def bucket_sizes(plan: Plan) -> Iterator[tuple[float, float]]:
    """By bucket of the one stage, seconds of the backward that makes it and the parameters of one shard."""
    layers = plan.job.model.num_layers
    full_bytes = bucket_bytes(Candidate(plan.tp, 1, 1, 1).rank_parameters(plan.job, (layers,), 0))
    problem, layout = problem_and_layout(TWO, plan)
    seconds = LayoutCosts(problem, layout).priced["a1"].whole
    backward_s: dict[StagePart, float] = {"head": seconds.head.backward_s, "layer": seconds.layer.backward_s}
    parts = gradient_order(layers, True, True)
    for each in make_buckets(plan.job.model, plan.tp, parts, backward_s, lambda n: BucketExchange(n, 0.0), full_bytes):
        yield each.backward_s, each.reduce_s


def test_replicas_over_two_clusters_get_an_instance_in_each() -> None:
    plan = plan_for(TWO, JOB)
    assert (plan.zero, plan.data_parallel, plan.optimizer_instances) == (1, "hierarchical", 2)
    assert {members: group.network for members, group in groups_of(plan, "dp").items()} == {
        (0, 8): "a",
        (16, 24): "b",
    }
    assert {members: group.network for members, group in groups_of(plan, "dp_across").items()} == {
        (0, 16): "shared",
        (8, 24): "shared",
    }
    words = engine_arguments(plan)
    assert words[words.index("--num-distributed-optimizer-instances") + 1] == "2"
    assert describe_degrees(plan).endswith(", 2 optimizer instances")
    assert verify(plan, TWO) == []
    assert reprice(TWO, plan) == plan.prediction


def test_one_instance_is_not_named() -> None:
    one = plan_for(gpu_inventory([4]), JOB)
    assert one.optimizer_instances == 1
    assert "--num-distributed-optimizer-instances" not in engine_arguments(one)


@pytest.mark.parametrize(
    ("word", "instances"),
    [("{optimizer_instances}", 2), ("{tp}", 1), ("{steps}", 2), ("--reduce-scatter-with-fp32-accumulation", 1)],
)
def test_several_are_planned_only_where_the_command_is_told_and_can_run_them(word: str, instances: int) -> None:
    trainer = {"engine": "megatron", "command": ["python", "train.py", word]}
    plan = plan_for(TWO, JOB.model_copy(update={"trainer": TrainerSettings.model_validate(trainer)}))
    assert plan.optimizer_instances == instances
    if word == "{optimizer_instances}":
        assert command_of(plan) == ("python", "train.py", "2")


def test_of_both_ways_the_faster_is_planned_which_takes_more_memory() -> None:
    """All four hosts are full, so that these are all there are."""
    plan = plan_for(TWO, JOB)
    ring, own = in_one_ring(TWO, plan), plan.prediction
    assert own.step_s < 0.8 * ring.step_s
    parameters = Candidate(8, 1, 4, 2).rank_parameters(plan.job, (36,), 0)
    more = 12 * parameters * (1 / 2 - 1 / 4)  # masters and moments of 1/2 of the weights, not of 1/4
    assert own.memory_bytes[0] - ring.memory_bytes[0] == pytest.approx(more, rel=1e-6)


def test_a_bucket_waits_until_the_one_before_is_reduced_inside_and_between_instances() -> None:
    """Megatron-Core 0.16.1 has one stream for both: param_and_grad_buffer.py, start_grad_sync."""
    plan = plan_for(TWO, JOB)
    inside, across = (next(iter(groups_of(plan, axis).values())) for axis in ("dp", "dp_across"))
    share = 0.929  # of the NICs, as docs/cost-model.md has it
    made_s = sent_s = gathered_s = 0.0
    for backward_s, parameters in bucket_sizes(plan):
        made_s += backward_s
        reduced_s = parameters / 2 * 4 / share / (inside.rate_bytes_per_s or 0.0)
        all_reduced_s = 2 * (1 / 2) * (parameters / 2) * 4 / share / (across.rate_bytes_per_s or 0.0)
        sent_s = max(made_s, sent_s) + reduced_s + all_reduced_s
        gathered_s += parameters / 2 * 2 / share / (inside.rate_bytes_per_s or 0.0)
    late_s = sent_s - made_s
    assert late_s > 0.1
    assert late_s <= plan.prediction.exposed_dp_s <= late_s + gathered_s


def test_between_clusters_each_rank_all_reduces_its_part_in_fp32() -> None:
    plan = plan_for(TWO, JOB)
    parameters = Candidate(8, 1, 4, 2).rank_parameters(plan.job, (36,), 0)
    sent = {each.host: each.sent_bytes for each in plan.prediction.traffic if each.network == "shared"}
    assert sent == {host: pytest.approx(8 * parameters / 2 * 4, rel=1e-6) for host in ("a1", "a2", "b1", "b2")}


def test_where_memory_holds_states_once_alone_they_are_kept_once() -> None:
    plan = plan_for(TWO, JOB)
    needs = in_one_ring(TWO, plan).memory_bytes[0], plan.prediction.memory_bytes[0]
    tight = gpu_inventory([2, 2], shared_gbps=10.0, memory_bytes=sum(needs) // 2)
    lean = plan_for(tight, JOB)
    assert (lean.optimizer_instances, lean.data_parallel) == (1, "flat")
    assert max(lean.prediction.memory_bytes) <= needs[0]


def test_three_clusters_may_have_three_instances() -> None:
    job = trainer_job("megatron", global_batch_size=96, parallel={**FIXED, "dp": 6})
    fleet = gpu_inventory([2, 2, 2], kinds=("InfiniBand", "RoCE", "InfiniBand"), shared_gbps=10.0)
    plan = plan_for(fleet, job)
    assert (plan.optimizer_instances, plan.dp_group_size) == (3, 2)


def test_clusters_of_unequal_size_hold_equal_parts() -> None:
    """Three hosts' replicas would fit in the first cluster."""
    problem = read_problem(gpu_inventory([3, 2], shared_gbps=10.0), JOB)
    found = place_whole_replicas(problem.coefficients(Candidate(8, 1, 4, 2, instances=2)))
    assert found is not None
    assert found.placement.sites == ((0, 0, 1, 1),)
    plan = plan_for(gpu_inventory([3, 2], shared_gbps=10.0), JOB)
    assert plan.optimizer_instances == 2


def test_replicas_of_a_trainer_run_equally_many_micro_batches_on_unlike_clusters() -> None:
    fleet = gpu_inventory([2, 2], shared_gbps=10.0)
    h100 = [gpu.model_copy(update={"name": "NVIDIA H100 80GB HBM3"}) for gpu in fleet.hosts[0].gpus]
    hosts = [host.model_copy(update={"gpus": tuple(h100)} if host.name[0] == "b" else {}) for host in fleet.hosts]
    plan = plan_for(fleet.model_copy(update={"hosts": tuple(hosts)}), JOB)
    assert set(plan.microbatches) == {8}


@pytest.mark.parametrize("engine", ["megatron", "torchtitan"])
def test_exchanges_of_classes_and_of_ranks_are_the_same(engine: TrainerName) -> None:
    """Latency included: that of gathering waits under the first forward, or is the all-reduce's between copies."""
    fleet = with_latency(TWO, 0.002)
    links = [measured((f"{c}1", f"{c}2"), 8 * 1600e9 / 8, 1e-3) for c in "ab"]
    fleet = with_links(fleet, *fleet.links, *links)
    fixed = {key: value for key, value in FIXED.items() if key != "recompute"}
    plan = plan_for(fleet, trainer_job(engine, global_batch_size=64, parallel=fixed))
    problem, layout = problem_and_layout(fleet, plan)
    assert layout.candidate.copies == 2
    classes = problem.fleet.class_of
    row = tuple(classes[layout.first_shards[0, replica].host] for replica in range(4))
    placement = Placement(layout.candidate, layout.layers, (row,), layout.microbatches)
    simulator = PlacementSimulator(plan.job, problem.coefficients(layout.candidate), placement)
    by_class = simulator._exchanges[0](10_000_000)
    costs = LayoutCosts(problem, layout)
    assert by_class == pytest.approx(costs._exchange(costs._levels[0], 10_000_000), rel=1e-9)
    assert by_class.reduce_s > 0.001


def test_the_price_of_instances_is_said() -> None:
    (sentence,) = engine_sentence(TWO, plan_for(TWO, JOB), 60.0)
    assert sentence.startswith("Planned for megatron: optimizer states in each cluster instead of once, +32% per step")
