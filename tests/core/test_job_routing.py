"""Routers that would not be trained, and losses of routers that are not there, are refused in job.yaml."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from holmes_core.records.job import Job

JOB: dict[str, Any] = {"model": {"preset": "mixtral-8x7b"}, "data": {"path": "/d"}, "steps": 1, "global_batch_size": 8}


def test_a_router_and_the_loss_that_balances_it() -> None:
    balanced = Job.model_validate(JOB | {"optimizer": {"router_balance": 0.01}})
    assert balanced.optimizer.router_balance == 0.01
    with pytest.raises(ValidationError, match=r"router_balance is 0\.01, but nothing is routed"):
        Job.model_validate(JOB | {"model": {"preset": "llama-3-8b"}, "optimizer": {"router_balance": 0.01}})
    one = {"preset": "mixtral-8x7b", "experts_per_token": 1}
    with pytest.raises(ValidationError, match="experts_per_token is 1, so its weight is always 1"):
        Job.model_validate(JOB | {"model": one})
    assert Job.model_validate(JOB | {"model": one | {"normalized_routing": False}}).model.experts_per_token == 1
    assert Job.model_validate(JOB | {"model": one, "engine": "megatron"}).model.normalized_routing
