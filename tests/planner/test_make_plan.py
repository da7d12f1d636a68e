"""Whole plans: the bed's, all degrees four hosts allow, refusals, and what must not change them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holmes_core.errors import HolmesError
from holmes_core.records.inventory import Inventory
from holmes_core.records.plan import Plan
from holmes_core.records.record_file import read_file, write_atomically
from planner.layout.verify import verify
from tests.planner.fleets import GIB, bed_job, cpu_inventory, gpt_7b, gpu_inventory, plan_anew, plan_for
from tests.seeds import EXPENSIVE, few_of

BED = cpu_inventory([2, 2])
SMALL_GPT = {
    "model": {"num_layers": 8, "hidden_size": 1024, "num_heads": 16, "seq_length": 512, "vocab_size": 1000},
    "global_batch_size": 32,
}


def networks(plan: Plan, axis: str) -> set[str]:
    """The networks the groups of `axis` use."""
    return {group.network for group in plan.groups if group.axis == axis}


def shared_bytes(plan: Plan) -> int:
    """Bytes sent on the shared network per step."""
    return sum(traffic.sent_bytes for traffic in plan.prediction.traffic if traffic.network == "shared")


def refusal(inventory: Inventory, **changes: Any) -> HolmesError:
    """The error for the bed's job with `changes`."""
    with pytest.raises(HolmesError) as caught:
        plan_for(inventory, bed_job(**changes))
    return caught.value


def test_bed_has_a_stage_in_each_cluster() -> None:
    plan = plan_for(BED, bed_job(parallel={"pp": 2, "dp": 2, "schedule": "1f1b"}))
    assert [stage.clusters for stage in plan.stages] == [("a",), ("b",)]
    assert [rank.host for rank in plan.ranks] == ["a1", "a2", "b1", "b2"]


def test_bed_reduces_gradients_on_fabrics_and_crosses_with_activations() -> None:
    plan = plan_for(BED, bed_job())
    assert networks(plan, "dp") == {"a", "b"}
    assert networks(plan, "pp_forward") == networks(plan, "pp_backward") == {"shared"}
    assert [group.interfaces for group in plan.groups if group.axis == "dp"] == [("eth1", "eth1")] * 2


def test_bed_has_the_groups_in_order() -> None:
    assert [
        (group.name, group.ranks)
        for group in plan_for(BED, bed_job(parallel={"pp": 2, "dp": 2, "schedule": "1f1b"})).groups
    ] == [
        ("dp/stage0", (0, 1)),
        ("dp/stage1", (2, 3)),
        ("edge/replica0/0-1/forward", (0, 2)),
        ("edge/replica0/0-1/backward", (0, 2)),
        ("edge/replica1/0-1/forward", (1, 3)),
        ("edge/replica1/0-1/backward", (1, 3)),
    ]


def test_bed_traffic_by_hand() -> None:
    plan = plan_for(BED, bed_job(parallel={"pp": 2, "dp": 2, "micro_batch_size": 4, "schedule": "1f1b"}))
    # 4 micro-batches of 4 x 128 x 352 fp32 values each way; half of 2 x stage 0's gradients on the fabric.
    messages = 4 * (4 * 4 * 128 * 352)
    gradients = 4 * (5 * (12 * 352**2 + 13 * 352) + (256 + 128) * 352)
    a1 = {t.netdev: (t.sent_bytes, t.received_bytes) for t in plan.prediction.traffic if t.host == "a1"}
    assert a1 == {"eth0": (messages, messages), "eth1": (gradients, gradients)}


def test_bed_is_proven_optimal() -> None:
    solve = plan_for(BED, bed_job()).solve
    assert (solve.status, solve.gap) == ("optimal", 0)


