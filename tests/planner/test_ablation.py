"""The same plan without overlap, an uneven cut, or clusters joined by the pipeline."""

from __future__ import annotations

import pytest

from holmes_core.errors import HolmesError
from planner.advice.ablation import FEATURES, ablations, parse_features
from planner.layout.reprice import reprice_step_s
from tests.planner.fleets import GIB, bed_job, cpu_inventory, gpt_7b, gpu_inventory, plan_for


@pytest.mark.slow
def test_each_feature_and_all_together_are_priced_on_the_plan_as_it_stands() -> None:
    inventory = gpu_inventory([2, 2])
    plan = plan_for(inventory, gpt_7b())
    *alone, together = ablations(inventory, plan, FEATURES)
    assert [each.without for each in (*alone, together)] == [("pipeline",), ("uneven",), ("overlap",), FEATURES]
    steps = {each.without[0]: each.step_s or 0.0 for each in alone}
    assert all(step_s >= plan.prediction.step_s * (1 - 1e-9) for step_s in steps.values())
    assert steps["pipeline"] > 1.5 * plan.prediction.step_s  # 25 Gbit/s carry all gradients


def test_a_plan_without_a_feature_is_priced_as_it_is() -> None:
    inventory = cpu_inventory([4])
    plan = plan_for(inventory, bed_job(parallel={"pp": 1}))
    (even,) = ablations(inventory, plan, ("uneven",))
    assert even.step_s == pytest.approx(reprice_step_s(inventory, plan))


def test_without_overlap_the_whole_exchange_follows_the_last_backward() -> None:
    inventory = cpu_inventory([2], shared=False)
    plan = plan_for(inventory, bed_job(parallel={"pp": 1, "dp": 2}))
    (late,) = ablations(inventory, plan, ("overlap",))
    sent = max(seen.sent_bytes / 1e9 for seen in plan.prediction.traffic)
    assert late.step_s is not None
    assert late.step_s > plan.prediction.step_s
    assert sent > 0


def test_an_even_cut_that_memory_does_not_hold_says_where() -> None:
    inventory = gpu_inventory([2, 2], memory_bytes=24 * GIB)
    job = gpt_7b(global_batch_size=64, parallel={"tp": 4, "pp": 2, "layers": [20, 16]})
    plan = plan_for(inventory, job)
    smaller = gpu_inventory([2, 2], memory_bytes=max(plan.prediction.memory_bytes[1:]) + 2**20)
    (even,) = ablations(smaller, plan, ("uneven",))
    assert even.step_s is None
    assert "has room for" in even.why


def test_an_order_that_parts_a_group_of_experts_says_where() -> None:
    """Of 4 and 8 GPUs: in the usual order the first stage is on hosts of both clusters."""
    inventory = gpu_inventory([1, 2], gpus_per_host=4)
    model = {"num_layers": 4, "hidden_size": 1024, "num_heads": 8, "seq_length": 1024, "family": "llama"}
    experts = {"experts": 8, "experts_per_token": 2, "expert_ffn": 512}
    parallel = {"pp": 1, "dp": 8, "ep": 8, "tp": 1}
    plan = plan_for(inventory, gpt_7b(model=model | experts, global_batch_size=16, parallel=parallel))

    (usual,) = ablations(inventory, plan, ("pipeline",))

    assert usual.step_s is None
    assert usual.why == "ranks of one group would be on a1 of a, b1 of b"


def test_unknown_features_are_refused() -> None:
    assert parse_features("overlap, uneven") == ("uneven", "overlap")
    with pytest.raises(HolmesError, match="unknown feature 'nic'"):
        parse_features("nic")
