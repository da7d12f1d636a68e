"""What a rank of a tensor group keeps and computes, the others being pretended; what it makes is in test_parity.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.config.run_config import Stage
from holmes_runtime.config.run_settings import Recompute
from holmes_runtime.model.decoder import DecoderStage
from holmes_runtime.model.tensor_parallel import TensorParallel, backward_half
from planner.cost.counts import Execution, layer_activation_bytes
from tests.planner.test_cost_of_runtime import GPT, LLAMA
from tests.runtime.storages_made import StoragesMade


@pytest.fixture
def tp() -> Iterator[TensorParallel]:
    """The first of two ranks; what the other would send is whatever lies in memory."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield TensorParallel(dist.group.WORLD, 0, 2)
    dist.destroy_process_group()


@pytest.mark.parametrize("model", [GPT, LLAMA], ids=["gpt", "llama"])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_a_layer_keeps_no_more_than_its_stretch_of_the_sequence(
    tp: TensorParallel, model: ModelShape, recompute: Recompute
) -> None:
    """Within 3 %, as without tensor parallelism."""
    stage = DecoderStage(model, Stage(0, 1, 2), seed=0, tp=tp, recompute=recompute)
    hidden = torch.randn(2, model.seq_length // 2, model.hidden_size, requires_grad=True)
    made = StoragesMade()
    with made:
        output = stage(hidden)
    kept = hidden.nbytes + made.alive_bytes() - output.nbytes
    if model.family == "llama" and recompute != "full":  # RMSNorm's CPU kernel keeps 2 h more
        kept -= 2 * hidden.nbytes

    execution = Execution(2, 1, micro_batch_size=2, value_bytes=4, recompute=recompute, fused_operators=False)
    assert kept == pytest.approx(layer_activation_bytes(model, execution), rel=0.03)


class Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Shapes of the results of matrix products."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shapes: list[tuple[int, ...]] = []

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = operator(*args, **(kwargs or {}))
        if operator in (torch.ops.aten.mm.default, torch.ops.aten.addmm_.default):
            self.shapes.append(tuple(result.shape))
        return result


@pytest.mark.parametrize(
    ("kind", "shapes"),
    [("full", [(8, 3), (8, 3), (5, 3), (7, 3)]), ("input", [(8, 3), (8, 3)]), ("weight", [(5, 3), (7, 3)])],
)
def test_a_half_of_a_backward_computes_nothing_of_the_other(
    tp: TensorParallel, kind: str, shapes: list[tuple[int, ...]]
) -> None:
    hidden = torch.randn(1, 4, 3, requires_grad=True)
    linears = nn.Linear(3, 5), nn.Linear(3, 7, bias=False)
    made = tp.gather_linear(hidden, *linears)
    gradients = [torch.ones_like(each) for each in made]
    wanted = {"full": [hidden, *(linear.weight for linear in linears)], "input": [hidden]}
    asked = wanted.get(kind, [linear.weight for linear in linears])

    with Products() as products, backward_half(kind):
        torch.autograd.grad(made, asked, gradients)

    assert products.shapes == shapes
