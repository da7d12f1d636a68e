"""The shape of a model, and the parameters and FLOPs that follow from it. Free of torch.

Planner, emulation and utilisation all use these counts. In formulas h is the hidden size, s the sequence length, V the
vocabulary size, f the width of the feed-forward network, q the width of the queries of all heads (h unless `head_dim`
is set), k the width of the keys of all heads and of the values of all heads, and b the micro-batch size. Matrices and
the biases of their columns are split over `tp` tensor shards; norms and the biases of sums are whole on each. In a
mixture of experts, layer means a layer with experts unless a function says otherwise; `ModelShape.dense` is the shape
of the others. Routed experts are in `ep` parts, of whole experts or of a part of each. Every rank has the whole router.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Literal

from holmes_runtime.config.checks import check
from holmes_runtime.config.field_limits import AboveZero, Limits, Positive, SharedSettings
from holmes_runtime.config.layer_kinds import ENGINES_OWN, LatentAttention, LinearAttention

Family = Literal["gpt", "llama"]
Part = Literal["embedding", "layer", "head"]
MLP_MATRICES: dict[Family, int] = {"gpt": 2, "llama": 3}  # SwiGLU adds a gate matrix
LOSS_CHUNK_BYTES = 64 * 2**20  # fp32 logits that the loss processes at a time: enough to fill a GPU
BUCKET_BYTES = 4 * 2**20  # fp32 gradients: large enough to fill a link, small enough to start early
CODE_FOLDER = "code"  # the user's own code on a node; the model's file is imported from there
MAX_BUCKETS = 64  # in a large model; at most one is still to be sent when the last backward ends
NORM_VECTORS: dict[Family, int] = {"gpt": 2, "llama": 1}  # LayerNorm has a bias, RMSNorm none


@dataclass(frozen=True)
class RopeScaling(SharedSettings):
    """Stretched rotary frequencies, which let positions reach beyond the length that the model was trained at.

    linear: all frequencies are divided by `factor`. llama3: only the slow ones are, as in Llama 3.1.
    """

    # linear: Chen et al., Position Interpolation, 2023. llama3: Grattafiori et al., The Llama 3 Herd of Models, 2024,
    # and Meta's published code.
    kind: Literal["linear", "llama3"]
    """linear or llama3. Example: llama3"""
    factor: AboveZero
    """Length that positions reach, divided by the original length. Example: 8.0"""
    low_freq_factor: AboveZero = 1.0
    """For llama3: frequencies with fewer turns than this within the original length are stretched. Example: 1.0"""
    high_freq_factor: AboveZero = 4.0
    """For llama3: frequencies with more turns than this stay as they are. Example: 4.0"""
    original_seq_length: Positive = 8192
    """For llama3: sequence length in tokens that the model was first trained at. Example: 8192"""

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.low_freq_factor, self.high_freq_factor
        check("high_freq_factor", high, f"must be above low_freq_factor {low}", high > low)


@dataclass(frozen=True, kw_only=True)
class ModelShape(SharedSettings):
    """The shape of a decoder, in the field's terms. `holmes model FOLDER` prints it for a published model."""

    preset: str | None = None
    """A published shape, which other keys override. Example: llama-3-8b"""
    family: Family = "gpt"
    """gpt: learned positions, LayerNorm, GELU, biases. llama: rotary positions, RMSNorm, SwiGLU, grouped-query
    attention, no biases; with the keys below also Qwen 2.5, Qwen 3, Mistral and Mixtral. Example: llama"""
    num_layers: Annotated[int, Limits(ge=1, le=10_000)]
    """Number of transformer layers. Example: 8"""
    hidden_size: Annotated[int, Limits(ge=1, le=2**20)]
    """Width of a token's vector between layers. Example: 256"""
    num_heads: Positive
    """Number of attention heads of queries. Example: 8"""
    num_kv_heads: Positive | None = None
    """Number of attention heads of keys and values; not set: as many as `num_heads`. Example: 2"""
    ffn_hidden_size: Positive | None = None
    """Width of the feed-forward network; not set: 4 times `hidden_size`. Example: 688"""
    seq_length: Positive
    """Number of tokens in a sequence. Example: 1024"""
    vocab_size: Positive = 256
    """Number of different tokens; 256 is enough for bytes. Example: 32000"""
    rope_theta: AboveZero = 10000.0
    """Base of the rotary frequencies of a llama. Example: 500000.0"""
    rope_scaling: RopeScaling | None = None
    norm_eps: AboveZero = 1e-5
    """Added to the variance in norms. Example: 1.0e-6"""
    head_dim: Positive | None = None
    """Width of a head; not set: `hidden_size` / `num_heads`. Example: 64"""
    qkv_bias: bool = False
    """The queries, keys and values of a llama have biases, as in Qwen 2.5. Example: true"""
    qk_norm: bool = False
    """A llama applies an RMSNorm to each head of queries and keys, as in Qwen 3. Example: true"""
    tanh_gelu: bool = False
    """A gpt approximates GELU with tanh, as in OpenAI's GPT-2 (`gelu_new`). Example: true"""
    tied_embeddings: bool = False
    """The head uses the same weights as the token embedding. Example: true"""
    experts: Annotated[int, Limits(ge=1, le=2**14)] | None = None
    """Number of experts in a layer, from which a router chooses for each token; not set: no experts. Example: 128"""
    experts_per_token: Positive | None = None
    """Number of experts that compute each token; required with `experts`. Example: 8"""
    expert_ffn: Positive | None = None
    """Width of an expert's feed-forward network; not set: `ffn_hidden_size`. Example: 768"""
    normalized_routing: bool = True
    """The weights of a token's experts are divided by their sum, as in Mixtral, and in Qwen 3 with `norm_topk_prob`.
    Example: false"""
    shared_experts: Annotated[int, Limits(ge=0, le=1024)] = 0
    """Number of experts of the same width that compute every token; for `trainer.engine` megatron. Example: 1"""
    first_dense_layers: Annotated[int, Limits(ge=0, le=10_000)] = 0
    """Number of first layers without experts, with a feed-forward network of `ffn_hidden_size`. Example: 3"""
    latent_attention: LatentAttention | None = None
    linear_attention: LinearAttention | None = None
    attention_gate: bool = False
    """The result of attention is multiplied by a gate of the same width, as in Qwen3-Next. Example: true"""
    sliding_window: Positive | None = None
    """Number of tokens that a layer with a sliding window attends to; not set: all earlier tokens. Example: 128"""
    sliding_window_every: Positive = 2
    """One of this many layers has a sliding window; the others attend to all earlier tokens. Example: 2"""
    factory: Annotated[str, Limits(pattern=r"^(/[^:]*|[^/:]+(/[^/:]+)*)\.py:[A-Za-z_]\w*$")] | None = None
    """FILE.py:FUNCTION that builds a model of your own. FILE is in the folder of job.yaml, in the folder that
    `launch.code` names, or, if absolute, on every host. The shape must still describe the model, as the planner
    uses it to estimate costs.
    Example: my_model.py:build"""

    def __post_init__(self) -> None:
        super().__post_init__()
        h, heads, family = self.hidden_size, self.num_heads, self.family
        check("num_heads", heads, f"must divide hidden_size {h}", self.head_dim is not None or h % heads == 0)
        check("num_kv_heads", self.kv_heads, f"must divide num_heads {heads}", heads % self.kv_heads == 0)
        rule = f"must make the size of a head, {self.head_size}, even, for rotation"
        check("num_heads", heads, rule, family == "gpt" or self.head_size % 2 == 0)
        rule = f"must be as many as num_heads {heads} in a gpt"
        check("num_kv_heads", self.kv_heads, rule, family == "llama" or self.kv_heads == heads)
        rule = "must be false: a model.factory makes its own head, and the two copies would drift apart"
        check("tied_embeddings", self.tied_embeddings, rule, self.factory is None or not self.tied_embeddings)
        for key in ("rope_scaling", "qkv_bias", "qk_norm"):
            check(key, getattr(self, key), "must not be set in a gpt", family == "llama" or not getattr(self, key))
        check("tanh_gelu", self.tanh_gelu, "must be false in a llama", family == "gpt" or not self.tanh_gelu)
        self._check_experts()

    def _check_experts(self) -> None:
        experts, chosen = self.experts, self.experts_per_token
        for key in (*(("experts",) if experts else ()), *self.beyond_bundled):
            check(key, getattr(self, key), "must not be set in a gpt", self.family == "llama")
        check("experts_per_token", chosen, "must be set with experts", experts is None or chosen is not None)
        check("experts_per_token", chosen, f"must be at most experts {experts}", (chosen or 0) <= (experts or 0))
        for key in ("expert_ffn", "shared_experts", "first_dense_layers"):
            check(
                key,
                getattr(self, key),
                "must not be set without experts",
                experts is not None or not getattr(self, key),
            )
        rule = "must be left true without experts"
        check("normalized_routing", self.normalized_routing, rule, experts is not None or self.normalized_routing)
        rule = f"must be less than num_layers {self.num_layers}"
        check("first_dense_layers", self.first_dense_layers, rule, self.first_dense_layers < self.num_layers)
        linear = self.linear_attention.layers if self.linear_attention else 0
        check(
            "linear_attention.layers",
            linear,
            f"must be at most num_layers {self.num_layers}",
            linear <= self.num_layers,
        )

    @property
    def beyond_bundled(self) -> tuple[str, ...]:
        """The keys that are set but that the bundled runtime does not compute."""
        return tuple(key for key in ENGINES_OWN if getattr(self, key))

    @property
    def dense(self) -> ModelShape:
        """The shape of this model's layers without experts. It is this shape if no layer has experts."""
        return self if self.experts is None else _dense_shape(self)

    @property
    def in_full(self) -> ModelShape:
        """The same shape with every size given, and with a head size only if it is not the usual one."""
        return replace(
            self,
            preset=None,
            num_kv_heads=self.kv_heads,
            ffn_hidden_size=self.ffn_size,
            head_dim=None if self.query_size == self.hidden_size else self.head_dim,
            expert_ffn=None if self.experts is None else self.expert_size,
        )

    @property
    def kv_heads(self) -> int:
        """Number of key and value heads: as many as query heads unless given."""
        return self.num_kv_heads or self.num_heads

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.head_dim or self.hidden_size // self.num_heads

    @property
    def query_size(self) -> int:
        """Width of the queries of all heads."""
        latent = self.latent_attention
        head = self.head_size if latent is None else latent.nope_head_dim + latent.rope_head_dim
        return head * self.num_heads

    @property
    def attended_size(self) -> int:
        """Width of attention's result over all heads."""
        latent = self.latent_attention
        return self.query_size if latent is None else latent.value_head_dim * self.num_heads

    @property
    def kv_size(self) -> int:
        """Width of the keys of all heads, and of the values; their mean if the two differ."""
        if self.latent_attention is not None:
            return (self.query_size + self.attended_size) // 2
        return self.head_size * self.kv_heads

    @property
    def ffn_size(self) -> int:
        """Width of the feed-forward network: 4 h unless given."""
        return self.ffn_hidden_size or 4 * self.hidden_size

    @property
    def expert_size(self) -> int:
        """Width of an expert's feed-forward network."""
        return self.expert_ffn or self.ffn_size

    @property
    def routed_size(self) -> int:
        """Width of the feed-forward networks of one token's routed experts together; 0 without experts."""
        return self.expert_size * (self.experts_per_token or 0)

    @property
    def token_ffn_size(self) -> int:
        """Width of all feed-forward networks that compute one token in a layer."""
        return self.ffn_size if self.experts is None else self.routed_size + self.shared_experts * self.expert_size

    @property
    def sharded_sizes(self) -> dict[str, int]:
        """The sizes that the tensor degree must divide, by key in job.yaml."""
        width = {"ffn_hidden_size": self.ffn_size} if self.experts is None else {"expert_ffn": self.expert_size}
        return {"num_heads": self.num_heads, "num_kv_heads": self.kv_heads, **width, "seq_length": self.seq_length}


