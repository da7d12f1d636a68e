"""Steps and memory of six shapes on one H200, as `make test-gpu` measured them on 2026-11-28, against their plans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.on_gpus.scale import LLAMA_1_3B, SCALES
from holmes_core.records.job import Job
from holmes_core.records.plan import Plan
from tests.seeds import few_of

from .fleets import GIB, gpu_inventory, plan_for

ROWS = json.loads((Path(__file__).parent.parent / "data" / "h200_steps.json").read_text(encoding="utf-8"))
INVENTORY = gpu_inventory([1], 1, "NVIDIA H200", round(139.8 * GIB))


def plan_on_h200(job: dict[str, Any]) -> Plan:
    return plan_for(INVENTORY, Job.model_validate(job))


@pytest.mark.parametrize(
    "row", few_of(1, ROWS), ids=lambda row: f"{row['shape']}-{'compiled' if row['compiled'] else 'eager'}"
)
def test_a_step_is_within_3_percent_of_its_prediction_and_memory_within_7_below(row: dict[str, Any]) -> None:
    """A small batch, which waits for its host, within 10 %. Memory counts half a GiB that the allocator has not."""
    planned = plan_on_h200(SCALES["cuda"].shape_job(row["shape"], "/corpus", "cuda", row["compiled"])).prediction

    assert planned.step_s == pytest.approx(row["step_s"], rel=0.1 if row["shape"] == "small-batch" else 0.03)
    assert 0.93 < row["memory_bytes"] / max(planned.memory_bytes) <= 1


def test_a_launched_step_that_nothing_was_fitted_to_is_within_2_percent() -> None:
    job = {**SCALES["cuda"].job("/corpus", "cuda"), **SCALES["cuda"].large}

    assert job["model"] == LLAMA_1_3B
    assert plan_on_h200(job).prediction.step_s == pytest.approx(0.5149, rel=0.02)
