"""The shape of a model and what follows from it: parameters, and the FLOPs the model needs. Free of torch.

Planner, emulation and utilisation count here alike. In formulas h is the hidden size, s the sequence length, V the
vocabulary, f the width of the feed-forward network, k the width of the keys, and of the values, of all their heads; b
is the micro-batch size. On one of `tp` tensor shards matrices, and biases of their columns, are split; norms, and
biases of their sums, are whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from holmes_runtime.config.checks import check, check_positive

Family = Literal["gpt", "llama"]
Part = Literal["embedding", "layer", "head"]
MLP_MATRICES: dict[Family, int] = {"gpt": 2, "llama": 3}  # a SwiGLU has a gate besides
NORM_VECTORS: dict[Family, int] = {"gpt": 2, "llama": 1}  # LayerNorm has a bias, RMSNorm none


class Sizes(Protocol):
    """What counting needs of a model: h, k, f, s and V. Both the model of job.yaml and `ModelShape` have it."""

    @property
    def family(self) -> Family: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def kv_size(self) -> int: ...
    @property
    def ffn_size(self) -> int: ...
    @property
    def seq_length(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...


@dataclass(frozen=True)
class ModelShape:
    """A decoder of one family with an untied head. Raises ValueError for sizes no model can have.

    gpt: learned positions, LayerNorm, GELU, biases. llama: rotary positions, RMSNorm, SwiGLU, no biases. `factory`,
    FILE.py:FUNCTION, builds a model of the user's own (docs/runtime.md).
    """

    family: Family
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    ffn_hidden_size: int
    vocab_size: int
    seq_length: int
    rope_theta: float
    factory: str | None

    def __post_init__(self) -> None:
        check_positive(self, "num_layers", "hidden_size", "num_heads", "num_kv_heads", "ffn_hidden_size")
        check_positive(self, "vocab_size", "seq_length", "rope_theta")
        h, heads, kv_heads = self.hidden_size, self.num_heads, self.num_kv_heads
        check("num_heads", heads, f"must divide hidden_size {h}", h % heads == 0)
        check("num_kv_heads", kv_heads, f"must divide num_heads {heads}", heads % kv_heads == 0)
        can_rotate = self.family == "gpt" or self.head_size % 2 == 0
        check("num_heads", heads, "must make hidden_size / num_heads even, for rotation", can_rotate)

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_heads

    @property
    def kv_size(self) -> int:
        """Width of the keys, and of the values, of all their heads."""
        return self.head_size * self.num_kv_heads

    @property
    def ffn_size(self) -> int:
        """Width of the feed-forward network."""
        return self.ffn_hidden_size


def layer_matrix_parameters(model: Sizes) -> int:
    """Weights of one layer's matrices: h (2 h + 2 k) of attention, 2 h f of a GPT's MLP, 3 h f of SwiGLU."""
    h = model.hidden_size
    return h * (2 * h + 2 * model.kv_size) + MLP_MATRICES[model.family] * h * model.ffn_size


def layer_parameters(model: Sizes, tp: int = 1) -> int:
    """Parameters of one layer on one of `tp` shards: matrices, two norms, and a GPT's biases.

    Those are h + 2 k of queries, keys and values, h of the projection, f and h of the MLP.
    """
    h, split = model.hidden_size, layer_matrix_parameters(model)
    whole = 2 * NORM_VECTORS[model.family] * h
    if model.family == "gpt":
        split, whole = split + h + 2 * model.kv_size + model.ffn_size, whole + 2 * h
    return split // tp + whole


def embedding_parameters(model: Sizes, tp: int = 1) -> int:
    """Parameters of the embedding, on the first stage: V h, split over the vocabulary, and a GPT's s h positions."""
    positions = model.seq_length * model.hidden_size if model.family == "gpt" else 0
    return model.vocab_size * model.hidden_size // tp + positions


def head_parameters(model: Sizes, tp: int = 1) -> int:
    """Parameters of the untied head, h V, split over the vocabulary, and of the final norm."""
    return model.vocab_size * model.hidden_size // tp + NORM_VECTORS[model.family] * model.hidden_size


def stage_parameters(model: Sizes, num_layers: int, is_first: bool, is_last: bool, tp: int = 1) -> int:
    """Parameters of a stage of `num_layers` layers on one of `tp` shards."""
    ends = embedding_parameters(model, tp) * is_first + head_parameters(model, tp) * is_last
    return num_layers * layer_parameters(model, tp) + ends


def gradient_order(num_layers: int, is_first: bool, is_last: bool) -> tuple[Part, ...]:
    """The parts of a stage in the order in which their gradients travel: the reverse of the forward.

    So parallel/zero1.py sends its buckets; under tensor parallelism what is whole on every shard follows in buckets of
    its own.
    """
    counts: tuple[tuple[Part, int], ...] = (("head", is_last), ("layer", num_layers), ("embedding", is_first))
    return tuple(part for part, count in counts for _ in range(count))


def matrix_flops(model: Sizes, micro_batch_size: int) -> float:
    """FLOPs of the forward of one layer's matrices: 2 b s for every weight."""
    return 2.0 * micro_batch_size * model.seq_length * layer_matrix_parameters(model)


def attention_flops(model: Sizes, micro_batch_size: int) -> float:
    """FLOPs of the forward of one layer's attention core, queries x keys and scores x values: 4 b s^2 h.

    Counted in full, as published formulas do, although a causal kernel may skip the half above the diagonal.
    """
    return 4.0 * micro_batch_size * model.seq_length**2 * model.hidden_size


def layer_flops(model: Sizes, micro_batch_size: int) -> float:
    """FLOPs of one layer's forward: for a GPT 24 b s h^2 (1 + s / (6 h)).

    Source: Narayanan et al., Megatron-LM, SC 2021, equation 2.
    """
    return matrix_flops(model, micro_batch_size) + attention_flops(model, micro_batch_size)


def head_flops(model: Sizes, micro_batch_size: int) -> float:
    """FLOPs of the head's forward: 2 b s h V. Source as `layer_flops`."""
    return 2.0 * micro_batch_size * model.seq_length * model.hidden_size * model.vocab_size


def step_flops(model: ModelShape, batch_size: int) -> float:
    """FLOPs that `batch_size` samples need in all layers and the head; their backward takes as many as two forwards.

    What recomputation does again is left out, so that utilisation cannot be raised by wasting work. Source: Chowdhery
    et al., PaLM, 2022, appendix B.
    """
    return 3 * (model.num_layers * layer_flops(model, batch_size) + head_flops(model, batch_size))
