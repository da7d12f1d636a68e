"""The module and the loss of one stage: a GPT or Llama, the user's own model, or a rehearsal without computing."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from holmes_runtime.config.model_shape import CODE_FOLDER
from holmes_runtime.config.rank_grid import Rank
from holmes_runtime.config.run_config import RunConfig, Stage
from holmes_runtime.model.context_parallel import WHOLE, ContextParallel
from holmes_runtime.model.decoder import DTYPES, TABLE, DecoderStage
from holmes_runtime.model.distilled_loss import SoftTargets, distilled_loss
from holmes_runtime.model.emulated import EMULATED_TABLE, GRADIENT_READY, WEIGHT_HALF, EmulatedStage, mean_activation
from holmes_runtime.model.expert_parallel import ALL_EXPERTS, ExpertParallel
from holmes_runtime.model.experts import Balancing
from holmes_runtime.model.head_loss import cross_entropy
from holmes_runtime.model.tensor_parallel import TensorParallel
from holmes_runtime.model.tensor_part import TensorPart
from holmes_runtime.node.compiler import missing_for_compile, missing_for_fp8

FP8_CAPABILITY = (8, 9)  # the lowest with FP8 products. Source: torch/nn/functional.py, scaled_mm
Factory = Callable[[range, RunConfig], nn.Module]


class LossFunction(Protocol):
    """The mean loss of one micro-batch."""

    def __call__(self, logits: Tensor, targets: Tensor, teacher: SoftTargets | None = None) -> Tensor:
        """logits: the last stage's output; targets: the next tokens (batch, seq); teacher: (batch, seq, top)."""


@dataclass(frozen=True)
class StageModule:
    """The module of a stage. `parts` maps names to the parts of parameters on this rank under tensor parallelism.

    `tied` is the trained parameter that has a copy at the other end of the pipeline, if there is one.
    """

    stage: Stage
    module: nn.Module
    parts: Mapping[str, TensorPart]
    tied: str | None = None


def build_stage(
    config: RunConfig,
    stage: Stage,
    me: Rank,
    tp: TensorParallel,
    device: torch.device,
    draws: bool = True,
    loss_scale: Callable[[], float] = lambda: 1.0,
    cp: ContextParallel = WHOLE,
    ep: ExpertParallel = ALL_EXPERTS,
) -> StageModule:
    """Return the module of `stage` for rank `me` on `device`.

    The weights of a GPT or Llama are zeros without `draws`, or if the run starts from a published model. Frozen weights
    are in no checkpoint, so they are always drawn or read. `loss_scale` returns the current factor on the gradients of
    losses.

    Raises:
        RuntimeError: The module cannot be built on this host.
    """
    is_end = stage.index in (0, len(config.stages) - 1)
    is_tied = config.model.tied_embeddings and is_end and config.pp > 1 and config.lora is None
    if config.emulation is not None:
        share = WEIGHT_HALF if config.schedule == "zero-bubble" else GRADIENT_READY
        dtype = DTYPES[config.value_type]
        emulated = EmulatedStage(
            config.model, stage, config.emulation.on(me.cluster, config.micro_batch_size), share, dtype, config.lora
        )
        return StageModule(stage, emulated.to(device), {}, EMULATED_TABLE if is_tied else None)
    if config.model.factory is not None:
        layers = range(stage.first_layer, stage.stop_layer)
        module = load_factory(config.model.factory, me.host)(layers, config)
        frozen = [name for name, parameter in module.named_parameters() if not parameter.requires_grad]
        if frozen:  # no checkpoint would have them
            raise RuntimeError(
                f"host {me.host}: model.factory {config.model.factory}: parameter {frozen[0]} is frozen, so "
                "checkpoints would lack it: train it, or make it a buffer"
            )
        return StageModule(stage, module.to(device, DTYPES[config.value_type]), {})
    balance = config.optimizer.router_balance / config.model.num_layers
    decoder = DecoderStage(
        config.model,
        stage,
        config.seed,
        tp=tp,
        cp=cp,
        recompute=config.recompute,
        value_type=config.value_type,
        device=device,
        draws=(draws or config.lora is not None) and config.weights is None,
        lazily=config.shards_weights(me),
        balancing=Balancing(balance, loss_scale) if balance else None,
        ep=ep,
        lora=config.lora,
    )
    if config.fp8:
        multiply_in_fp8(decoder.blocks, me.host, device)
    if config.compile:
        check_compiler(me.host, device)
        decoder.compile_blocks()
    return StageModule(stage, decoder, decoder.parts, TABLE if is_tied else None)


