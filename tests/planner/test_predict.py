"""Predictions of placements written out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job
from holmes_core.records.link import Link, Spread
from holmes_core.records.plan import PlanRank, Prediction
from holmes_runtime.config.model_shape import stage_parameters
from holmes_runtime.config.schedule import ActionKind
from planner.layout.layout import Layout, lay_out
from planner.layout.predict import predict, predict_timeline
from planner.problem.candidates import Candidate
from planner.problem.problem import read_problem
from planner.schedule.run_mode import RunMode
from tests.planner.fleets import bed_job, cpu_inventory, gpt_7b, gpu_inventory

EMULATED = {"emulate": {"forward_s_per_layer": 0.01, "backward_s_per_layer": 0.02}}


def lay(
    inventory: Inventory, job: Job, hosts: list[list[list[str]]], layers: tuple[int, ...], **execution: Any
) -> Layout:
    """The placement in which hosts[pp_rank][replica] are the hosts of the shards."""
    cluster_of = {host: cluster.name for cluster in inventory.clusters for host in cluster.hosts}
    used: dict[str, int] = {}
    ranks: list[PlanRank] = []
    for pp_rank, replicas in enumerate(hosts):
        for dp_rank, shards in enumerate(replicas):
            for tp_rank, host in enumerate(shards):
                local_rank = used[host] = used.get(host, -1) + 1
                ranks.append(
                    PlanRank(
                        rank=len(ranks), host=host, cluster=cluster_of[host], local_rank=local_rank,
                        gpu=local_rank if job.device == "cuda" else None, pp_rank=pp_rank, dp_rank=dp_rank,
                        tp_rank=tp_rank,
                    )
                )  # fmt: skip
    tp, pp, dp = len(hosts[0][0]), len(hosts), len(hosts[0])
    candidate = Candidate(tp, pp, dp, execution.get("micro_batch_size", 2), execution.get("recompute", "none"))
    chunks = execution.get("chunks", 1)
    equal = (job.global_batch_size // (dp * candidate.micro_batch_size),) * dp
    mode = RunMode(execution.get("schedule", "1f1b"), chunks, execution.get("extra", ()), layers, 0.0)
    problem = read_problem(inventory, job)
    return lay_out(problem, candidate, mode, tuple(ranks), execution.get("microbatches", equal))


def prediction(inventory: Inventory, job: Job, layout: Layout) -> Prediction:
    """What the step costs, its parts adding up."""
    p = predict(read_problem(inventory, job), layout)
    parts = (p.compute_s, p.bubble_s, p.exposed_tp_s, p.exposed_edge_s, p.exposed_dp_s, p.optimizer_s)
    assert sum(parts) == pytest.approx(p.step_s, rel=1e-9)
    return p


FREE = {"action_s": 0.0, "update_bytes_per_s": 1e9}


def test_one_slot_computes_and_updates_and_nothing_else() -> None:
    inventory, job = cpu_inventory([1]), bed_job(compute=EMULATED, parallel={})
    p = prediction(inventory, job, lay(inventory, job, [[["a1"]]], (10,)))
    assert p.compute_s == pytest.approx(32 * 10 * 0.03)
    assert p.optimizer_s > 0
    assert p.step_s == pytest.approx(p.compute_s + p.optimizer_s)
    assert p.traffic == ()


def test_interleaving_crosses_more_often_for_less_bubble() -> None:
    inventory, job = cpu_inventory([2], fabric_gbps=100), bed_job(compute=EMULATED, parallel={})
    hosts = [[["a1"]], [["a2"]]]
    plain = prediction(inventory, job, lay(inventory, job, hosts, (5, 5)))
    halves = prediction(inventory, job, lay(inventory, job, hosts, (3, 2, 2, 3), schedule="interleaved", chunks=2))
    assert halves.bubble_s < plain.bubble_s
    # Edges 0-1 and 2-3 lead from a1 to a2, edge 1-2 back; gradients return on each: 3 messages each way instead of 1.
    assert [traffic.sent_bytes for traffic in halves.traffic] == [3 * traffic.sent_bytes for traffic in plain.traffic]


def test_zero_bubble_splits_an_emulated_backward_in_equal_halves() -> None:
    inventory, job = cpu_inventory([2]), bed_job(compute={**EMULATED, "overheads": FREE}, parallel={})
    layout = lay(inventory, job, [[["a1"]], [["a2"]]], (5, 5), schedule="zero-bubble")
    spans = predict_timeline(read_problem(inventory, job), layout)
    halves = {span.kind: span.end_s - span.start_s for span in spans if span.microbatch > 0}
    assert halves[ActionKind.BACKWARD_INPUT] == halves[ActionKind.BACKWARD_WEIGHT] == pytest.approx(0.1)


def test_replicas_with_more_microbatches_send_more() -> None:
    inventory, job = cpu_inventory([2, 2]), bed_job(parallel={})
    hosts = [[["a1"], ["b1"]], [["a2"], ["b2"]]]
    layout = lay(inventory, job, hosts, (5, 5), microbatches=(12, 4))
    sent = {t.host: t.sent_bytes for t in prediction(inventory, job, layout).traffic if t.network in "ab"}
    assert sent["a1"] == 3 * sent["b1"] == 12 * 4 * 2 * 128 * 352


def test_bf16_halves_messages_and_gathered_weights_but_not_gradients() -> None:
    inventory = cpu_inventory([2])
    sent = {}
    for precision in ("fp32", "bf16"):
        job = bed_job(precision=precision, parallel={})
        layout = lay(inventory, job, [[["a1"], ["a2"]]], (10,))
        sent[precision] = prediction(inventory, job, layout).traffic[0].sent_bytes
    parameters = stage_parameters(job.model, 10, True, True)
    assert sent == {"fp32": parameters * 8 // 2, "bf16": parameters * 6 // 2}


def test_gloo_sends_every_member_of_another_host_its_part() -> None:
    inventory = cpu_inventory([2])
    job = bed_job(parallel={}, slots_per_host=2)
    layout = lay(inventory, job, [[["a1"], ["a1"], ["a2"], ["a2"]]], (10,))
    parameters = stage_parameters(job.model, 10, True, True)
    # Reduce-scatter: two members send a quarter each to two others. All-gather: a ring crosses once, three quarters.
    expected = 4 * parameters * 2 * 2 / 4 + 4 * parameters * 3 / 4
    assert [t.sent_bytes for t in prediction(inventory, job, layout).traffic] == [round(expected)] * 2


def test_shards_send_their_part_and_share_the_memory() -> None:
    inventory = gpu_inventory([1, 1])
    job = gpt_7b(global_batch_size=16)
    one = lay(inventory, job, [[["a1"]], [["b1"]]], (18, 18))
    two = lay(inventory, job, [[["a1", "a1"]], [["b1", "b1"]]], (18, 18))
    whole, halves = prediction(inventory, job, one), prediction(inventory, job, two)
    assert [t.sent_bytes for t in whole.traffic] == [t.sent_bytes for t in halves.traffic]
    assert halves.memory_bytes[0] < 0.6 * whole.memory_bytes[0]
    assert (whole.exposed_tp_s, halves.exposed_tp_s > 0) == (0, True)


def test_recomputation_trades_memory_for_time() -> None:
    inventory, job = gpu_inventory([2]), gpt_7b(global_batch_size=16)
    hosts = [[["a1"]], [["a2"]]]
    none, full = (
        prediction(inventory, job, lay(inventory, job, hosts, (18, 18), recompute=r)) for r in ("none", "full")
    )
    assert full.memory_bytes[0] < none.memory_bytes[0]
    assert full.compute_s > 1.2 * none.compute_s


def test_measured_latency_slows_messages_down() -> None:
    near = cpu_inventory([2])
    spread, rate = Spread(min=0.1, median=0.1), Spread(min=235e6, median=235e6)
    link = Link(
        kind="inside", network="a", clusters=("a", "a"), hosts=("a1", "a2"), devices=("eth1", "eth1"), method="tcp",
        streams=1, direction="forward", latency_s=spread, bandwidth_bytes_per_s=rate, samples=1,
    )  # fmt: skip
    far, job = near.model_copy(update={"links": (link,)}), bed_job(parallel={})
    hosts = [[["a1"]], [["a2"]]]
    fast, slow = (prediction(inventory, job, lay(inventory, job, hosts, (5, 5))) for inventory in (near, far))
    assert slow.exposed_edge_s > fast.exposed_edge_s + 0.2
