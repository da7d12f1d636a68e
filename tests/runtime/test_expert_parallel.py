"""Experts shared by two processes, where all tokens choose the experts of one."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import FileStore

from holmes_runtime.model.expert_parallel import ALL_EXPERTS, ExpertParallel
from holmes_runtime.model.experts import ExpertMatrices, Experts
from holmes_runtime.model.recomputed_values import keeping
from holmes_runtime.model.tensor_parallel import ALONE
from holmes_runtime.model.tensor_part import part_of

from .launched_runs import TINY_MIXTRAL

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]
SHAPE = replace(TINY_MIXTRAL, experts=4)


def make_experts(ep: ExpertParallel) -> Experts:
    """Experts of drawn weights, or the part of them that a replica has; tokens choose the last two."""
    experts, generator = Experts(SHAPE, ALONE, keeping, None, ep), torch.Generator().manual_seed(3)
    for name, parameter in experts.named_parameters():
        drawn = torch.empty(parameter.shape).normal_(0.0, 0.5, generator=generator)
        if name == "router.weight":
            drawn[:2], drawn[2:] = -drawn[2:].abs(), drawn[2:].abs()
        parameter.data = drawn.clone()
    for name, matrices in experts.experts.named_children():
        assert isinstance(matrices, ExpertMatrices)
        whole = matrices.weight.data
        matrices.weight = nn.Parameter(part_of(f"experts.{name}.weight", tuple(whole.shape), ALONE, ep).of(whole))
    return experts


def tokens_of(rank: int) -> Tensor:
    """A micro-batch of a replica; the second has more tokens."""
    shape = (1, 5 + 3 * rank, SHAPE.hidden_size)
    return torch.rand(shape, generator=torch.Generator().manual_seed(rank)).requires_grad_()


def work(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=FileStore(str(folder / "store"), 2), rank=rank, world_size=2)
    experts, hidden = make_experts(ExpertParallel(dist.group.WORLD, rank, 2)), tokens_of(rank)
    output = experts(hidden)
    output.square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in experts.named_parameters()}
    torch.save((output.detach(), hidden.grad, gradients), folder / f"{rank}.pt")
    dist.destroy_process_group()


def test_a_replica_without_rows_and_one_with_all_compute_what_each_would_alone(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=work, args=(rank, tmp_path)) for rank in range(2)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
    assert [each.exitcode for each in ranks] == [0, 0]
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]

    alone = make_experts(ALL_EXPERTS)
    for rank, (output, of_hidden, _) in enumerate(found):
        hidden = tokens_of(rank)
        expected = alone(hidden)
        expected.square().sum().backward()
        torch.testing.assert_close(output, expected.detach())
        torch.testing.assert_close(of_hidden, hidden.grad)
    for name, parameter in alone.experts.named_parameters():
        parts = [gradients[f"experts.{name}"] for *_, gradients in found]
        assert not parts[0].any()
        torch.testing.assert_close(torch.cat(parts), parameter.grad)