def loss_function(config: RunConfig, tp: TensorParallel) -> LossFunction:
    """Return the loss function of the run. Evaluations call it without a teacher."""
    if config.emulation is not None:
        return mean_activation
    vocab_size, settings = config.model.vocab_size, config.data.teacher
    overwrites = config.model.factory is None  # a user's own model may need its logits

    def loss(logits: Tensor, targets: Tensor, teacher: SoftTargets | None = None) -> Tensor:
        if settings is None or teacher is None:
            return cross_entropy(logits, targets, vocab_size, tp, overwrites)
        return distilled_loss(logits, targets, teacher, settings, vocab_size, tp, overwrites)

    return loss


def load_factory(factory: str, host: str) -> Factory:
    """Return the function that FILE.py:FUNCTION names.

    A file in the folder of the user's code is imported as a module of that folder, so that it can import others there.

    Raises:
        RuntimeError: The file or the function does not exist, or another module has the file's name.
    """
    file, _, function = factory.rpartition(":")
    if not Path(file).is_file():
        raise RuntimeError(f"host {host}: model.factory {factory}: there is no Python file {Path(file).absolute()}")
    module = _import_code(file, host) if Path(file).parts[0] == CODE_FOLDER else _load(file)
    if not hasattr(module, function):
        raise RuntimeError(f"host {host}: model.factory {factory}: {file} has no function {function}")
    found: Factory = getattr(module, function)
    return found


def _load(file: str) -> ModuleType:
    """Return the module of a file outside the folder of the user's code."""
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert spec is not None, file
    assert spec.loader is not None, file  # the name ends with .py
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _import_code(file: str, host: str) -> ModuleType:
    """Import a file of the user's code under the name by which its other modules import it."""
    folder = str(Path(CODE_FOLDER).absolute())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = ".".join(Path(file).relative_to(CODE_FOLDER).with_suffix("").parts)
    module = importlib.import_module(name)
    if not Path(module.__file__ or os.devnull).samefile(file):
        raise RuntimeError(
            f"host {host}: model.factory: {file}: another module is already named {name}: "
            f"{module.__file__ or 'a part of Python'}; rename the file"
        )
    return module


def check_compiler(host: str, device: torch.device) -> None:
    """Raise RuntimeError if this host lacks something that compiled blocks need."""
    lacking = missing_for_compile(device.type != "cpu", os.environ)
    if lacking is not None:
        raise RuntimeError(f"host {host}: compile needs {lacking}: install it, or set `compile: false` in job.yaml")


def multiply_in_fp8(blocks: nn.Module, host: str, device: torch.device) -> None:
    """Replace the linear modules of `blocks` by torchao's, which multiply in FP8 forward and backward.

    Parameters, their names and the values kept for the backward do not change. Each product scales each of its two
    matrices by its current largest value. CPUs multiply the rounded values in fp32.

    Raises:
        RuntimeError: The host lacks torchao, its torchao does not fit its torch, or its GPU lacks FP8 products.
    """
    float8: Any = None
    lacking = missing_for_fp8()
    if lacking is None:
        try:
            float8 = importlib.import_module("torchao.float8")
        except ImportError as error:
            lacking = f"a torchao that works with torch {torch.__version__}: {error}"
    if lacking is None and device.type == "cuda" and torch.cuda.get_device_capability(device) < FP8_CAPABILITY:
        name, wanted = torch.cuda.get_device_name(device), ".".join(map(str, FP8_CAPABILITY))
        lacking = f"a GPU of compute capability {wanted} or later, which {name} is not"
    if lacking is not None:
        raise RuntimeError(f"host {host}: fp8 needs {lacking}; provide it, or leave `fp8` out of job.yaml")
    float8.convert_to_float8_training(blocks, config=float8.Float8LinearConfig(emulate=device.type == "cpu"))
