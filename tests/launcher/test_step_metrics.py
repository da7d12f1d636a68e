"""The ranks' reports of a step made one, and what the runtime is told the plan counts on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holmes_core.records.plan import Plan
from holmes_runtime.config.rank_metrics import ByteCounters, RankMetrics, WaitSeconds
from holmes_runtime.config.run_settings import Expectation
from holmes_runtime.config.verdicts import HostIsSlow
from launcher.journal.step_metrics import (
    StepCollector,
    StepMetrics,
    StepTotals,
    StepTraffic,
    by_interface,
    rdma_interfaces,
    traffic_per_step,
)
from launcher.prepare.prepare import planned_rdma_ports, run_config_of

from .plans import cpu_plan, gpu_plan

EMULATED = {"emulate": {"forward_s_per_layer": 0.01, "backward_s_per_layer": 0.02, "slowdown": {"b": 2.0}}}


def report(plan: Plan, rank: int, step_s: float) -> RankMetrics:
    """What the runtime writes of step 4."""
    is_last = plan.ranks[rank].pp_rank == plan.pp - 1
    return RankMetrics(
        step=4,
        rank=rank,
        loss=2.5 if is_last else None,
        eval_loss=2.75 if is_last else None,
        grad_norm=1.5,
        learning_rate=1e-3,
        skipped=False,
        step_s=step_s,
        paused_s=0.0,
        tokens_per_s=0.0,
        tflops_per_s=1.0 / step_s,
        mfu=0.5 / step_s,
        memory_bytes=1000 + rank,
        compute_s=0.5,
        exposed_s=WaitSeconds(tp=0.0, dp=0.1 * rank, pp_forward=0.1, pp_backward=0.0, sync=9.0),
        interfaces={"eth0": ByteCounters(10, 20)} if rank == 0 else {},
        verdicts=(HostIsSlow("x", 2.0),) if rank == 0 else (),
        outer=None,
    )


def test_a_step_is_that_of_the_slowest_rank() -> None:
    plan = cpu_plan()
    collector = StepCollector(plan)
    merged = [collector.add(report(plan, rank, step_s=1.0 + rank)) for rank in range(plan.world_size)]

    assert merged[:-1] == [None, None, None]
    finished = merged[-1]
    assert finished is not None
    step = finished.metrics
    assert (step.loss, step.eval_loss, step.step_s) == (2.5, 2.75, 4.0)
    assert (step.tflops_per_s, step.mfu, step.memory_bytes) == (0.25, 0.125, 1003)
    assert step.exposed_s == pytest.approx(0.4)
    assert finished.verdicts == (HostIsSlow("x", 2.0),)
    assert step.verdicts == ("slow host x: computes 2.0x longer than planned",)
    assert [(port.host, port.sent_bytes) for port in step.interfaces] == [(plan.ranks[0].host, 10)]


def expected_of(plan: Plan) -> Expectation:
    expectation = run_config_of(plan, "test").expectation
    assert expectation is not None
    return expectation


def test_an_emulated_rank_is_expected_to_take_its_layers_sleeps() -> None:
    plan = cpu_plan(compute=EMULATED)
    layers = {stage.index: stage.num_layers for stage in plan.stages}

    expected = expected_of(plan)

    for rank in plan.ranks:
        factor = 2.0 if rank.cluster == "b" else 1.0
        assert expected.compute_s[rank.rank] == pytest.approx(layers[rank.pp_rank] * 0.03 * factor)


def test_an_edge_is_expected_to_carry_activations_at_its_bandwidth() -> None:
    plan = cpu_plan()
    model = plan.job.model
    size_bytes = plan.micro_batch_size * model.seq_length * model.hidden_size * 4
    edges = {group.name: group for group in plan.groups if group.axis.startswith("pp")}

    expected = expected_of(plan)

    assert set(expected.transfer_s) == set(edges)
    for name, seconds in expected.transfer_s.items():
        bandwidth = edges[name].bandwidth_bytes_per_s
        assert bandwidth is not None
        assert seconds == pytest.approx(size_bytes / bandwidth)


def test_a_measured_speed_says_how_long_layers_and_head_take() -> None:
    plan = cpu_plan()  # at 2e10 FLOP/s
    model, (h, s) = plan.job.model, (352, 128)
    layer = 72 * plan.micro_batch_size * s * h**2 * (1 + s / (6 * h))
    head = 6 * plan.micro_batch_size * s * h * model.vocab_size

    expected = expected_of(plan)

    for rank in plan.ranks:
        flops = plan.stages[rank.pp_rank].num_layers * layer + (head if rank.pp_rank == 1 else 0)
        assert expected.compute_s[rank.rank] == pytest.approx(flops / 2e10)


def step_of(plan: Plan) -> StepMetrics:
    collector = StepCollector(plan)
    finished = [collector.add(report(plan, rank, step_s=1.0)) for rank in range(plan.world_size)][-1]
    assert finished is not None
    return finished.metrics


def test_bytes_a_step_are_the_mean_of_all_steps_since_gathered_weights_travel_into_the_next() -> None:
    plan = cpu_plan()
    port, step = plan.prediction.traffic[0], step_of(plan)
    steps = [replace(step, interfaces=(StepTraffic(port.host, port.netdev, sent, sent),)) for sent in (50, 100, 150)]

    seen = traffic_per_step(total(steps), plan)

    assert [one.sent_bytes for one in seen if (one.host, one.netdev) == (port.host, port.netdev)] == [100]


def test_traffic_is_the_mean_over_the_steps_that_have_any() -> None:
    plan = cpu_plan()
    port, step = plan.prediction.traffic[0], step_of(plan)
    first = replace(step, interfaces=())  # of a trainer's command
    later = replace(step, interfaces=(StepTraffic(port.host, port.netdev, 100, 200),))

    seen = traffic_per_step(total([first, later, later]), plan)

    assert [one.sent_bytes for one in seen if (one.host, one.netdev) == (port.host, port.netdev)] == [100]
    assert {one.sent_bytes for one in traffic_per_step(total([first]), plan)} == {None}


def total(steps: list[StepMetrics]) -> StepTotals:
    totals = StepTotals()
    for step in steps:
        totals.add(step)
    return totals


def test_a_step_that_lost_a_rank_s_metrics_is_given_up_once_a_later_one_is_whole() -> None:
    plan = cpu_plan()
    collector = StepCollector(plan)
    for number in range(1000):
        for rank in range(1, plan.world_size):
            assert collector.add(report(plan, rank, step_s=1.0)._replace(step=number)) is None
    finished = [collector.add(report(plan, rank, 1.0)._replace(step=1000)) for rank in range(plan.world_size)][-1]
    assert finished is not None
    assert finished.metrics.step == 1000
    assert collector.add(report(plan, 0, step_s=1.0)._replace(step=999)) is None  # of which nothing is held any more


def rdma_steps(plan: Plan, **dropped: int) -> list[StepMetrics]:
    """Three steps in which every host moves 10 bytes by each interface and 1000 by each RDMA port; `dropped` names a
    port and a step in which it is not known."""
    collector = StepCollector(plan)
    finished = [collector.add(report(plan, rank, step_s=1.0)) for rank in range(plan.world_size)][-1]
    assert finished is not None
    steps = []
    for number in range(3):
        ports = [
            StepTraffic(node.host, port, 1000, 1000)
            for node in plan.nodes
            for port in planned_rdma_ports(node)
            if dropped.get(port.replace(":", "_")) != number
        ]
        netdevs = [StepTraffic(each.host, each.netdev, 10, 10) for each in by_interface(plan.prediction.traffic)]
        steps.append(replace(finished.metrics, step=number, interfaces=(*netdevs, *ports)))
    return steps


def test_rdma_is_counted_by_the_ports_that_the_interface_does_not_count() -> None:
    plan = gpu_plan(hosts=(2, 2), gpus_per_host=1)
    rdma = rdma_interfaces(plan)
    assert rdma
    ports = {node.host: len(planned_rdma_ports(node)) for node in plan.nodes}

    seen = traffic_per_step(total(rdma_steps(plan)), plan)

    assert {(each.host, each.netdev) for each in seen} >= rdma
    for each in seen:
        assert each.sent_bytes == 10
        expected = 1000 * ports[each.host] if (each.host, each.netdev) in rdma else None
        assert each.rdma_sent_bytes == each.rdma_received_bytes == expected


def test_a_counter_that_is_missing_in_one_step_is_not_known_and_not_less() -> None:
    plan = gpu_plan(hosts=(2, 2), gpus_per_host=1)
    port = planned_rdma_ports(plan.nodes[0])[0]

    seen = traffic_per_step(total(rdma_steps(plan, **{port.replace(":", "_"): 1})), plan)

    rdma = rdma_interfaces(plan)
    without = {each.host for each in seen if (each.host, each.netdev) in rdma and each.rdma_sent_bytes is None}
    assert plan.nodes[0].host in without
    assert without == {node.host for node in plan.nodes if port in planned_rdma_ports(node)}


def test_an_interface_without_a_counter_is_not_known_and_not_zero() -> None:
    plan = cpu_plan()
    collector = StepCollector(plan)
    finished = [collector.add(report(plan, rank, step_s=1.0)) for rank in range(plan.world_size)][-1]
    assert finished is not None
    seen = traffic_per_step(total([replace(finished.metrics, interfaces=())]), plan)
    assert {each.sent_bytes for each in seen} == {None}
