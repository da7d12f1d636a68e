"""The module of one stage and the loss of its output: a GPT or Llama, a model of the user's own, or a rehearsal."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Protocol

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
from holmes_runtime.model.fp8_layers import multiply_in_fp8
from holmes_runtime.model.head_loss import cross_entropy
from holmes_runtime.model.tensor_parallel import TensorParallel
from holmes_runtime.model.tensor_part import TensorPart
from holmes_runtime.node.compiler import missing_for_compile

Factory = Callable[[range, RunConfig], nn.Module]


class LossFunction(Protocol):
    """The mean loss of one micro-batch."""

    def __call__(self, logits: Tensor, targets: Tensor, teacher: SoftTargets | None = None) -> Tensor:
        """logits: the last stage's output; targets: the next tokens (batch, seq); teacher: (batch, seq, top)."""


@dataclass(frozen=True)
class StageModule:
    """The module of a stage; `parts` has by name the part of each parameter here under tensor parallelism.

    `tied` is the trained parameter that the other end of the pipeline holds a copy of, if any.
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
    """Return the module of `stage` for rank `me` on `device`. Raise RuntimeError if it cannot be built there.

    Without `draws` a GPT's or Llama's weights are zeros, for a checkpoint to be loaded into; also in a run that starts
    from a published model. Frozen ones, which no checkpoint has, are always drawn or read. `loss_scale` returns the
    factor on the gradients of losses at present.
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
                f"host {me.host}: model.factory {config.model.factory}: parameter {frozen[0]} is frozen, and would "
                "not be saved: train it, or make it a buffer"
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
    """Return the loss function of the run. Where it is called without a teacher, as in evaluations, it uses none."""
    if config.emulation is not None:
        return mean_activation
    vocab_size, settings = config.model.vocab_size, config.data.teacher
    overwrites = config.model.factory is None  # another's model may need its logits

    def loss(logits: Tensor, targets: Tensor, teacher: SoftTargets | None = None) -> Tensor:
        if settings is None or teacher is None:
            return cross_entropy(logits, targets, vocab_size, tp, overwrites)
        return distilled_loss(logits, targets, teacher, settings, vocab_size, tp, overwrites)

    return loss


def load_factory(factory: str, host: str) -> Factory:
    """Return the function that FILE.py:FUNCTION names. Raise RuntimeError naming host and file if there is none.

    A file in the folder of the user's code is imported as a module of that folder, from where it imports others.
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
    """Return the module in a file that stands alone."""
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert spec is not None, file
    assert spec.loader is not None, file  # its name ends with .py
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _import_code(file: str, host: str) -> ModuleType:
    """Import a file of the user's code as its other modules do. Raise RuntimeError if another has its name."""
    folder = str(Path(CODE_FOLDER).absolute())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = ".".join(Path(file).relative_to(CODE_FOLDER).with_suffix("").parts)
    module = importlib.import_module(name)
    if not Path(module.__file__ or os.devnull).samefile(file):
        raise RuntimeError(
            f"host {host}: model.factory: {file}: module {name} is {module.__file__ or 'part of Python'} here already; "
            "give the file another name"
        )
    return module


def check_compiler(host: str, device: torch.device) -> None:
    """Raise RuntimeError if this host lacks something that compiled blocks need."""
    lacking = missing_for_compile(device.type != "cpu", os.environ)
    if lacking is not None:
        raise RuntimeError(f"host {host}: compile needs {lacking}: install it, or set `compile: false` in job.yaml")