def test_parts_add_up_to_the_step() -> None:
    p = plan_for(BED, bed_job()).prediction
    parts = p.compute_s + p.bubble_s + p.exposed_tp_s + p.exposed_edge_s + p.exposed_dp_s + p.optimizer_s
    assert parts == pytest.approx(p.step_s, rel=1e-9)
    assert p.tokens_per_s == pytest.approx(32 * 128 / p.step_s)


def test_usual_order_reduces_gradients_across_clusters_and_is_slower() -> None:
    usual = plan_for(BED, bed_job(), order="usual")
    assert networks(usual, "dp") == {"shared"}
    assert networks(usual, "pp_forward") == {"a", "b"}
    assert [(rank.pp_rank, rank.dp_rank) for rank in usual.ranks] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    holmes = plan_for(BED, bed_job())
    assert holmes.usual_order == usual.prediction
    assert usual.prediction.step_s > holmes.prediction.step_s
    assert usual.solve.status == "fixed"
    assert usual.solve.bound_s == holmes.solve.bound_s


@pytest.mark.parametrize("order", ["holmes", "usual"])
@pytest.mark.parametrize(("pp", "dp"), few_of(3, [(1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2), (3, 1), (4, 1)]))
def test_every_degree_four_hosts_allow_is_planned(pp: int, dp: int, order: str) -> None:
    plan = plan_for(BED, bed_job(global_batch_size=24, parallel={"pp": pp, "dp": dp}), order=order)
    assert (plan.pp, plan.dp, plan.world_size) == (pp, dp, pp * dp)
    assert verify(plan, BED) == []


def test_four_replicas_of_one_stage_span_both_clusters() -> None:
    plan = plan_for(BED, bed_job(parallel={"pp": 1, "dp": 4}))
    assert plan.stages[0].clusters == ("a", "b")
    assert networks(plan, "dp") == {"a", "b"}
    assert networks(plan, "dp_across") == {"shared"}


@pytest.mark.slow
def test_free_degrees_on_a_very_slow_network_stay_on_one_host() -> None:
    slow = cpu_inventory([2, 2], fabric_gbps=1e-4, shared_gbps=1e-4)
    assert plan_for(slow, bed_job(parallel={})).world_size == 1
    plan = plan_for(slow, bed_job(parallel={}, slots_per_host=4))
    assert plan.world_size == 4
    assert len(plan.nodes) == 1
    assert plan.prediction.traffic == ()


def test_free_degrees_on_a_fast_network_use_all_slots() -> None:
    assert plan_for(cpu_inventory([2, 2], 100, 100), bed_job(parallel={})).world_size == 4


@pytest.mark.slow
def test_slower_shared_network_never_gets_more_bytes() -> None:
    speeds = (10.0, 1.0, 0.1, 0.01, 0.001)
    sent = [shared_bytes(plan_for(cpu_inventory([2, 2], 2.0, gbps), bed_job(parallel={}))) for gbps in speeds]
    assert sent == sorted(sent, reverse=True)


@pytest.mark.slow
def test_order_of_hosts_does_not_change_the_objective() -> None:
    inventory = cpu_inventory([3, 2])
    shuffled = inventory.model_copy(
        update={
            "hosts": inventory.hosts[::-1],
            "clusters": tuple(
                cluster.model_copy(update={"hosts": cluster.hosts[::-1]}) for cluster in inventory.clusters[::-1]
            ),
        }
    )
    job = bed_job(parallel={})
    objective_s = plan_for(inventory, job).solve.objective_s
    assert plan_for(shuffled, job).solve.objective_s == pytest.approx(objective_s, rel=1e-9)


def test_same_input_gives_the_same_plan() -> None:
    job = bed_job(parallel={})
    assert plan_anew(BED, job).to_json() == plan_anew(BED, job).to_json()


def test_unreachable_hosts_are_left_out() -> None:
    gone = BED.hosts[3].model_copy(update={"reachable": False})
    cluster = BED.clusters[1].model_copy(update={"hosts": ("b1",)})
    inventory = BED.model_copy(update={"hosts": (*BED.hosts[:3], gone), "clusters": (BED.clusters[0], cluster)})
    plan = plan_for(inventory, bed_job(parallel={}))
    assert "b2" not in {rank.host for rank in plan.ranks}


