"""Layers in FP8: the modules that are replaced, and what is refused. torchao, which is no dependency, is pretended."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from holmes_runtime.config.gpu_peaks import PEAK_FLOPS_PER_S, WITHOUT_FP8, lacks_fp8
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.config.trainable import Lora
from holmes_runtime.model.build_stage import build_stage, multiply_in_fp8
from holmes_runtime.model.tensor_parallel import ALONE
from holmes_runtime.node.compiler import missing_for_fp8

from .launched_runs import TINY, TINY_LLAMA, TINY_MIXTRAL, layout, make_config

WIDE = replace(TINY_LLAMA, hidden_size=64, num_heads=4, num_kv_heads=2, ffn_hidden_size=96)


class PretendedLinear(nn.Linear):
    """One of torchao's: the same parameter objects, and a backward of its own."""


class PretendedTorchao(ModuleType):
    """`torchao.float8`, as far as it is used; it notes how it was called."""

    def __init__(self) -> None:
        super().__init__("torchao.float8")
        self.emulates = list[bool]()

    def Float8LinearConfig(self, emulate: bool) -> bool:
        return emulate

    def convert_to_float8_training(self, module: nn.Module, config: bool) -> None:
        self.emulates.append(config)
        for child in module.modules():
            if isinstance(child, nn.Linear):
                child.__class__ = PretendedLinear


@pytest.fixture
def torchao(monkeypatch: pytest.MonkeyPatch) -> PretendedTorchao:
    pretended = PretendedTorchao()
    parent: Any = ModuleType("torchao")
    parent.__spec__ = torch.__spec__
    monkeypatch.setitem(sys.modules, "torchao", parent)
    monkeypatch.setitem(sys.modules, "torchao.float8", pretended)
    return pretended


def fp8_config(**changes: Any) -> RunConfig:
    return make_config(**{"model": WIDE, "value_type": "bf16", "fp8": True, **changes})


def build(config: RunConfig) -> nn.Module:
    return build_stage(config, config.stages[0], config.grid.rank(0), ALONE, torch.device("cpu")).module


def test_the_matrices_of_layers_are_multiplied_in_fp8_and_no_others(torchao: PretendedTorchao) -> None:
    plain, module = build(replace(fp8_config(), fp8=False)), build(fp8_config())
    kinds = {name: type(each) for name, each in module.named_modules() if isinstance(each, nn.Linear)}

    matrices = {f"blocks.{layer}.{name}" for layer in range(3) for name in ("attention.qkv", "attention.projection")}
    matrices |= {f"blocks.{layer}.mlp.{name}" for layer in range(3) for name in ("gate", "up", "down")}
    assert {name for name, kind in kinds.items() if kind is PretendedLinear} == matrices
    assert kinds.keys() - matrices == {"head"}
    assert torchao.emulates == [True]  # on a CPU
    weights = [dict(each.named_parameters()) for each in (plain, module)]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_torchao_that_cannot_be_imported_is_named_with_the_host(
    torchao: PretendedTorchao, monkeypatch: pytest.MonkeyPatch
) -> None:
    del torchao
    monkeypatch.setitem(sys.modules, "torchao.float8", None)
    with pytest.raises(RuntimeError, match=r"^host host0: fp8 needs a torchao that works with torch "):
        multiply_in_fp8(torch.nn.Linear(16, 16), "host0", torch.device("cpu"))


def test_a_rank_without_torchao_names_its_host_and_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao", None)
    assert missing_for_fp8() == "torchao, which this Python does not have"
    with pytest.raises(RuntimeError, match=r"^host host0: fp8 needs torchao.* `fp8` "):
        build(fp8_config())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"value_type": "fp16"}, r"with precision fp16, got True"),
        ({"shards": layout(2, 1, 1)}, r"with tp 2,"),
        ({"pipelines": ((0, 1),), "cuts": (0, 1, 3), "schedule": "zero-bubble"}, r"with schedule zero-bubble,"),
        ({"lora": Lora(rank=4, targets=("query",))}, r"with trainable,"),
        ({"model": TINY_MIXTRAL}, r"with model\.experts \d"),
        ({"model": replace(TINY, factory="own.py:build")}, r"with model\.factory own\.py:build,"),
        ({"model": replace(WIDE, ffn_hidden_size=100)}, r"with ffn_hidden_size 100, not a multiple of 16,"),
        ({"model": replace(WIDE, seq_length=40)}, r"with tokens 40, not a multiple of 16,"),
        ({"pipelines": ((0,), (1,)), "cp": 2, "model": WIDE}, r"with tokens 8, not a multiple of 16,"),
    ],
)
def test_a_run_that_cannot_be_in_fp8_is_refused_by_its_setting(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"^fp8: must be false " + message):
        fp8_config(**changes)


def test_gpus_before_compute_capability_8_9_lack_fp8_and_unknown_ones_are_left_to_their_rank() -> None:
    assert set(PEAK_FLOPS_PER_S) >= WITHOUT_FP8
    assert [lacks_fp8(name) for name in ("NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA L4", "Unheard")] == [
        True,
        False,
        False,
        False,
    ]
