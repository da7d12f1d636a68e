"""Fine-tuning of a part of the parameters: adapters, or all but the first layers. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from holmes_runtime.config.checks import check
from holmes_runtime.config.field_limits import AboveZero, Count, Limits, SharedSettings
from holmes_runtime.config.model_shape import ModelShape, attention_flops, head_flops, matrix_flops, step_flops
from holmes_runtime.config.rooted_path import RootedPath

Matrix = Literal["query", "key", "value", "qkv", "projection", "gate", "up", "down"]
QKV: tuple[Matrix, ...] = ("qkv", "query", "key", "value")
OUT_OF_SHARDS: tuple[Matrix, ...] = ("projection", "down")  # `tp` splits their inputs, and the results of all others


@dataclass(frozen=True, kw_only=True)
class Lora(SharedSettings):
    """Low-rank adapters (LoRA): the product of a matrix W becomes W x + alpha / rank B (A x), and only A and B are
    trained.
    """

    # Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, 2021.
    rank: Annotated[int, Limits(ge=1, le=65_536)]
    """Number of rows of A and of columns of B. Example: 16"""
    targets: tuple[Matrix, ...]
    """Matrices of each layer that have an adapter: query, key, value (or qkv, if they are one matrix), projection, gate
    (of a llama), up and down. Example: [query, value]"""
    alpha: AboveZero | None = None
    """Weight of the adapters' result, times rank; not set: rank. Another engine's script has its own. Example: 32"""
    adapters: RootedPath | None = None
    """Folder of adapters as the peft library writes them, at the same path on every host. Training starts from them;
    not set: from new ones. A run that resumes continues from its checkpoint. Another engine's script reads its own.
    Example: /models/adapters"""

    def __post_init__(self) -> None:
        super().__post_init__()
        named = self.targets
        check("targets", list(named), "must name a matrix, and none twice", 0 < len(named) == len(set(named)))
        twice = "qkv" in named and any(each in named for each in QKV[1:])
        check("targets", list(named), "must name qkv, or query, key and value", not twice)

    @property
    def weight(self) -> float:
        """The effective value of `alpha`."""
        return float(self.rank) if self.alpha is None else self.alpha

    @property
    def scale(self) -> float:
        """The factor on the adapters' result."""
        return self.weight / self.rank

    def has(self, *matrices: Matrix) -> bool:
        """Return True if one of these matrices has an adapter."""
        return any(each in self.targets for each in matrices)


@dataclass(frozen=True, kw_only=True)
class Trainable(SharedSettings):
    """The parameters that are trained, if not all: with `lora` only the adapters; with `frozen_layers` the layers after
    the first ones, and the head. The bundled runtime trains adapters but does not freeze layers. Another engine's
    script must freeze the other parameters itself; the planner assumes that it does.
    """

    lora: Lora | None = None
    frozen_layers: Count = 0
    """Number of first layers that are frozen, together with the embedding. Example: 24"""

    def __post_init__(self) -> None:
        super().__post_init__()
        check("lora", self.lora, "must be set, or frozen_layers", self.lora is not None or self.frozen_layers > 0)


def first_adapters(trainable: Trainable | None) -> str | None:
    """Return the folder of adapters that training starts from; None without one."""
    return None if trainable is None or trainable.lora is None else trainable.lora.adapters


def broken_rule(lora: Lora, model: ModelShape) -> str | None:
    """Return the rule of the bundled trainer that the targets break; None if it can train these adapters.

    As in published models, queries, keys and values each have an adapter in a Llama, and share one in a GPT.
    """
    if model.factory is not None:
        return "must not be set with model.factory: the matrices of such a model are unknown"
    if model.family == "gpt" and lora.has("query", "key", "value", "gate"):
        return "must be of qkv, projection, up and down in a gpt, where query, key and value are one matrix"
    if model.family == "llama" and lora.has("qkv"):
        return "must name query, key and value instead of qkv in a llama, where each is a matrix"
    if model.experts is not None and lora.has("gate", "up", "down"):
        return "must be matrices of attention with model.experts, whose experts have no adapters"
    return None


def matrix_size(model: ModelShape, matrix: Matrix) -> tuple[int, int]:
    """Return the input width and the output width of a matrix."""
    h, q, k, f = model.hidden_size, model.query_size, model.kv_size, model.ffn_size
    sizes: dict[Matrix, tuple[int, int]] = {"query": (h, q), "key": (h, k), "value": (h, k), "qkv": (h, q + 2 * k)}
    sizes |= {"projection": (model.attended_size, h), "gate": (h, f), "up": (h, f), "down": (f, h)}
    return sizes[matrix]


def adapter_parameters(model: ModelShape, lora: Lora, tp: int = 1) -> int:
    """Return the parameters of a layer's adapters on one of `tp` shards.

    Of A and B, the one on the split side of the matrix is split; the other is whole.
    """
    total = 0
    for matrix in lora.targets:
        inputs, outputs = matrix_size(model, matrix)
        split, whole = (inputs, outputs) if matrix in OUT_OF_SHARDS else (outputs, inputs)
        total += lora.rank * (split // tp + whole)
    return total


def trained_step_flops(model: ModelShape, trainable: Trainable | None, batch_size: int) -> float:
    """Return the FLOPs of `batch_size` samples as `step_flops` does, without the gradients that frozen weights save.

    The adapters' own FLOPs are left out: at rank 16 they are below one percent.
    """
    if trainable is None:
        return step_flops(model, batch_size)
    matrices, attention = matrix_flops(model, batch_size), attention_flops(model, batch_size)
    gradients = 2 if trainable.lora is None else 1  # gradients of a product: of its input and of its weight
    backwards = (model.num_layers - trainable.frozen_layers) * (gradients * matrices + 2 * attention)
    head = (1 + gradients) * head_flops(model, batch_size)
    return model.num_layers * (matrices + attention) + backwards + head