def test_fixed_cut_is_kept() -> None:
    plan = plan_for(BED, bed_job(parallel={"layers": [7, 3], "dp": 2}))
    assert [(stage.first_layer, stage.stop_layer) for stage in plan.stages] == [(0, 7), (7, 10)]


def test_emulated_compute_takes_its_seconds() -> None:
    emulate = {"emulate": {"forward_s_per_layer": 0.01, "backward_s_per_layer": 0.02}}
    plan = plan_for(BED, bed_job(compute=emulate, parallel={"pp": 1, "dp": 1, "micro_batch_size": 8}))
    assert plan.prediction.compute_s == pytest.approx(32 * 10 * 0.03)
    assert plan.prediction.step_s == plan.prediction.compute_s + plan.prediction.optimizer_s


def test_tensor_groups_stay_on_a_host_and_take_whole_places() -> None:
    inventory = gpu_inventory([1, 1], gpus_per_host=3, kinds=("InfiniBand", "RoCE"))
    plan = plan_for(inventory, gpt_7b(**SMALL_GPT, parallel={"tp": 2, "pp": 2, "dp": 1}))
    assert [(rank.host, rank.local_rank, rank.gpu, rank.tp_rank) for rank in plan.ranks] == [
        ("a1", 0, 0, 0),
        ("a1", 1, 1, 1),
        ("b1", 0, 0, 0),
        ("b1", 1, 1, 1),
    ]
    assert [group.name for group in plan.groups if group.axis == "tp"] == ["tp/stage0/replica0", "tp/stage1/replica0"]


def test_progress_counts_candidates_settled() -> None:
    calls: list[tuple[int, int, float | None]] = []
    plan_anew(gpu_inventory([1, 1]), gpt_7b(), progress=lambda *call: calls.append(call))
    *before, (settled, total, best_s) = calls
    assert [each for each, _, _ in before] == list(range(1, len(calls)))
    assert settled == total
    assert best_s is not None


def test_time_limit_returns_the_best_so_far_with_its_gap() -> None:
    plan = plan_for(gpu_inventory([5, 3]), gpt_7b(), time_limit_s=0.0)
    assert plan.solve.status == "time limit"
    assert 0 < plan.solve.gap < 1
    assert plan.solve.programs <= 1


def test_too_few_slots_says_how_many_there_are() -> None:
    error = refusal(BED, parallel={"pp": 3, "dp": 2}, global_batch_size=32)
    assert "need 6 training slots" in error.what
    assert "offer 4 (a1 1, a2 1, b1 1, b2 1)" in error.what
    assert error.exit_code == 1


def test_more_stages_than_layers_is_wrong_usage() -> None:
    error = refusal(BED, parallel={"pp": 11})
    assert "parallel.pp is 11, num_layers is 10" in error.what
    assert error.exit_code == 2


def test_tensor_degree_must_divide_heads() -> None:
    assert refusal(BED, parallel={"tp": 3}).exit_code == 2


def test_unknown_speed_says_how_to_measure_it() -> None:
    error = refusal(BED, compute={})
    assert "host a1" in error.what
    assert "`holmes calibrate --host a1`" in error.hint


def test_unknown_gpu_says_how_to_measure_it() -> None:
    with pytest.raises(HolmesError, match=r"GPU 0 \(Tesla T4\)"):
        plan_for(gpu_inventory([1, 1], gpu_name="Tesla T4"), gpt_7b())


def test_unknown_bandwidth_names_host_and_netdev_and_the_remedy() -> None:
    error = refusal(cpu_inventory([2, 2], shared_gbps=None))
    assert "host a1: the bandwidth of eth0 on network shared is not known" in error.what
    assert "speeds_gbps: {eth0: 10}" in error.hint


