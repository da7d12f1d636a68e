"""The module of one stage and the loss of its output: a GPT or Llama, a model of the user's own, or a rehearsal."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from holmes_runtime.config.rank_grid import Rank
from holmes_runtime.config.run_config import RunConfig, Stage
from holmes_runtime.model.decoder import DTYPES, DecoderStage
from holmes_runtime.model.emulated import GRADIENT_READY, WEIGHT_HALF, EmulatedStage, mean_activation
from holmes_runtime.model.tensor_parallel import TensorParallel
from holmes_runtime.model.tensor_part import TensorPart

LossFunction = Callable[[Tensor, Tensor], Tensor]
Factory = Callable[[range, RunConfig], nn.Module]


@dataclass(frozen=True)
class StageModule:
    """The module of a stage; `parts` says of the parameters under tensor parallelism which part is here."""

    stage: Stage
    module: nn.Module
    parts: Mapping[str, TensorPart]


def build_stage(config: RunConfig, stage: Stage, me: Rank, tp: TensorParallel, device: torch.device) -> StageModule:
    """The module of `stage` for rank `me` on `device`. Raises RuntimeError if it cannot be built there."""
    if config.emulation is not None:
        share = WEIGHT_HALF if config.schedule == "zero-bubble" else GRADIENT_READY
        dtype = DTYPES[config.value_type]
        emulated = EmulatedStage(
            config.model, stage, config.emulation.on(me.cluster, config.micro_batch_size), share, dtype
        )
        return StageModule(stage, emulated.to(device), {})
    if config.model.factory is not None:
        layers = range(stage.first_layer, stage.stop_layer)
        module = load_factory(config.model.factory, me.host)(layers, config)
        return StageModule(stage, module.to(device, DTYPES[config.value_type]), {})
    decoder = DecoderStage(
        config.model,
        stage,
        config.seed,
        tp=tp,
        recompute=config.recompute,
        value_type=config.value_type,
        device=device,
    )
    if config.compile:
        check_compiler(me.host, device)
        decoder.compile_blocks()
    return StageModule(stage, decoder, decoder.parts)


def loss_function(config: RunConfig, tp: TensorParallel) -> LossFunction:
    """The mean loss of one micro-batch, from what the last stage returns and the next tokens (batch, seq)."""
    if config.emulation is not None:
        return mean_activation
    return lambda logits, targets: tp.cross_entropy(logits, targets, config.model.vocab_size)


def load_factory(factory: str, host: str) -> Factory:
    """The function that FILE.py:FUNCTION names. Raises RuntimeError naming host and file if there is none."""
    file, _, function = factory.rpartition(":")
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    if spec is None or spec.loader is None or not Path(file).is_file():
        raise RuntimeError(f"host {host}: model.factory {factory}: there is no Python file {Path(file).absolute()}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, function):
        raise RuntimeError(f"host {host}: model.factory {factory}: {file} has no function {function}")
    found: Factory = getattr(module, function)
    return found


def check_compiler(host: str, device: torch.device) -> None:
    """Raises RuntimeError if compiled blocks need a C++ compiler this host lacks."""
    compiler = os.environ.get("CXX", "g++")
    if device.type == "cpu" and shutil.which(compiler) is None:
        raise RuntimeError(
            f"host {host}: compile needs a C++ compiler on CPUs and there is no {compiler}: install one, or set "
            "`compile: false` in job.yaml"
        )
