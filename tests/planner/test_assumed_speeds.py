"""A plan says which GPUs' speed is read from data sheets, and how far off that may be."""

from __future__ import annotations

import pytest

from planner.advice.assumed_speeds import CPU_SENTENCE, assumed_speed_sentence
from tests.planner.fleets import A100, bed_job, cpu_inventory, gpt_7b, gpu_inventory, plan_for
from tests.seeds import few_of


@pytest.mark.parametrize(
    "name", few_of(1, ["NVIDIA L40S", "NVIDIA B200", "NVIDIA A10", "NVIDIA RTX 6000 Ada Generation"])
)
def test_a_gpu_without_published_runs_is_planned_on_and_named(name: str) -> None:
    inventory = gpu_inventory([2], gpu_name=name)
    plan = plan_for(inventory, gpt_7b(global_batch_size=64))
    (said,) = assumed_speed_sentence(plan, inventory)
    assert said.startswith(f"The speed of {name} on a1, a2 comes from data sheets and may be off by 35%")
    assert "`holmes calibrate --host a1`, which prints compute.flops_per_s" in said


def test_nothing_is_said_of_speeds_that_are_published_or_given() -> None:
    published, other = gpu_inventory([2], gpu_name=A100), gpu_inventory([2], gpu_name="NVIDIA L40S")
    assert assumed_speed_sentence(plan_for(published, gpt_7b(global_batch_size=64)), published) == ()
    given = gpt_7b(global_batch_size=64, compute={"flops_per_s": 1e14})
    assert assumed_speed_sentence(plan_for(other, given), other) == ()


def test_cpus_are_assumed_until_calibrate_gives_what_they_cost_beside_flops() -> None:
    inventory, overheads = cpu_inventory([2, 2]), {"action_s": 0.001, "update_bytes_per_s": 2e9}
    assert assumed_speed_sentence(plan_for(inventory, bed_job()), inventory) == (CPU_SENTENCE,)
    measured = bed_job(compute={"flops_per_s": 2e10, "overheads": overheads})
    emulated = bed_job(compute={"emulate": {"forward_s_per_layer": 0.01, "backward_s_per_layer": 0.02}})
    for job in (measured, emulated):
        assert assumed_speed_sentence(plan_for(inventory, job), inventory) == ()


def test_a_v100_which_has_no_bf16_is_planned_on_in_fp16() -> None:
    inventory = gpu_inventory([2], gpu_name="Tesla V100-SXM2-32GB", memory_bytes=32 * 2**30)
    plan = plan_for(inventory, gpt_7b(global_batch_size=64, precision="fp16"))
    assert assumed_speed_sentence(plan, inventory) != ()
