"""What edge_stage.py relies on of torch's private pipelining names: a torch that changes them fails here first."""

from __future__ import annotations

import inspect
import re

import pytest
import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining._backward import stage_backward, stage_backward_input, stage_backward_weight
from torch.distributed.pipelining.schedules import _Action, _ComputationType, _PipelineScheduleRuntime

from holmes_runtime.parallel.edge_stage import own_errors


def parameters(function: object) -> list[str]:
    return list(inspect.signature(function).parameters)  # type: ignore[arg-type]


def test_actions_are_made_of_stage_type_and_microbatch() -> None:
    assert _Action._fields[:3] == ("stage_index", "computation_type", "microbatch_index")
    for name in ("FORWARD", "FULL_BACKWARD", "BACKWARD_INPUT", "BACKWARD_WEIGHT"):
        assert hasattr(_ComputationType, name)


def test_the_runtime_takes_action_lists_by_rank_and_adds_communication() -> None:
    assert parameters(_PipelineScheduleRuntime._prepare_schedule_with_comms)[:2] == ["self", "actions"]
    source = inspect.getsource(_PipelineScheduleRuntime._step_microbatches)
    # Sends and receives are asked for through these four and may be none; halves of a backward through these two.
    for name in ("get_fwd_recv_ops", "get_fwd_send_ops", "get_bwd_recv_ops", "get_bwd_send_ops"):
        assert f"_batch_p2p(stage.{name}(mb_index))" in source.replace("\n", "").replace(" ", "")
    for name in ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk"):
        assert f"stage.{name}(" in source


def test_the_stage_methods_that_are_overridden_have_their_arguments() -> None:
    expected = {
        "_resolve_peer_global_rank": ["self", "stage_idx"],
        "_warmup_forward_vote": ["self", "has_backward", "received_acc"],
        "_warmup_backward_result": ["self", "received_result"],
        "_setup_backward_recv_info": ["self", "num_microbatches"],
        "get_fwd_recv_ops": ["self", "fwd_chunk_id"],
        "get_bwd_recv_ops": ["self", "bwd_chunk_id"],
        "get_fwd_send_ops": ["self", "fwd_chunk_id"],
        "get_bwd_send_ops": ["self", "bwd_chunk_id"],
        "forward_one_chunk": ["self", "fwd_chunk_id", "args", "kwargs", "save_forward_output"],
        "backward_one_chunk": ["self", "bwd_chunk_id", "loss", "full_backward", "last_backward"],
        "backward_maybe_with_nosync": ["self", "backward_type", "bwd_kwargs", "last_backward"],
    }
    assert {name: parameters(getattr(PipelineStage, name)) for name in expected} == expected


def test_the_weight_half_takes_groups_whose_nodes_know_their_parameter() -> None:
    layer = nn.Linear(2, 2)
    inputs = torch.ones(1, 2, requires_grad=True)
    output = layer(inputs)
    made = stage_backward_input([output], [torch.ones(1, 2)], [inputs], layer.parameters())
    groups = made[1]

    found = [node.variable for group in groups for node in group["params"]]
    for group in groups:
        stage_backward_weight((node.variable for node in group["params"]), [group])

    assert {id(parameter) for parameter in found} == {id(parameter) for parameter in layer.parameters()}
    assert layer.weight.grad is not None
    assert torch.equal(layer.weight.grad, torch.ones(2, 2))


def test_a_gradient_may_be_of_another_type_than_its_parameter() -> None:
    weight = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    total = torch.zeros(2)
    weight.grad_dtype = None
    weight.grad = total
    for _ in range(2):
        torch.autograd.backward((weight * 1.5).sum())

    assert total.tolist() == [3.0, 3.0]


def test_errors_of_a_stage_are_wrapped_in_words_that_are_known_and_unwrapped() -> None:
    for function in (PipelineStage.forward_one_chunk, stage_backward, stage_backward_input):
        assert re.search(r"failed to run (stage backward|forward)", inspect.getsource(function).lower())
    full = torch.OutOfMemoryError("full")
    with pytest.raises(torch.OutOfMemoryError) as seen, own_errors():
        raise RuntimeError("\n    [Stage 0] failed to run forward:\n    args: ()") from full
    assert seen.value is full
    with pytest.raises(RuntimeError, match="mine"), own_errors():
        raise RuntimeError("mine") from full
