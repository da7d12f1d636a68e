"""What eager operators move beyond fused ones, against the operators that torch dispatches for the runtime's layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from holmes_runtime.config.model_shape import ModelShape
from planner.cost.compute_time import layer_s
from planner.cost.counts import Execution, make_execution
from planner.cost.eager import eager_bytes
from planner.cost.gpu_speeds import Speed
from tests.planner.fleets import bed_job, gpt_7b
from tests.planner.test_cost_of_runtime import GPT, LLAMA, block_of

SAMPLES = 2
MULTI_HEAD = replace(LLAMA, num_kv_heads=LLAMA.num_heads)
# Matrix products and attention have terms of their own; a bias's gradient is summed in any case.
OTHER_TERMS = ("mm", "attention", "empty", "detach", "sum")


class MovedBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up what operators between matrix products read and write."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.moved = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        read, written = ([x for x in tree_leaves(tree) if isinstance(x, Tensor)] for tree in ((args, kwargs), made))
        sources = {each.untyped_storage().data_ptr() for each in read}
        is_view = all(each.untyped_storage().data_ptr() in sources for each in written)
        if not is_view and not any(name in str(function) for name in OTHER_TERMS):
            self.moved += sum(each.nbytes for each in (*read, *written))
        return made


@pytest.mark.parametrize("value_type", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("model", [GPT, LLAMA, MULTI_HEAD], ids=["gpt", "grouped queries", "llama"])
def test_eager_operators_of_a_layer_move_what_is_counted(model: ModelShape, value_type: torch.dtype) -> None:
    """Within 3 %: cosines and sines are read, too. Norms, a kernel each on GPUs, are in pieces on CPUs."""
    block, rotation = block_of(model, "none")
    block.attention_norm, block.mlp_norm = nn.Identity(), nn.Identity()
    block = block.to(value_type)
    hidden = torch.randn(SAMPLES, model.seq_length, model.hidden_size, dtype=value_type, requires_grad=True)
    gradient = torch.randn_like(hidden)
    forward, backward = MovedBytes(), MovedBytes()
    with forward:
        output = block(hidden, rotation)
    with backward:
        torch.autograd.grad(output, [hidden, *block.parameters()], gradient)

    execution = Execution(1, 1, SAMPLES, value_type.itemsize, "none", fused_operators=False)
    excess, fused = eager_bytes(model, execution), fused_values(model)
    values = SAMPLES * model.seq_length * value_type.itemsize
    assert excess.forward + fused[0] * values == pytest.approx(forward.moved, rel=0.03)
    assert excess.backward + fused[1] * values == pytest.approx(backward.moved, rel=0.03)


def fused_values(model: ModelShape) -> tuple[int, int]:
    """Values a token that the same operators move in forward and backward where each group of them is one kernel."""
    h, k, f = model.hidden_size, model.kv_size, model.ffn_size
    residuals, split = 6 * h, 2 * (h + 2 * k)
    if model.family == "gpt":
        return residuals + 2 * f, residuals + split + 3 * f
    rotation, two_inputs_of_mlp = 2 * (h + k), 3 * h
    return residuals + rotation + 3 * f, residuals + rotation + split + two_inputs_of_mlp + 5 * f


def test_an_eager_layer_takes_that_much_longer_and_its_recomputation_too() -> None:
    eager = Execution(1, 1, 1, 2, "none", fused_operators=False)
    speed, more = Speed(1e12, memory_bytes_per_s=1e9), eager_bytes(LLAMA, eager)
    plain, fused = layer_s(LLAMA, eager, speed), layer_s(LLAMA, eager._replace(fused_operators=True), speed)
    again = layer_s(LLAMA, eager._replace(recompute="full"), speed)

    assert plain.forward_s - fused.forward_s == pytest.approx(more.forward / 1e9)
    assert plain.backward_s - fused.backward_s == pytest.approx(more.backward / 1e9)
    assert again.backward_s - plain.backward_s == pytest.approx(plain.forward_s)


def test_gpus_compile_unless_the_job_says_otherwise_and_cpus_where_it_says_so() -> None:
    emulate = {"emulate": {"forward_s_per_layer": 1.0, "backward_s_per_layer": 2.0}}
    own = {**vars(gpt_7b().model), "factory": "own.py:make"}
    said = {
        "on GPUs": gpt_7b(),
        "on GPUs, false": gpt_7b(compile=False),
        "on CPUs": bed_job(),
        "on CPUs, true": bed_job(compile=True, parallel={}),
        "rehearsed": gpt_7b(compute=emulate),
        "of one's own": gpt_7b(model=own),
        "of one's own, true": gpt_7b(model=own, compile=True),
    }
    compiled = {name for name, job in said.items() if job.compiles}

    assert compiled == {"on GPUs", "on CPUs, true", "of one's own, true"}
    assert {name for name, job in said.items() if make_execution(job, 1, 1, 1, 1, "none").fused_operators} == compiled
