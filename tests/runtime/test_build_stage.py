"""Which module a stage gets: a model of the user's own, compiled blocks, a rehearsal."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.config.run_settings import EmulationSettings
from holmes_runtime.model.build_stage import StageModule, build_stage, check_compiler, load_factory
from holmes_runtime.model.tensor_parallel import ALONE
from holmes_runtime.node.compiler import missing_for_compile

from .launched_runs import REPOSITORY, TINY, TINY_LLAMA, make_config

CPU = torch.device("cpu")
OWN = f"{REPOSITORY}/examples/own-model-file/own_model.py:build"


def build(config: RunConfig, index: int = 0) -> StageModule:
    return build_stage(config, config.stages[index], config.grid.rank(0), ALONE, CPU)


def own_config(cuts: tuple[int, ...]) -> RunConfig:
    model = dataclasses.replace(TINY, factory=OWN)
    return make_config(pipelines=(tuple(range(len(cuts) - 1)),), cuts=cuts, model=model, value_type="bf16")


def test_a_model_of_ones_own_starts_from_the_same_weights_under_any_cut() -> None:
    whole = dict(build(own_config((0, 3))).module.named_parameters())
    parts = [build(own_config((0, 1, 3)), index).module for index in range(2)]
    named = dict(pair for part in parts for pair in part.named_parameters())

    assert named.keys() == whole.keys()
    assert all(torch.equal(parameter, whole[name]) for name, parameter in named.items())
    assert {parameter.dtype for parameter in named.values()} == {torch.bfloat16}


def test_a_model_of_ones_own_with_a_frozen_parameter_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "frozen.py"
    file.write_text(
        "from torch import nn\n\n\ndef build(layers, config):\n    return nn.Linear(2, 2).requires_grad_(False)\n"
    )
    config = make_config(model=dataclasses.replace(TINY, factory=f"{file}:build"))
    with pytest.raises(RuntimeError, match=r"host host0: model\.factory .*: parameter weight is frozen"):
        build(config)


def test_a_factory_that_is_not_there_is_named_with_its_host(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"host a1: model\.factory .*none\.py:build: there is no Python file"):
        load_factory(f"{tmp_path}/none.py:build", "a1")
    with pytest.raises(RuntimeError, match=r"host a1: .* has no function make"):
        load_factory(OWN.replace(":build", ":make"), "a1")


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
def test_a_rehearsal_sleeps_as_its_cluster_does(schedule: str) -> None:
    emulation = EmulationSettings(0.5, 1.0, {"one": 4.0})
    config = make_config(emulation=emulation, schedule=schedule)  # type: ignore[arg-type]
    layers = [layer.seconds for layer in build(config).module.layers.values()]  # type: ignore[operator]

    assert [sum(seconds) for seconds in layers] == [0.0, 6.0, 6.0, 6.0, 0.0]
    assert layers[1] == ((2.0, 2.0, 2.0) if schedule == "zero-bubble" else (2.0, 1.0, 3.0))


@pytest.mark.torch
@pytest.mark.skipif(shutil.which("g++") is None, reason="compiling on CPUs needs g++")
def test_compiled_blocks_compute_what_plain_ones_do() -> None:
    """One compilation serves all blocks, though there are more of them than recompilations allowed."""
    shape = dataclasses.replace(TINY_LLAMA, num_layers=10)
    plain, compiled = (
        build(make_config(cuts=(0, 10), model=shape, recompute="selective", compile_blocks=flag)).module
        for flag in (False, True)
    )
    tokens = torch.arange(32).view(1, 32)
    torch._dynamo.utils.counters.clear()

    for module in (plain, compiled):
        torch.autograd.backward(module(tokens).square().mean())

    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2
    assert compared_gradients(plain, compiled) < 1e-6


def compared_gradients(first: nn.Module, second: nn.Module) -> float:
    """The largest difference of any gradient."""
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return max(float((a.grad - b.grad).abs().max()) for a, b in pairs if a.grad is not None and b.grad is not None)


def test_a_missing_compiler_is_named_with_host_and_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")

    with pytest.raises(
        RuntimeError, match=r"host a1: compile needs a C\+\+ compiler: .*no-such-compiler: .*compile: false"
    ):
        check_compiler("a1", CPU)


def test_on_gpus_compiling_needs_a_c_compiler_and_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(RuntimeError, match=r"host a1: compile needs a C compiler: there is no no-such-compiler"):
        check_compiler("a1", torch.device("cuda", 0))

    monkeypatch.setenv("CC", "sh")  # some program that is there
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(RuntimeError, match="host a1: compile needs triton"):
        check_compiler("a1", torch.device("cuda", 0))


def test_compiling_needs_the_headers_of_python(tmp_path: Path) -> None:
    environ = {"CC": "sh", "CXX": "sh", "PATH": os.environ["PATH"]}
    assert missing_for_compile(False, environ, tmp_path) == (
        f"the headers of this Python: there is no {tmp_path}/Python.h"
    )
    (tmp_path / "Python.h").touch()
    assert missing_for_compile(False, environ, tmp_path) is None
