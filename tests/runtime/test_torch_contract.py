"""Behaviour of torch that the runtime relies on and no page of torch promises: a torch that changes it fails here."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore


def test_a_gradient_may_be_of_another_type_than_its_parameter() -> None:
    weight = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    total = torch.zeros(2)
    weight.grad_dtype = None
    weight.grad = total
    for _ in range(2):
        torch.autograd.backward((weight * 1.5).sum())

    assert total.tolist() == [3.0, 3.0]


@pytest.mark.parametrize("waits", [False, True])
def test_fsdp_reduces_inside_and_among_copies_in_every_backward_unless_it_is_told_to_wait(waits: bool) -> None:
    """Plans for engines count on it (planner/cost/engines.py)."""
    from torch.distributed.tensor.debug import CommDebugMode  # with torch's compiler, most of a second

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
        model: Any = fully_shard(nn.Linear(8, 8), mesh=mesh)
        counts = []
        for is_last in (False, True):
            model.set_requires_gradient_sync(is_last or not waits)
            with CommDebugMode() as comm:  # type: ignore[no-untyped-call]
                model(torch.ones(2, 8)).sum().backward()
            found = {str(name): count for name, count in comm.get_comm_counts().items()}
            counts.append((found.get("c10d._reduce_scatter_base_", 0), found.get("c10d.allreduce_", 0)))
    finally:
        dist.destroy_process_group()
    assert counts == [(0, 0) if waits else (1, 1), (1, 1)]
