"""The shape of a model, and the parameters and FLOPs that follow from it. Free of torch.

Planner, emulation and utilisation all count here. In formulas h is the hidden size, s the sequence length, V the
vocabulary, f the width of the feed-forward network, q the width of the queries of all heads (h unless `head_dim` is
set), k the width of the keys, and of the values, of all their heads; b is the micro-batch size. On one of `tp` tensor
shards matrices, and biases of their columns, are split; norms, and biases of their sums, are whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from holmes_runtime.config.checks import check, check_positive

Family = Literal["gpt", "llama"]
Part = Literal["embedding", "layer", "head"]
RopeKind = Literal["linear", "llama3"]
MLP_MATRICES: dict[Family, int] = {"gpt": 2, "llama": 3}  # SwiGLU adds a gate matrix
LOSS_CHUNK_BYTES = 64 * 2**20  # fp32 logits that the loss works on at a time: enough to fill a GPU
BUCKET_BYTES = 4 * 2**20  # fp32 gradients: large enough to fill a link, small enough to start early
CODE_FOLDER = "code"  # the user's own code on a node; a model's file is imported from it
MAX_BUCKETS = 64  # in a large model; at most one of them is left to send when the last backward ends
NORM_VECTORS: dict[Family, int] = {"gpt": 2, "llama": 1}  # LayerNorm has a bias, RMSNorm none


class Sizes(Protocol):
    """The sizes that counting needs: h, q, k, f, s, V. Both the model of job.yaml and `ModelShape` have them."""

    @property
    def family(self) -> Family: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def head_size(self) -> int: ...
    @property
    def query_size(self) -> int: ...
    @property
    def kv_size(self) -> int: ...
    @property
    def ffn_size(self) -> int: ...
    @property
    def seq_length(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def tied_embeddings(self) -> bool: ...
    @property
    def qkv_bias(self) -> bool: ...
    @property
    def qk_norm(self) -> bool: ...


@dataclass(frozen=True)
class RopeStretch:
    """Stretching of rotary frequencies by `factor`, to reach beyond the length they were trained at.

    linear: all of them (Chen et al., Position Interpolation, 2023). llama3: frequencies that turn less than
    `low_freq_factor` times in `original_seq_length` tokens. Those that turn more than `high_freq_factor` times stay,
    with a smooth transition between the two (Grattafiori et al., The Llama 3 Herd of Models, 2024, and Meta's published
    code).
    """

    kind: RopeKind
    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_seq_length: int

    def __post_init__(self) -> None:
        check_positive(self, "factor", "low_freq_factor", "high_freq_factor", "original_seq_length")
        low, high = self.low_freq_factor, self.high_freq_factor
        check("high_freq_factor", high, f"must be above low_freq_factor {low}", high > low)


@dataclass(frozen=True)
class ModelShape:
    """A decoder of one family. Raises ValueError for impossible sizes.

    gpt: learned positions, LayerNorm, GELU, biases; with `tanh_gelu` GELU is approximated by tanh. llama: rotary
    positions, RMSNorm, SwiGLU, no biases except, with `qkv_bias`, of queries, keys and values; `qk_norm` has an RMSNorm
    over each head of queries and keys. `head_dim` is None where heads share out the hidden size. With `tied_embeddings`
    the head is the table of token vectors. `factory`, FILE.py:FUNCTION, builds a model of the user's own
    (docs/runtime.md).
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
    rope_scaling: RopeStretch | None
    norm_eps: float
    head_dim: int | None
    qkv_bias: bool
    qk_norm: bool
    tied_embeddings: bool
    factory: str | None
    tanh_gelu: bool

    def __post_init__(self) -> None:
        check_positive(self, "num_layers", "hidden_size", "num_heads", "num_kv_heads", "ffn_hidden_size")
        check_positive(self, "vocab_size", "seq_length", "rope_theta", "norm_eps")
        h, heads, kv_heads, head_dim = self.hidden_size, self.num_heads, self.num_kv_heads, self.head_dim
        check("num_heads", heads, f"must divide hidden_size {h}", head_dim is not None or h % heads == 0)
        check("head_dim", head_dim, "must be positive", head_dim is None or head_dim > 0)
        check("num_kv_heads", kv_heads, f"must divide num_heads {heads}", heads % kv_heads == 0)
        can_rotate = self.family == "gpt" or self.head_size % 2 == 0
        check("num_heads", heads, "must make hidden_size / num_heads even, for rotation", can_rotate)
        of_llama = self.qkv_bias or self.qk_norm or self.rope_scaling is not None
        rule = "must be llama for qkv_bias, qk_norm and rope_scaling"
        check("family", self.family, rule, self.family == "llama" or not of_llama)
        check("family", self.family, "must be gpt for tanh_gelu", self.family == "gpt" or not self.tanh_gelu)

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.head_dim or self.hidden_size // self.num_heads

    @property
    def query_size(self) -> int:
        """Width of the queries of all heads."""
        return self.head_size * self.num_heads

    @property
    def kv_size(self) -> int:
        """Width of the keys, and of the values, of all their heads."""
        return self.head_size * self.num_kv_heads

    @property
    def ffn_size(self) -> int:
        """Width of the feed-forward network."""
        return self.ffn_hidden_size


