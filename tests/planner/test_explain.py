"""What a plan means in figures: hosts alike, memory, load of NICs, the bottleneck, and what would help."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import Plan
from planner.advice.advise import Advised, Effort, advise, trying_more_hosts
from planner.advice.changes import LinkRate, MoreHost
from planner.advice.explain import (
    bottleneck,
    host_blocks,
    leave_hosts,
    nic_loads,
    ranges,
    stage_memories,
    step_parts,
    tasklets,
)
from planner.layout.reprice import plan_timeline, reprice
from tests.planner.fleets import GBPS, GIB, UNHURRIED, bed_job, cpu_inventory, gpt_7b, gpu_inventory, plan_for

PLAIN = {"pp": 2, "dp": 2, "schedule": "1f1b"}
BED = cpu_inventory([2, 2])
SLOW = cpu_inventory([2, 2], shared_gbps=0.02)  # so slow that the link between its clusters matters
SMALL_GPT = {
    "model": {"num_layers": 8, "hidden_size": 1024, "num_heads": 16, "seq_length": 512, "vocab_size": 1000},
    "global_batch_size": 64,
}


@pytest.fixture(scope="module")
def bed_plan() -> Plan:
    return plan_for(BED, bed_job())


@pytest.fixture(scope="module")
def slow_plan() -> Plan:
    return plan_for(SLOW, bed_job())


def test_numbers_in_a_row_are_a_range() -> None:
    assert ranges([0, 1, 2, 3, 5, 7, 8]) == "0-3, 5, 7-8"
    assert ranges([]) == ""


def test_parts_of_the_step_add_up(bed_plan: Plan) -> None:
    total_s = sum(part.seconds for part in step_parts(bed_plan.prediction))
    assert total_s == pytest.approx(bed_plan.prediction.step_s, rel=1e-9)


def test_few_hosts_have_a_block_each(bed_plan: Plan) -> None:
    assert [(block.cluster, block.hosts) for block in host_blocks(bed_plan)] == [
        ("a", ("a1",)),
        ("a", ("a2",)),
        ("b", ("b1",)),
        ("b", ("b2",)),
    ]


@pytest.mark.slow
def test_many_hosts_alike_are_one_block_and_every_rank_is_in_one() -> None:
    fleet = gpu_inventory([16, 16], gpus_per_host=2, shared_gbps=0.5)
    plan = plan_for(fleet, gpt_7b(**SMALL_GPT, parallel={"pp": 2, "dp": 32}))
    blocks = host_blocks(plan)
    assert [(block.cluster, len(block.hosts)) for block in blocks] == [("a", 16), ("b", 16)]
    assert [tasklets(plan, block.ranks) for block in blocks] == ["stage 0, replicas 0-31", "stage 1, replicas 0-31"]
    assert sorted(rank.rank for block in blocks for rank in block.ranks) == list(range(64))


def test_tasklets_name_shards_only_where_there_are_any() -> None:
    plan = plan_for(gpu_inventory([1, 1]), gpt_7b(**SMALL_GPT, parallel={"tp": 4, "pp": 2, "dp": 2}))
    first = [rank for rank in plan.ranks if rank.host == "a1"]
    assert tasklets(plan, first) == "stage 0, replicas 0-1, shards 0-3"


def test_memory_is_set_against_the_smallest_gpu_of_the_stage() -> None:
    fleet = gpu_inventory([2, 2])
    small = fleet.hosts[3].gpus[0].model_copy(update={"memory_bytes": 40 * GIB})
    hosts = (*fleet.hosts[:3], fleet.hosts[3].model_copy(update={"gpus": (small, *fleet.hosts[3].gpus[1:])}))
    plan = plan_for(fleet, gpt_7b(**SMALL_GPT, parallel={"pp": 2, "dp": 16}))
    memories = stage_memories(fleet.model_copy(update={"hosts": hosts}), plan)
    assert [memory.available_bytes for memory in memories] == [80 * GIB, 40 * GIB]
    assert [memory.needed_bytes for memory in memories] == list(plan.prediction.memory_bytes)


def test_memory_of_cpu_slots_is_not_known(bed_plan: Plan) -> None:
    assert [memory.available_bytes for memory in stage_memories(BED, bed_plan)] == [None, None]


def test_interface_is_busy_for_its_bytes_at_its_rate(bed_plan: Plan) -> None:
    loads = {(load.host, load.netdev): load for load in nic_loads(BED, bed_plan)}
    load = loads["a1", "eth0"]
    assert load.bandwidth_bytes_per_s == 0.1 * GBPS
    assert load.busy_s == max(load.sent_bytes, load.received_bytes) / (0.1 * GBPS)
    assert loads["a1", "eth1"].bandwidth_bytes_per_s == 2 * GBPS


def test_fabric_with_rdma_counts_at_its_rdma_rate() -> None:
    fleet = gpu_inventory([2, 2])
    plan = plan_for(fleet, gpt_7b(**SMALL_GPT, parallel={"pp": 2, "dp": 16}))
    rates = {load.network: load.bandwidth_bytes_per_s for load in nic_loads(fleet, plan)}
    assert rates == {"a": 1600 * GBPS, "b": 1600 * GBPS, "shared": 25 * GBPS}


def test_tensor_groups_stay_inside_their_host() -> None:
    plan = plan_for(gpu_inventory([1, 1]), gpt_7b(**SMALL_GPT, parallel={"tp": 4, "pp": 2, "dp": 2}))
    inside = {group.axis for group, leaves in zip(plan.groups, leave_hosts(plan), strict=True) if not leaves}
    assert inside == {"tp", "dp"}


def test_slow_gradients_are_named_as_the_bottleneck() -> None:
    job = bed_job(parallel={"pp": 2, "dp": 2, "schedule": "zero-bubble", "micro_batch_size": 1})
    sentence = bottleneck(plan_for(BED, job, order="usual"))
    assert "waiting for gradients" in sentence
    assert "through eth0 of a1 (network shared) at 94.15 Mbit/s per group" in sentence


def test_slow_edges_are_named_as_the_bottleneck() -> None:
    sentence = bottleneck(plan_for(cpu_inventory([2, 2], shared_gbps=0.01), bed_job(parallel=PLAIN)))
    assert "waiting for edges" in sentence
    assert "at 9.415 Mbit/s per group" in sentence


def test_lone_host_is_held_up_by_compute_alone() -> None:
    sentence = bottleneck(plan_for(cpu_inventory([1]), bed_job(parallel={"pp": 1, "dp": 1})))
    assert sentence.startswith("Compute is the bottleneck: it takes 99% of the step")


def test_plan_priced_on_its_own_inventory_is_its_own_prediction(bed_plan: Plan) -> None:
    assert reprice(BED, bed_plan) == bed_plan.prediction


def test_timeline_holds_every_action_once_and_ends_with_the_step(bed_plan: Plan) -> None:
    spans = plan_timeline(BED, bed_plan)
    assert len({(span.rank, span.kind, span.stage, span.microbatch) for span in spans}) == len(spans)
    assert len(spans) == 2 * (3 if bed_plan.schedule == "zero-bubble" else 2) * bed_plan.microbatches[0]
    assert 0.8 * bed_plan.prediction.step_s < max(span.end_s for span in spans) <= bed_plan.prediction.step_s


WAIT_S = 600.0  # for a plan made in the background


def advice_for(fleet: Inventory, plan: Plan, effort: Effort = UNHURRIED) -> Advised:
    with trying_more_hosts(fleet, plan.job, plan.order, effort) as more_hosts:
        return advise(fleet, plan, {change: call.result_within(WAIT_S) for change, call in more_hosts.items()}, effort)


@pytest.mark.slow
def test_advice_is_what_planning_on_the_changed_inventory_gives(slow_plan: Plan) -> None:
    advised = advice_for(SLOW, slow_plan)
    best = advised.found[0]
    assert best.change == LinkRate(("a", "b"), 0.04 * GBPS)
    assert best.words == "twice the bandwidth between a and b"
    assert best.step_s == plan_for(best.change.applied_to(SLOW), bed_job()).prediction.step_s
    assert best.step_s < slow_plan.prediction.step_s
    assert advised.untried == ()


@pytest.mark.slow
def test_advice_plans_no_host_anew_where_candidates_are_many(slow_plan: Plan) -> None:
    advised = advice_for(SLOW, slow_plan, replace(UNHURRIED, candidates=2 * slow_plan.solve.candidates - 1))
    assert advised.untried == ("+host:new-1=like:b2",)
    assert advised.found[0].step_s == reprice(LinkRate(("a", "b"), 0.04 * GBPS).applied_to(SLOW), slow_plan).step_s


@pytest.mark.slow
def test_one_more_host_is_advised_where_compute_is_all() -> None:
    fleet, job = cpu_inventory([2]), bed_job(global_batch_size=30, parallel={"pp": 1})
    plan = plan_for(fleet, job)
    best = advice_for(fleet, plan).found[0]
    assert best.change == MoreHost("new-1", like="a2")
    assert best.step_s == plan_for(best.change.applied_to(fleet), job).prediction.step_s


def test_advice_on_the_usual_order_does_not_take_another_order_for_the_gain_of_a_change() -> None:
    plan = plan_for(BED, bed_job(), order="usual")
    advised = advice_for(BED, plan)
    assert advised.untried == ("+host:new-1=like:a2", "+host:new-1=like:b2")
    assert [advice.step_s for advice in advised.found] == [
        reprice(advice.change.applied_to(BED), plan).step_s for advice in advised.found
    ]


def test_network_of_rate_zero_is_none_that_could_be_twice_as_fast() -> None:
    fleet = cpu_inventory([2, 1], fabric_gbps=0.0, shared_gbps=0.0)
    assert advise(fleet, plan_for(fleet, bed_job(parallel={"pp": 1, "dp": 1})), {}, UNHURRIED).found == ()


def test_advice_without_time_says_what_was_not_tried(slow_plan: Plan) -> None:
    advised = advise(SLOW, slow_plan, {}, Effort(limit_s=0.0))
    assert advised.untried == ("+host:new-1=like:a2", "+host:new-1=like:b2")
    assert [advice.change for advice in advised.found] == [LinkRate(("a", "b"), 0.04 * GBPS)]
