"""Jobs whose layers multiply in FP8: the degrees, GPUs and seconds that they are planned with."""

from __future__ import annotations

from typing import Any

import pytest

from holmes_core.errors import HolmesError
from holmes_core.records.inventory import Inventory
from holmes_core.records.job import Job
from holmes_core.records.plan import Plan
from holmes_runtime.config.model_shape import ModelShape
from launcher.prepare.prepare import run_config_of
from planner.cost.compute_time import head_s, layer_s
from planner.cost.counts import Execution
from planner.cost.gpu_speeds import Speed
from tests.planner.fleets import bed_job, gpu_inventory, plan_for

SHAPE = ModelShape(family="gpt", num_layers=2, hidden_size=64, num_heads=4, seq_length=32)


def fp8_job(**changes: Any) -> Job:
    on_gpus = {"device": "cuda", "compute": {}, "precision": "bf16", "parallel": {}, "fp8": True}
    return Job.model_validate(bed_job().model_dump() | on_gpus | changes)


def hoppers() -> Inventory:
    """Eight GPUs on one host."""
    inventory = gpu_inventory((1,), gpus_per_host=8)
    hosts = [
        host.model_copy(
            update={"gpus": tuple(gpu.model_copy(update={"name": "NVIDIA H100 80GB HBM3"}) for gpu in host.gpus)}
        )
        for host in inventory.hosts
    ]
    return inventory.model_copy(update={"hosts": tuple(hosts)})


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_for(hoppers(), fp8_job())


def test_a_plan_in_fp8_has_no_tensor_shards_and_no_zero_bubble(plan: Plan) -> None:
    assert (plan.tp, plan.schedule == "zero-bubble") == (1, False)


def test_ranks_are_sent_the_key(plan: Plan) -> None:
    assert run_config_of(plan, "run").fp8


def test_a_plan_of_a_job_without_fp8_does_not_have_the_key() -> None:
    assert "fp8" not in fp8_job(fp8=False).model_dump()
    assert fp8_job().model_dump()["fp8"] is True


def test_a_gpu_without_fp8_is_named_with_its_host() -> None:
    with pytest.raises(HolmesError, match=r"^host a1: GPU 0 \(NVIDIA A100-SXM4-80GB\) has no FP8 products"):
        plan_for(gpu_inventory((1,), gpus_per_host=2), fp8_job())


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"precision": "fp16"}, "precision fp16"),
        ({"parallel": {"tp": 2}}, "tp 2"),
        ({"parallel": {"schedule": "zero-bubble"}, "compile": False}, "schedule zero-bubble"),
        ({"trainer": {"engine": "megatron"}}, "trainer.engine megatron"),
        ({"trainable": {"lora": {"rank": 4, "targets": ["qkv"]}}}, "trainable"),
        ({"model": bed_job().model_dump()["model"] | {"ffn_hidden_size": 1000}}, "ffn_hidden_size 1000"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_job_that_is_not_trained_in_fp8_is_refused_by_its_setting(changes: dict[str, Any], setting: str) -> None:
    with pytest.raises(HolmesError, match=rf"^job: fp8 is true with {setting}"):
        plan_for(hoppers(), fp8_job(**changes))


def test_faster_products_shorten_a_layer_by_their_part_of_it_and_leave_the_head() -> None:
    execution = Execution(1, 1, micro_batch_size=1, value_bytes=2, recompute="none")
    plain, products = Speed(1e9, attention_flops_per_s=1e9), Speed(1e9, attention_flops_per_s=1e9, layer_speed_up=2)
    one, other = (layer_s(SHAPE, execution, speed) for speed in (plain, products))

    # 24 s h^2 of a GPT's matrices in a forward, and twice that in a backward.
    matrices_s = 24 * 32 * 64**2 / 1e9
    assert one.forward_s - other.forward_s == pytest.approx(matrices_s / 2)
    assert one.backward_s - other.backward_s == pytest.approx(matrices_s)
    assert head_s(SHAPE, execution, plain) == head_s(SHAPE, execution, products)


def test_compiled_layers_alone_are_planned_faster_in_fp8() -> None:
    large = {"model": {"family": "llama", "num_layers": 8, "hidden_size": 4096, "num_heads": 32, "seq_length": 4096}}
    for compiles in (False, True):
        plain, in_fp8 = (
            plan_for(hoppers(), fp8_job(**large, global_batch_size=64, compile=compiles, fp8=fp8)).prediction.step_s
            for fp8 in (False, True)
        )
        assert (in_fp8 < 0.9 * plain) is compiles