@lru_cache(maxsize=256)
def _dense_shape(model: ModelShape) -> ModelShape:
    none = dict.fromkeys(("experts", "experts_per_token", "expert_ffn"))
    return replace(model, shared_experts=0, first_dense_layers=0, **none)  # type: ignore[arg-type]


def attention_parameters(model: ModelShape) -> int:
    """Return the weights of one layer's attention: h (2 q + 2 k). For layers that differ, return the mean."""
    h, linear = model.hidden_size, model.linear_attention
    if model.latent_attention is not None:
        return model.latent_attention.parameters(h, model.num_heads)
    full = h * (2 * model.query_size + 2 * model.kv_size + model.query_size * model.attention_gate)
    return full if linear is None else linear.mean_parameters(h, full, model.num_layers)


def token_matrix_parameters(model: ModelShape) -> int:
    """Return the weights that multiply a token in one layer: attention, and 2 h f for a GPT's MLP or 3 h f for SwiGLU.

    Of the experts, count those that compute the token, and the router.
    """
    h = model.hidden_size
    router = h * (model.experts or 0)
    return attention_parameters(model) + router + MLP_MATRICES[model.family] * h * model.token_ffn_size


def expert_parameters(model: ModelShape, ep: int = 1) -> int:
    """Return the weights of a layer's routed experts on one of `ep` ranks; 0 without experts."""
    return (model.experts or 0) * MLP_MATRICES[model.family] * model.hidden_size * model.expert_size // ep