@pytest.mark.parametrize("rate", [None, 0.0])
def test_one_rank_needs_no_bandwidth(rate: float | None) -> None:
    inventory = cpu_inventory([1, 1], fabric_gbps=rate, shared_gbps=rate)
    assert plan_for(inventory, bed_job(parallel={"pp": 1, "dp": 1})).world_size == 1


def test_ranks_of_one_host_need_no_bandwidth() -> None:
    inventory = cpu_inventory([1], fabric_gbps=None, shared_gbps=None)
    plan = plan_for(inventory, bed_job(slots_per_host=4))
    assert {group.bandwidth_bytes_per_s for group in plan.groups} == {None}


def test_clusters_without_a_shared_network_are_refused() -> None:
    error = refusal(cpu_inventory([2, 2], shared=False))
    assert error.what.startswith("NET-NO-SHARED-SUBNET")
    assert error.exit_code == 1


def test_one_cluster_needs_no_shared_network() -> None:
    plan = plan_for(cpu_inventory([4], shared=False), bed_job())
    assert {node.shared_netdev for node in plan.nodes} == {"eth1"}


def test_cuda_without_gpus_says_so() -> None:
    error = refusal(BED, device="cuda", compile=False)
    assert "no reachable host (a1, a2, b1, b2) has a GPU" in error.what


def test_too_little_memory_says_how_much_would_do() -> None:
    with pytest.raises(HolmesError) as caught:
        plan_for(gpu_inventory([1, 1], gpus_per_host=1, memory_bytes=16 * GIB), gpt_7b())
    assert "needs" in caught.value.what
    assert "has 16.0 GiB" in caught.value.what
    assert "use GPUs with at least" in caught.value.hint
    assert caught.value.exit_code == 1


def test_memory_limits_push_layers_to_more_stages() -> None:
    job = gpt_7b(global_batch_size=64, parallel={"tp": 1, "recompute": "none", "zero": 1})
    plan = plan_for(gpu_inventory([2, 2], memory_bytes=24 * GIB), job)
    assert plan.pp >= 4
    assert max(plan.prediction.memory_bytes) <= 24 * GIB


def test_usual_order_is_none_where_an_even_cut_does_not_fit() -> None:
    inventory = gpu_inventory([1, 1], gpus_per_host=1, memory_bytes=None)
    parallel = {"pp": 2, "dp": 1, "micro_batch_size": 1, "recompute": "none", "schedule": "1f1b"}
    job = gpt_7b(parallel=parallel)
    even = gpt_7b(parallel=parallel | {"layers": [18, 18]})
    first, last = plan_for(inventory, even).prediction.memory_bytes
    assert first > last
    tight = gpu_inventory([1, 1], gpus_per_host=1, memory_bytes=first - 1)
    assert plan_for(tight, job).usual_order is None
    with pytest.raises(HolmesError, match="the usual order does not fit: stage 0"):
        plan_for(tight, job, order="usual")


@given(
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3), shared_gbps=st.floats(0.01, 100), slots=st.integers(1, 2)
)
@EXPENSIVE
def test_plan_survives_its_file(
    sizes: list[int], shared_gbps: float, slots: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    job = bed_job(slots_per_host=slots, parallel={"pp": 1, "micro_batch_size": 2})
    plan = plan_for(cpu_inventory(sizes, shared_gbps=shared_gbps), job, time_limit_s=5.0)
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    write_atomically(path, plan.to_json())
    assert read_file(Plan, path) == plan


def test_a_free_emulated_batch_is_not_put_into_one_micro_batch_on_one_host() -> None:
    emulate = {"emulate": {"forward_s_per_layer": 0.01, "backward_s_per_layer": 0.02}}
    plan = plan_for(cpu_inventory([2, 2]), bed_job(compute=emulate, parallel={}))
    assert plan.world_size == 4
    assert plan.prediction.step_s > 32 * 10 * 0.03 / 4
