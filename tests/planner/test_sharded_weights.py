"""ZeRO-3: what it costs, when the planner chooses it, and that its plans verify, are priced again alike and run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from holmes_cli.screen.plan_tables import describe_degrees
from holmes_core.errors import HolmesError
from holmes_core.records.inventory import FabricKind, Inventory
from holmes_core.records.job import Job, Parallel
from holmes_core.records.plan import Plan
from holmes_core.records.trainer_settings import TrainerName
from holmes_runtime.config.model_shape import embedding_parameters, head_parameters, layer_parameters
from launcher.prepare.prepare import run_config_of
from planner.cost import counts as cost
from planner.cost.collectives import PassTimes
from planner.layout.reprice import reprice
from planner.layout.verify import verify
from planner.layout.write_out import contender_step_s
from planner.make_plan import WORTH_SHARDING
from planner.problem.candidates import Candidate, candidate_of
from planner.problem.problem import read_problem
from planner.problem.sharded_weights import WeightTraffic
from planner.schedule.placement_simulator import PlacementSimulator
from planner.schedule.run_mode import RunMode
from planner.schedule.runners_up import Contender
from planner.search.placement import Placement, PricedPlacement
from tests.planner.drawn_fleets import drawn_fleet, drawn_job, with_memory
from tests.planner.fleets import GIB, bed_job, cpu_inventory, gpu_inventory, plan_for
from tests.planner.test_counts import TINY, execution_of
from tests.planner.trainer_plans import trainer_job
from tests.seeds import few_of

H100 = "NVIDIA H100 80GB HBM3"
ONE_HOST = gpu_inventory([1], gpu_name=H100, memory_bytes=81559 * 2**20)
SMALL = {"num_layers": 4, "hidden_size": 64, "num_heads": 4, "seq_length": 32}


def preset_job(preset: str, **changes: Any) -> Job:
    data: dict[str, Any] = {
        "model": {"preset": preset},
        "data": {"path": "/data"},
        "steps": 10,
        "global_batch_size": 64,
    }
    return Job.model_validate(data | changes)


def sent_bytes(plan: Plan, network: str) -> int:
    return max(traffic.sent_bytes for traffic in plan.prediction.traffic if traffic.network == network)


def test_states_by_hand() -> None:
    # bf16: of weight 2, sum 4, master 4 and moments 8 a fourth each; the sums are the reduced gradients.
    assert cost.state_bytes(100, execution_of(dp=4, weight_shards=4)) == 150 + 300
    # Two clusters of four: a fourth of weight and sum, an eighth of master, moments and what is reduced across.
    assert cost.state_bytes(100, execution_of(dp=8, weight_shards=4)) == 150 + 250


def test_two_layers_are_whole_at_a_time_the_largest() -> None:
    layer, embedding, head = (count(TINY) for count in (layer_parameters, embedding_parameters, head_parameters))
    sharded = execution_of(dp=2, weight_shards=2)
    assert cost.whole_layers_bytes(TINY, sharded, False, False) == 2 * layer * 6
    assert cost.whole_layers_bytes(TINY, sharded, True, True) == 2 * layer * 6  # it is larger than both
    many_words = replace(TINY, vocab_size=1000)
    ends = 1000 * 4 - 40 + embedding, 1000 * 4 - 40 + head
    assert cost.whole_layers_bytes(many_words, sharded, True, False) == (layer + ends[0]) * 6
    assert cost.whole_layers_bytes(many_words, sharded, True, True) == sum(ends) * 6
    assert cost.whole_layers_bytes(many_words, execution_of(dp=2), True, True) == 0


def test_traffic_is_hidden_by_compute_that_takes_longer() -> None:
    traffic = WeightTraffic(gather_s=2.0, reduce_s=3.0)
    assert traffic.under(PassTimes(4.0, 8.0)) == PassTimes(4.0, 8.0)
    assert traffic.under(PassTimes(1.0, 2.0)) == PassTimes(2.0, 5.0)


def test_a_model_that_fits_without_is_planned_without() -> None:
    untied = {"preset": "llama-3.2-1b", "tied_embeddings": False}  # where it is tied, there is no choice
    assert plan_for(ONE_HOST, preset_job("", model=untied)).zero == 1
    assert plan_for(cpu_inventory([4]), bed_job(parallel={})).zero == 1


def test_llama_3_8b_at_8k_needs_no_tensor_parallelism_on_one_host() -> None:
    plan = plan_for(ONE_HOST, preset_job("llama-3-8b", parallel={"zero": 3}))

    assert (plan.tp, plan.pp, plan.dp, plan.weight_shards) == (1, 1, 8, 8)
    assert describe_degrees(plan).endswith("ZeRO-3")
    assert verify(plan, ONE_HOST) == []


def test_zero_3_is_chosen_only_where_it_wins_by_more_than_its_error() -> None:
    sharded, plan = (
        plan_for(ONE_HOST, preset_job("llama-3-8b", parallel={"zero": 3})),
        plan_for(ONE_HOST, preset_job("llama-3-8b")),
    )

    assert (plan.zero, plan.tp * plan.pp) == (1, 2)
    assert sharded.prediction.step_s < plan.prediction.step_s < WORTH_SHARDING * sharded.prediction.step_s


def test_a_layer_under_zero_3_takes_the_exposed_part_of_its_traffic_and_no_less_than_all_of_it() -> None:
    traffic = WeightTraffic(1.0, 2.0, exposed=0.5)
    assert traffic.under(PassTimes(10.0, 20.0)) == PassTimes(10.5, 21.5)
    assert traffic.under(PassTimes(0.1, 0.2)) == PassTimes(1.0, 3.0)


def test_a_model_that_fits_only_sharded_is_planned() -> None:
    job = preset_job("llama-3-8b", parallel={"tp": 1, "pp": 1})
    small = gpu_inventory([2], gpu_name=H100, memory_bytes=40 * GIB)
    with pytest.raises(HolmesError, match="no candidate fits"):
        plan_for(small, job.model_copy(update={"parallel": job.parallel.model_copy(update={"zero": 1})}))

    plan = plan_for(small, job)
    assert (plan.zero, plan.weight_shards) == (3, plan.dp)
    assert max(plan.prediction.memory_bytes) < 40 * GIB
    assert plan.usual_order is None


def test_replicas_of_two_clusters_share_weights_inside_each() -> None:
    fixed = {"tp": 1, "pp": 1, "dp": 16, "zero": 3, "micro_batch_size": 1}
    inventory = gpu_inventory([1, 1], gpu_name=H100, shared_gbps=100.0)
    plan = plan_for(inventory, preset_job("llama-3-8b", parallel=fixed))

    assert (plan.zero, plan.data_parallel, plan.weight_shards) == (3, "hierarchical", 8)
    assert verify(plan, inventory) == []
    assert reprice(inventory, plan).step_s == pytest.approx(plan.prediction.step_s)
    config = run_config_of(plan, "run")
    assert (config.zero, all(map(config.shards_weights, config.ranks))) == (3, True)
    # Across clusters a part travels once a step: reduced in 4 bytes and gathered in 2, half of each, of an eighth.
    candidate = candidate_of(plan)
    parameters = sum(
        count(plan.job.model) * times
        for count, times in ((layer_parameters, 32), (embedding_parameters, 1), (head_parameters, 1))
    )
    assert candidate.weight_shards == 8
    assert sent_bytes(plan, "shared") == pytest.approx(8 * parameters / 8 * 6 / 2, rel=1e-6)


def test_layers_travel_for_every_micro_batch() -> None:
    fixed = {"pp": 1, "dp": 2, "micro_batch_size": 2, "zero": 3}
    job = bed_job(model=SMALL, parallel=fixed, global_batch_size=16, precision="fp32")
    plan = plan_for(cpu_inventory([2]), job)

    layer, embedding, head = (count(job.model) for count in (layer_parameters, embedding_parameters, head_parameters))
    gathered, reduced = embedding + 2 * 4 * layer + head, embedding + 4 * layer + head
    assert plan.microbatches == (4, 4)
    assert sent_bytes(plan, "a") == pytest.approx(4 * (4 * gathered + 4 * reduced) / 2, rel=1e-6)


def test_a_stage_that_ends_a_backward_where_it_begins_a_forward_gathers_that_layer_once() -> None:
    fixed = {"pp": 2, "dp": 2, "micro_batch_size": 2, "zero": 3, "schedule": "1f1b", "layers": [2, 2]}
    job = bed_job(model=SMALL, parallel=fixed, global_batch_size=16, precision="fp32")
    plan = plan_for(cpu_inventory([4]), job)

    layer, head = layer_parameters(job.model), head_parameters(job.model)
    # The last stage: forward 0 1 head, backward head 1 0, forward 0 1 head ...; its neighbour also sends messages.
    gathered = (3 * layer + head) * 4 + layer
    reduced = (2 * layer + head) * 4
    groups = {group.name: group for group in plan.groups}
    assert "dp/stage1" in groups
    rank = plan.ranks[groups["dp/stage1"].ranks[0]]
    edges = 4 * 4 * 2 * job.model.seq_length * job.model.hidden_size
    traffic = next(each for each in plan.prediction.traffic if each.host == rank.host and each.network == "a")
    assert traffic.sent_bytes == pytest.approx(4 * (gathered + reduced) / 2 + edges, rel=1e-6)


@pytest.mark.parametrize("schedule", few_of(1, ["1f1b", "gpipe", "interleaved", None]))
def test_a_pipeline_under_zero_3_verifies_and_runs(schedule: str | None) -> None:
    fixed = {"pp": 2, "dp": 2, "zero": 3, "schedule": schedule}
    inventory = cpu_inventory([2, 2])
    plan = plan_for(inventory, bed_job(parallel=fixed))

    assert (plan.zero, plan.weight_shards) == (3, 2)
    assert plan.schedule != "zero-bubble"
    assert verify(plan, inventory) == []
    assert reprice(inventory, plan).step_s == pytest.approx(plan.prediction.step_s)
    assert run_config_of(plan, "run").zero == 3


def test_it_is_no_faster_than_without_where_both_fit() -> None:
    seconds = [
        plan_for(cpu_inventory([4], fabric_gbps=0.5), bed_job(parallel={"pp": 1, "dp": 4, "zero": zero}))
        for zero in (1, 3)
    ]
    first, third = (plan.prediction.step_s for plan in seconds)
    assert first <= third


def test_zero_bubble_with_zero_3_is_refused() -> None:
    with pytest.raises(HolmesError, match=r"zero 3 with parallel\.schedule zero-bubble"):
        read_problem(cpu_inventory([4]), bed_job(parallel={"schedule": "zero-bubble", "zero": 3}))


def test_verify_notices_zero_3_that_the_job_forbids() -> None:
    inventory = cpu_inventory([4])
    plan = plan_for(inventory, bed_job(parallel={"pp": 1, "dp": 4, "zero": 3}))
    forbids = plan.job.model_copy(update={"parallel": plan.job.parallel.model_copy(update={"zero": 1})})

    assert verify(plan.model_copy(update={"job": forbids}), inventory) == ["zero is 3, but the job fixes 1"]


def h100s(sizes: Sequence[int], kind: FabricKind = "InfiniBand", **networks: Any) -> Inventory:
    """Hosts of eight H100 of 80 GB."""
    kinds, memory_bytes = [kind] * len(sizes), 81_559 * 2**20
    return gpu_inventory(sizes, gpu_name=H100, memory_bytes=memory_bytes, kinds=kinds, **networks)


def llama_13b(batch: int, **fixed: Any) -> Job:
    """Llama 2 13B with one tensor shard and one stage."""
    return preset_job("llama-2-13b", global_batch_size=batch, parallel={"tp": 1, "pp": 1, **fixed})


def test_replicas_that_share_weights_in_each_of_several_clusters_are_not_placed_in_one() -> None:
    assert plan_for(h100s([1, 3], shared_gbps=10.0), llama_13b(96)).weight_shards == 24


@pytest.mark.parametrize("sizes", few_of(1, map(pytest.param, [(1, 1), (1, 1, 2)])))
def test_weights_fixed_to_be_shared_are_shared_inside_clusters_where_they_fit_there(sizes: tuple[int, ...]) -> None:
    """Bounds of all replicas together hid it on slow fabrics: 47.8 s with half the hosts, where 29 s are to be had."""
    plan = plan_for(h100s(sizes, "Ethernet", rdma_gbps=10.0, shared_gbps=25.0), llama_13b(384, zero=3))
    assert plan.weight_shards == 8


@pytest.mark.slow
def test_a_schedule_that_shared_weights_cannot_run_leaves_plans_with_whole_ones() -> None:
    fleet, job = with_memory(drawn_fleet(1025), 0.4), drawn_job(1025)
    plan = plan_for(fleet, job.model_copy(update={"parallel": Parallel(schedule="gpipe")}))
    assert plan.schedule == "gpipe"
    assert plan.zero == 1 or plan.pp == 1


def sharded_step_s(job: Job, inventory: Inventory, sites: tuple[int, ...]) -> tuple[float, float]:
    """Seconds by classes and as written out of four replicas on `sites` that share weights, one sample at a time."""
    problem, candidate = read_problem(inventory, job), Candidate(1, 1, 4, 1, weight_shards=4)
    placement = Placement(candidate, (8,), (sites,), (job.global_batch_size // 4,) * 4)
    simulator = PlacementSimulator(job, problem.coefficients(candidate), placement)
    mode = simulator.timed(RunMode("1f1b", 1, (), (8,), 0.0))
    crossing = placement.crossing(problem.fleet)
    contender = Contender(PricedPlacement(mode.step_s, placement), mode, crossing)
    return mode.step_s, contender_step_s(problem, contender)


LARGE = {"num_layers": 8, "hidden_size": 4096, "num_heads": 32, "seq_length": 2048, "vocab_size": 32000}


@pytest.mark.parametrize("trainable", [None, {"lora": {"rank": 16, "targets": ["query", "value"]}}])
def test_weights_shared_over_a_wire_are_gathered_over_it(trainable: dict[str, Any] | None) -> None:
    """By classes such a placement seemed to take a fortieth of its step as written out, and displaced faster ones."""
    job = trainer_job("torchtitan", model=LARGE, global_batch_size=16, trainable=trainable)
    by_classes_s, written_s = sharded_step_s(job, gpu_inventory([1, 1], gpus_per_host=2), (0, 0, 1, 1))
    assert 0.9 * written_s < by_classes_s < written_s


@pytest.mark.parametrize("engine", ["torch", "accelerate"])
def test_gradients_that_are_reduced_once_are_priced_once_as_written_out(engine: TrainerName) -> None:
    """A written-out step of accelerate counted a reduction in every micro-batch: here nearly twice its seconds."""
    job = trainer_job(engine, model=LARGE, global_batch_size=32, parallel={"zero": 3})
    one_cluster = gpu_inventory([2], gpus_per_host=2, kinds=("Ethernet",))
    by_classes_s, written_s = sharded_step_s(job, one_cluster, (0, 0, 0, 0))
    assert by_classes_s == pytest.approx(written_s, rel=0.002)
