"""Frozen parameters of a job: refused if the engine cannot freeze them or the cost model does not cover them."""

from __future__ import annotations

from holmes_core.errors import HolmesError
from holmes_core.records.job import Job
from holmes_runtime.config.trainable import Trainable, broken_rule


def check_trainable(job: Job) -> None:
    """Raise HolmesError (wrong usage) if the engine cannot freeze these parameters, or they are not priced."""
    trainable, model, layers = job.trainable, job.model, job.parallel.layers or ()
    if trainable is None:
        return
    if job.parallel.schedule == "zero-bubble":
        raise HolmesError(
            "job: parallel.schedule zero-bubble with trainable: frozen weights have no gradients that it could delay",
            "leave parallel.schedule out, or choose another schedule",
        )
    if job.is_bundled:
        _check_bundled(job, trainable)
    adapts_mlp = trainable.lora is None or trainable.lora.has("gate", "up", "down")
    on_attention = not adapts_mlp and not trainable.frozen_layers
    unlike = tuple(key for key in model.beyond_bundled if key != "shared_experts")
    if model.experts is not None and not on_attention:
        raise HolmesError(
            f"job: trainable with model.experts {model.experts}: experts are frozen as a whole or not at all, and "
            "adapters on them are not priced",
            "set trainable.lora.targets to matrices of attention only (query, key, value, projection)",
        )
    if unlike:
        raise HolmesError(
            f"job: trainable with model.{unlike[0]}: adapters on such layers are not priced",
            f"leave trainable or model.{unlike[0]} out",
        )
    if model.family == "gpt" and trainable.lora is not None and trainable.lora.has("gate"):
        raise HolmesError(
            f"job: trainable.lora.targets is {list(trainable.lora.targets)}, but a gpt has no gate",
            "leave gate out, or set model.family to llama",
        )
    if trainable.frozen_layers >= model.num_layers:
        raise HolmesError(
            f"job: trainable.frozen_layers is {trainable.frozen_layers} and model.num_layers {model.num_layers}: no "
            "layer would be trained",
            f"set trainable.frozen_layers to at most {model.num_layers - 1}",
        )
    if trainable.frozen_layers and model.tied_embeddings:
        raise HolmesError(
            f"job: trainable.frozen_layers is {trainable.frozen_layers} with model.tied_embeddings: the embedding is "
            "frozen, and the head, which is the same table, is trained",
            "leave trainable.frozen_layers or model.tied_embeddings out",
        )
    if trainable.frozen_layers and max(job.parallel.pp or 1, len(layers)) > 1:
        raise HolmesError(
            f"job: trainable.frozen_layers is {trainable.frozen_layers}, parallel.pp {job.parallel.pp or len(layers)}: "
            "stages with frozen layers are not priced, so such a job is planned without a pipeline",
            "leave parallel.pp and parallel.layers out",
        )


def _check_bundled(job: Job, trainable: Trainable) -> None:
    """Raise HolmesError (wrong usage) for frozen parameters that the bundled runtime cannot train with."""
    lora, model = trainable.lora, job.model
    if trainable.frozen_layers or lora is None:
        raise HolmesError(
            f"job: trainable.frozen_layers is {trainable.frozen_layers} with the bundled runtime, which freezes all "
            "weights or none",
            "set trainable.lora instead, or set trainer.engine to the software that freezes those layers",
        )
    for key, is_set in (
        ("model.factory", model.factory is not None),
        ("parallel.zero 3", job.zero == 3),
    ):
        if is_set:
            raise HolmesError(
                f"job: trainable.lora with {key}: the bundled runtime trains adapters only of its own GPT and Llama, "
                "with whole frozen weights on each replica",
                f"leave trainable or {key} out",
            )
    rule = broken_rule(lora, model)
    if rule is not None:
        raise HolmesError(f"job: trainable.lora.targets is {list(lora.targets)}: it {rule}", "correct the targets")
