"""What the runtime holds its measurements against."""

from __future__ import annotations

import pytest

from launcher.prepare.expectation import expectation_of
from launcher.prepare.prepare import run_config_of
from planner.cost.collectives import tcp_payload_share
from tests.planner.fleets import GBPS, bed_job, cpu_inventory, gpt_7b, gpu_inventory, plan_for


def test_emulated_layers_are_expected_to_take_their_sleep_and_messages_their_rate() -> None:
    emulate = {"forward_s_per_layer": 0.01, "backward_s_per_layer": 0.02, "slowdown": {"b": 2.0}}
    parallel = {"pp": 2, "dp": 2, "schedule": "1f1b", "micro_batch_size": 2}
    job = bed_job(compute={"emulate": emulate}, parallel=parallel)
    plan = plan_for(cpu_inventory([2, 2]), job)

    expected = expectation_of(plan)

    factor = {"a": 1.0, "b": 2.0}
    layers = [stage.num_layers for stage in plan.stages]
    assert expected.compute_s == pytest.approx([2 * layers[r.pp_rank] * 0.03 * factor[r.cluster] for r in plan.ranks])
    message = 2 * job.model.seq_length * job.model.hidden_size * 4
    seconds = message / (0.1 * GBPS * tcp_payload_share(1500))
    assert expected.transfer_s == pytest.approx({g.name: seconds for g in plan.groups if g.axis.startswith("pp")})
    assert expected.bytes_per_s == pytest.approx(dict.fromkeys(expected.transfer_s, message / seconds))


def test_a_message_is_expected_to_take_the_time_of_its_packed_bytes() -> None:
    plan = plan_for(cpu_inventory([2, 2]), bed_job(parallel={"pp": 2, "dp": 2}))
    packed = tuple(
        group.model_copy(update={"codec": "int8"}) if group.axis == "pp_forward" else group for group in plan.groups
    )

    before, after = expectation_of(plan), expectation_of(plan.model_copy(update={"groups": packed}))

    ratios = {group.axis: before.transfer_s[group.name] / after.transfer_s[group.name] for group in plan.groups[2:]}
    assert ratios == pytest.approx({"pp_forward": 256 / 66, "pp_backward": 1.0})


def test_a_message_is_expected_to_have_the_rank_s_part_of_a_shared_sequence() -> None:
    parallel = {"tp": 2, "pp": 2, "cp": 4, "dp": 1}
    plan = plan_for(gpu_inventory([2]), gpt_7b(global_batch_size=8, parallel=parallel))
    config, edge = run_config_of(plan, "run"), next(group for group in plan.groups if group.axis == "pp_forward")

    expected = expectation_of(plan)

    message_s = expected.transfer_s[edge.name] - 2 * edge.latency_s
    assert message_s * expected.bytes_per_s[edge.name] == pytest.approx(config.message_bytes(edge.codec))


def test_gpus_are_expected_to_compute_as_fast_as_the_plan_took_them_to() -> None:
    parallel = {"tp": 2, "pp": 2, "dp": 8, "micro_batch_size": 2, "schedule": "1f1b", "layers": [20, 16]}
    plan = plan_for(gpu_inventory([2, 2]), gpt_7b(global_batch_size=64, parallel=parallel))

    expected = expectation_of(plan)

    num_microbatches = plan.microbatches[0]
    assert len(expected.compute_s) == plan.world_size == 32
    assert max(expected.compute_s) * num_microbatches == pytest.approx(plan.prediction.compute_s)
    assert min(expected.compute_s) < max(expected.compute_s)  # 16 layers against 20