def layer_matrix_parameters(model: Sizes) -> int:
    """Return the weights of one layer's matrices: h (2 q + 2 k) of attention, 2 h f of a GPT's MLP, 3 h f of SwiGLU."""
    h = model.hidden_size
    return h * (2 * model.query_size + 2 * model.kv_size) + MLP_MATRICES[model.family] * h * model.ffn_size


def layer_parameters(model: Sizes, tp: int = 1) -> int:
    """Return the parameters of one layer on one of `tp` shards: matrices, norms, and biases if it has any.

    The biases are q + 2 k of queries, keys and values, and a GPT's h of the projection, f and h of the MLP.
    """
    h, split = model.hidden_size, layer_matrix_parameters(model)
    whole = 2 * NORM_VECTORS[model.family] * h + 2 * model.head_size * model.qk_norm
    if model.family == "gpt" or model.qkv_bias:
        split += model.query_size + 2 * model.kv_size
    if model.family == "gpt":
        split, whole = split + model.ffn_size, whole + 2 * h
    return split // tp + whole


def table_parameters(model: Sizes, tp: int = 1) -> int:
    """Return the parameters of the table of token vectors, V h, split over the vocabulary."""
    return model.vocab_size * model.hidden_size // tp


def embedding_parameters(model: Sizes, tp: int = 1) -> int:
    """Return the parameters of the embedding: the table, and a GPT's s h positions, whole on each shard."""
    positions = model.seq_length * model.hidden_size if model.family == "gpt" else 0
    return table_parameters(model, tp) + positions


def head_parameters(model: Sizes, tp: int = 1, is_first: bool = False) -> int:
    """Return the parameters of the head, h V, split over the vocabulary, and of the final norm.

    A tied head on a stage that `is_first` too adds only the norm; any other last stage has its own copy of the table.
    """
    table = 0 if model.tied_embeddings and is_first else table_parameters(model, tp)
    return table + NORM_VECTORS[model.family] * model.hidden_size


def stage_parameters(model: Sizes, num_layers: int, is_first: bool, is_last: bool, tp: int = 1) -> int:
    """Return the parameters of a stage of `num_layers` layers on one of `tp` shards."""
    ends = embedding_parameters(model, tp) * is_first + head_parameters(model, tp, is_first) * is_last
    return num_layers * layer_parameters(model, tp) + ends


def bucket_bytes(parameters: int) -> int:
    """Return the bytes of fp32 gradients that fill a bucket; half suffice at a layer's end."""
    return max(BUCKET_BYTES, 4 * parameters // MAX_BUCKETS)


def gradient_order(num_layers: int, is_first: bool, is_last: bool) -> tuple[Part, ...]:
    """Return the parts of a stage in the order in which their gradients travel: the reverse of the forward.

    parallel/zero1.py fills its buckets in this order. A bucket never holds parts of two stages. Under tensor
    parallelism, parameters that are whole on every shard follow in buckets of their own.
    """
    counts: tuple[tuple[Part, int], ...] = (("head", is_last), ("layer", num_layers), ("embedding", is_first))
    return tuple(part for part, count in counts for _ in range(count))


def matrix_flops(model: Sizes, micro_batch_size: int) -> float:
    """Return the FLOPs of the forward of one layer's matrices: 2 b s for every weight."""
    return 2.0 * micro_batch_size * model.seq_length * layer_matrix_parameters(model)


def attention_flops(model: Sizes, micro_batch_size: int) -> float:
    """Return the FLOPs of one layer's attention core forward, queries x keys and scores x values: 4 b s^2 q.

    Counted in full, as published formulas do, although a causal kernel may skip the half above the diagonal.
    """
    return 4.0 * micro_batch_size * model.seq_length**2 * model.query_size


def layer_flops(model: Sizes, micro_batch_size: int) -> float:
    """Return the FLOPs of one layer's forward: for a GPT 24 b s h^2 (1 + s / (6 h)).

    Source: Narayanan et al., Megatron-LM, SC 2021, equation 2.
    """
    return matrix_flops(model, micro_batch_size) + attention_flops(model, micro_batch_size)


def head_flops(model: Sizes, micro_batch_size: int) -> float:
    """Return the FLOPs of the head's forward: 2 b s h V. Source as `layer_flops`."""
    return 2.0 * micro_batch_size * model.seq_length * model.hidden_size * model.vocab_size


def step_flops(model: Sizes, batch_size: int) -> float:
    """Return the FLOPs of `batch_size` samples in all layers and the head; a backward takes as many as two forwards.

    Recomputation is left out, so that utilisation cannot be raised by wasting work. Source: Chowdhery et al., PaLM,
    2022, appendix B.
    """
    return 3 * (model.num_layers * layer_flops(model, batch_size) + head_flops(model, batch_size))