@lru_cache(maxsize=256)
def layer_parameters(model: ModelShape, tp: int = 1, ep: int = 1) -> int:
    """Return the parameters of one layer on one of `tp` shards: matrices, norms, and any biases.

    The biases are q + 2 k for queries, keys and values. A GPT also has h for the projection, and f and h for the MLP.
    """
    h, split = model.hidden_size, token_matrix_parameters(model)
    whole = 2 * NORM_VECTORS[model.family] * h + 2 * model.head_size * model.qk_norm
    if model.experts is not None:
        router = h * model.experts
        split -= router + MLP_MATRICES[model.family] * h * model.routed_size
        whole += router + expert_parameters(model, ep)
    if model.family == "gpt" or model.qkv_bias:
        split += model.query_size + 2 * model.kv_size
    if model.family == "gpt":
        split, whole = split + model.ffn_size, whole + 2 * h
    return split // tp + whole


def table_parameters(model: ModelShape, tp: int = 1) -> int:
    """Return the parameters of the table of token vectors, V h, split over the vocabulary."""
    return model.vocab_size * model.hidden_size // tp


def embedding_parameters(model: ModelShape, tp: int = 1) -> int:
    """Return the parameters of the embedding: the table, and a GPT's s h positions, which are whole on each shard."""
    positions = model.seq_length * model.hidden_size if model.family == "gpt" else 0
    return table_parameters(model, tp) + positions


