"""The runtime accepts every kind of contender the planner compares, not the winner alone."""

from __future__ import annotations

from typing import Any

import pytest

from holmes_core.records.job import Job
from holmes_runtime.config.run_settings import DataSettings, DataSource
from launcher.prepare.prepare import run_config_of
from planner.cost.memory_margin import TRAINING_MARGIN
from tests.planner.fleets import bed_job, cpu_inventory, gpt_7b, gpu_inventory, plan_for
from tests.seeds import few_of

EMULATED = {"emulate": {"forward_s_per_layer": 0.004, "backward_s_per_layer": 0.008}}
BLEND = {"path": [{"path": "/a", "weight": 3}, {"path": "/b", "weight": 1}], "documents": "separate"}
JOBS: dict[str, Job] = {
    "free": bed_job(parallel={}),
    "compiled": bed_job(parallel={}, compile=True),
    "a batch that does not divide": bed_job(parallel={}, global_batch_size=7),
    "emulated": bed_job(parallel={}, compute=EMULATED),
    "emulated on GPUs": gpt_7b(global_batch_size=64, compute=EMULATED),
    "own model": bed_job(parallel={}, model={**vars(bed_job().model), "factory": "own.py:make"}),
    "blend of separate documents": gpt_7b(global_batch_size=64, model={"preset": "llama-3-8b"}, data=BLEND),
    "few kv heads": gpt_7b(global_batch_size=64, model={"preset": "llama-3-8b"}),
    "full recomputation": gpt_7b(global_batch_size=64, parallel={"recompute": "full"}),
    "interleaved": bed_job(parallel={"schedule": "interleaved"}),
    "chunks": bed_job(parallel={"chunks": 2}),
    "zero-bubble": bed_job(parallel={"schedule": "zero-bubble"}),
}


FEW = {"free", "interleaved"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in FEW)) for name in JOBS])
def test_the_runtime_accepts_the_plan_and_its_runners_up(name: str) -> None:
    job = JOBS[name]
    inventory = gpu_inventory([1, 1]) if job.device == "cuda" else cpu_inventory([2, 2])
    plan = plan_for(inventory, job)
    run_config_of(plan, "run")
    for other in plan.solve.alternatives:
        keys = ("tp", "pp", "dp", "micro_batch_size", "schedule", "chunks", "recompute")
        fixed: dict[str, Any] = {key: getattr(other, key) for key in keys}
        parallel = job.parallel.model_copy(update=fixed)
        as_other = plan_for(inventory, job.model_copy(update={"parallel": parallel}))
        assert run_config_of(as_other, "run").schedule == other.schedule


def test_the_runtime_exchanges_gradients_as_the_plan_says() -> None:
    plan = plan_for(cpu_inventory([2, 2]), bed_job(parallel={"pp": 2, "dp": 2}))
    hierarchical = plan.model_copy(update={"data_parallel": "hierarchical"})  # each stage is inside one cluster

    assert [run_config_of(each, "run").data_parallel for each in (plan, hierarchical)] == ["flat", "hierarchical"]


def test_the_runtime_blends_and_separates_as_the_job_says() -> None:
    plan = plan_for(cpu_inventory([2, 2]), bed_job(data=BLEND))

    sources = (DataSource("/a", 3.0), DataSource("/b", 1.0))
    assert run_config_of(plan, "run").data == DataSettings(sources, documents="separate")


@pytest.mark.slow
def test_the_mask_of_separate_documents_takes_memory() -> None:
    jobs = (
        gpt_7b(global_batch_size=64, parallel={"pp": 2, "dp": 1, "tp": 8}, data=data, precision=precision)
        for precision, data in (("fp16", {"path": "/a"}), ("fp16", BLEND), ("bf16", {"path": "/a"}), ("bf16", BLEND))
    )
    joined, separate, *in_bf16 = (plan_for(gpu_inventory([1, 1]), job) for job in jobs)

    # 2 bytes a score, of each micro-batch that the first rank holds, and the margin of memory on top.
    more = separate.prediction.memory_bytes[0] - joined.prediction.memory_bytes[0]
    masks = more / (1 + TRAINING_MARGIN) / (2 * separate.micro_batch_size * separate.job.model.seq_length**2)
    assert round(masks) > 0
    assert masks == pytest.approx(round(masks), abs=1e-4)
    assert in_bf16[0].prediction.memory_bytes == in_bf16[1].prediction.memory_bytes  # by the ends of documents


@pytest.mark.parametrize("name", few_of(1, ["free", "full recomputation", "emulated on GPUs"]))
def test_full_recomputation_never_meets_zero_bubble(name: str) -> None:
    job = JOBS[name]
    plan = plan_for(gpu_inventory([1, 1]) if job.device == "cuda" else cpu_inventory([2, 2]), job)
    pairs = [(plan.schedule, plan.recompute), *((o.schedule, o.recompute) for o in plan.solve.alternatives)]
    assert ("zero-bubble", "full") not in pairs