def head_parameters(model: ModelShape, tp: int = 1, is_first: bool = False) -> int:
    """Return the parameters of the head, h V, split over the vocabulary, and of the final norm.

    A tied head adds only the norm if its stage `is_first` too. Any other last stage has its own copy of the table.
    """
    table = 0 if model.tied_embeddings and is_first else table_parameters(model, tp)
    return table + NORM_VECTORS[model.family] * model.hidden_size


def stage_parameters(
    model: ModelShape, num_layers: int, is_first: bool, is_last: bool, tp: int = 1, ep: int = 1
) -> int:
    """Return the parameters of a stage of `num_layers` layers on one of `tp` shards, with 1/ep of the experts.

    The first stage has as many of the layers without experts as fit.
    """
    ends = embedding_parameters(model, tp) * is_first + head_parameters(model, tp, is_first) * is_last
    dense = min(model.first_dense_layers, num_layers) if is_first else 0
    layers = (num_layers - dense) * layer_parameters(model, tp, ep)
    return layers + (dense * layer_parameters(model.dense, tp) if dense else 0) + ends


def bucket_bytes(parameters: int) -> int:
    """Return the bytes of fp32 gradients that fill a bucket. At the end of a layer, half of that is enough."""
    return max(BUCKET_BYTES, 4 * parameters // MAX_BUCKETS)


def gradient_order(num_layers: int, is_first: bool, is_last: bool) -> tuple[Part, ...]:
    """Return the parts of a stage in the order in which their gradients are sent: the reverse of the forward.

    parallel/zero1.py fills its buckets in this order. A bucket never holds parts of two stages. Under tensor
    parallelism, parameters that are whole on every shard follow in their own buckets.
    """
    counts: tuple[tuple[Part, int], ...] = (("head", is_last), ("layer", num_layers), ("embedding", is_first))
    return tuple(part for part, count in counts for _ in range(count))


def matrix_flops(model: ModelShape, micro_batch_size: int) -> float:
    """Return the FLOPs of the forward of one layer's matrices: 2 b s for every weight that multiplies a token."""
    return 2.0 * micro_batch_size * model.seq_length * token_matrix_parameters(model)


def routed_flops(model: ModelShape, micro_batch_size: int) -> float:
    """Return the FLOPs of the forward of one layer's routed experts, a part of `matrix_flops`."""
    weights = MLP_MATRICES[model.family] * model.hidden_size * model.routed_size
    return 2.0 * micro_batch_size * model.seq_length * weights


def attention_flops(model: ModelShape, micro_batch_size: int) -> float:
    """Return the FLOPs of the forward of one layer's attention core, queries x keys and scores x values: 4 b s^2 q.

    Counted in full, as in published formulas, although a causal kernel may skip the half above the diagonal. For layers
    with a sliding window or linear attention, return the mean over all layers.
    """
    s, linear = model.seq_length, model.linear_attention
    width = (model.query_size + model.attended_size) // 2  # scores from queries, results from values
    if linear is not None:
        return micro_batch_size * s * linear.mean_token_flops(4.0 * s * width, model.num_layers)
    if model.sliding_window is not None:
        every = model.sliding_window_every
        return 4.0 * micro_batch_size * s * width * ((every - 1) * s + min(s, model.sliding_window)) / every
    return 4.0 * micro_batch_size * s**2 * width


def layer_flops(model: ModelShape, micro_batch_size: int) -> float:
    """Return the FLOPs of one layer's forward: 24 b s h^2 (1 + s / (6 h)) for a GPT.

    Source: Narayanan et al., Megatron-LM, SC 2021, equation 2.
    """
    return matrix_flops(model, micro_batch_size) + attention_flops(model, micro_batch_size)


def head_flops(model: ModelShape, micro_batch_size: int) -> float:
    """Return the FLOPs of the head's forward: 2 b s h V. The source is that of `layer_flops`."""
    return 2.0 * micro_batch_size * model.seq_length * model.hidden_size * model.vocab_size


def step_flops(model: ModelShape, batch_size: int) -> float:
    """Return the FLOPs of `batch_size` samples in all layers and the head. A backward takes as many as two forwards.

    Recomputation is left out, so wasted work cannot raise utilisation. Source: Chowdhery et al., PaLM, 2022, appendix
    B.
    """
    dense = model.first_dense_layers
    layers = (model.num_layers - dense) * layer_flops(model, batch_size)
    return 3 * (layers + dense * layer_flops(model.dense, batch_size) + head_flops(model, batch_size))


def message_shape(model: ModelShape, micro_batch_size: int, parts: int) -> tuple[int, int, int]:
    """Return the shape of a message on a pipeline edge. A sequence is split into tp cp `parts`, one per rank."""
    return micro_batch_size, model.seq_length // parts, model.hidden_size
