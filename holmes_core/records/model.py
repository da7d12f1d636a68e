"""Model: the shape of a decoder in job.yaml, and published shapes by name (`model: {preset: llama-3-8b}`).

Sources: gpt-3.6b, gpt-7.5b and gpt-39.1b are the Holmes paper's (arXiv 2312.03549, table 2); gpt-175b and gpt-1t
Megatron-LM's (Narayanan et al., SC 2021, table 1); the Llama shapes are Meta's published configurations.
`holmes model FOLDER` reads any other published model's shape from its config.json.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from holmes_core.records.record import Record

MAX_COUNT = 10**9  # the greatest count of anything: more is a slip
Positive = Annotated[int, Field(ge=1, le=MAX_COUNT)]
RopeKind = Literal["linear", "llama3"]


def _gpt(num_layers: int, hidden_size: int, num_heads: int) -> dict[str, Any]:
    return {
        "family": "gpt",
        "num_layers": num_layers,
        "hidden_size": hidden_size,
        "num_heads": num_heads,
        "seq_length": 2048,
        "vocab_size": 51200,
    }


def _llama(
    num_layers: int,
    hidden_size: int,
    num_heads: int,
    num_kv_heads: int,
    ffn_hidden_size: int,
    vocab_size: int,
    seq_length: int,
    rope_theta: float,
) -> dict[str, Any]:
    return {
        "family": "llama",
        "num_layers": num_layers,
        "hidden_size": hidden_size,
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "ffn_hidden_size": ffn_hidden_size,
        "vocab_size": vocab_size,
        "seq_length": seq_length,
        "rope_theta": rope_theta,
    }


def _llama3_rope(factor: float) -> dict[str, Any]:
    return {
        "kind": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_seq_length": 8192,
    }


PRESETS: dict[str, dict[str, Any]] = {
    "gpt-3.6b": _gpt(30, 3072, 32),
    "gpt-7.5b": _gpt(36, 4096, 32),
    "gpt-39.1b": _gpt(48, 8192, 64),
    "gpt-175b": _gpt(96, 12288, 96),
    "gpt-1t": _gpt(128, 25600, 160),
    "llama-3.2-1b": {
        **_llama(16, 2048, 32, 8, 8192, 128256, 8192, 500000.0),
        "rope_scaling": _llama3_rope(32.0),
        "tied_embeddings": True,
    },
    "llama-2-7b": _llama(32, 4096, 32, 32, 11008, 32000, 4096, 10000.0),
    "llama-2-13b": _llama(40, 5120, 40, 40, 13824, 32000, 4096, 10000.0),
    "llama-2-70b": _llama(80, 8192, 64, 8, 28672, 32000, 4096, 10000.0),
    "llama-3-8b": _llama(32, 4096, 32, 8, 14336, 128256, 8192, 500000.0),
    "llama-3-70b": _llama(80, 8192, 64, 8, 28672, 128256, 8192, 500000.0),
    "llama-3.1-405b": {
        **_llama(126, 16384, 128, 8, 53248, 128256, 8192, 500000.0),
        "rope_scaling": _llama3_rope(8.0),
    },
}


class RopeScaling(Record):
    """Stretching of rotary frequencies, so that positions reach beyond the length the model was trained at.

    linear: all frequencies by `factor`. llama3: only the slow ones, as in Llama 3.1.
    """

    kind: RopeKind
    """linear or llama3. Example: llama3"""
    factor: Annotated[float, Field(gt=0)]
    """Length that positions reach over the original length. Example: 8.0"""
    low_freq_factor: Annotated[float, Field(gt=0)] = 1.0
    """For llama3: frequencies that turn less often than this within the original length are stretched. Example: 1.0"""
    high_freq_factor: Annotated[float, Field(gt=0)] = 4.0
    """For llama3: frequencies that turn more often than this are left as they are. Example: 4.0"""
    original_seq_length: Positive = 8192
    """For llama3: sequence length in tokens that the model was first trained at. Example: 8192"""

    @model_validator(mode="after")
    def _fast_is_above_slow(self) -> RopeScaling:
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(f"high_freq_factor {self.high_freq_factor} is not above {self.low_freq_factor}, the low")
        return self


class Model(Record):
    """A decoder of one family: its shape in the field's words, as `holmes model FOLDER` reads it too."""

    preset: str | None = None
    """A published shape, which other keys override. Example: llama-3-8b"""
    family: Literal["gpt", "llama"] = "gpt"
    """gpt: learned positions, LayerNorm, GELU, biases. llama: rotary positions, RMSNorm, SwiGLU, grouped-query
    attention, no biases; with the keys below also Qwen 2.5, Qwen 3 and Mistral. Example: llama"""
    num_layers: Annotated[int, Field(ge=1, le=10_000)]
    """Transformer layers. Example: 8"""
    hidden_size: Annotated[int, Field(ge=1, le=2**20)]
    """Width of a token's vector between layers. Example: 256"""
    num_heads: Positive
    """Attention heads of queries. Example: 8"""
    num_kv_heads: Positive | None = None
    """Attention heads of keys and values; not set: as many as `num_heads`. Example: 2"""
    ffn_hidden_size: Positive | None = None
    """Width of the feed-forward network; not set: 4 `hidden_size`. Example: 688"""
    seq_length: Positive
    """Tokens of a sequence. Example: 1024"""
    vocab_size: Positive = 256
    """Different tokens; 256 is enough for bytes. Example: 32000"""
    rope_theta: Annotated[float, Field(gt=0)] = 10000.0
    """Base of a llama's rotary frequencies. Example: 500000.0"""
    rope_scaling: RopeScaling | None = None
    norm_eps: Annotated[float, Field(gt=0)] = 1e-5
    """Added to the variance in norms. Example: 1.0e-6"""
    head_dim: Positive | None = None
    """Width of a head; not set: `hidden_size` / `num_heads`. Example: 64"""
    qkv_bias: bool = False
    """A llama's queries, keys and values have biases, as in Qwen 2.5. Example: true"""
    qk_norm: bool = False
    """A llama has an RMSNorm over each head of queries and keys, as in Qwen 3. Example: true"""
    tanh_gelu: bool = False
    """A gpt's GELU is approximated by tanh, as in OpenAI's GPT-2 (`gelu_new`). Example: true"""
    tied_embeddings: bool = False
    """The head is the table of token vectors. Example: true"""
    factory: Annotated[str, Field(pattern=r"^(/[^:]*|[^/:]+(/[^/:]+)*)\.py:[A-Za-z_]\w*$")] | None = None
    """FILE.py:FUNCTION that builds a model of your own. FILE is in the folder of job.yaml, in the folder that
    `launch.code` names, or, if absolute, on every host. The shape must still describe the model, since the planner
    prices the shape.
    Example: my_model.py:build"""

    @property
    def kv_heads(self) -> int:
        """Key and value heads: as many as query heads unless given."""
        return self.num_kv_heads or self.num_heads

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
        return self.head_size * self.kv_heads

    @property
    def ffn_size(self) -> int:
        """Width of the feed-forward network: 4 h unless given."""
        return self.ffn_hidden_size or 4 * self.hidden_size

    @model_validator(mode="before")
    @classmethod
    def _preset_fills_in(cls, data: Any) -> Any:
        if not isinstance(data, dict) or data.get("preset") is None:
            return data
        name = data["preset"]
        if name not in PRESETS:
            raise ValueError(f"preset {name!r} is not known; there are {', '.join(PRESETS)}")
        return {**PRESETS[name], **data}

    @model_validator(mode="after")
    def _heads_divide(self) -> Model:
        if self.head_dim is None and self.hidden_size % self.num_heads:
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}")
        if self.num_heads % self.kv_heads:
            raise ValueError(f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}")
        if self.family == "llama" and self.head_size % 2:
            raise ValueError(f"hidden_size / num_heads is {self.head_size}: rotation needs it even")
        if self.family == "gpt" and self.kv_heads != self.num_heads:
            raise ValueError(f"num_kv_heads {self.num_kv_heads}: a gpt has as many as num_heads {self.num_heads}")
        if self.tied_embeddings and self.factory is not None:
            raise ValueError("tied_embeddings: a model.factory makes its own head, and its copies would drift apart")
        of_llama = {"rope_scaling": self.rope_scaling, "qkv_bias": self.qkv_bias, "qk_norm": self.qk_norm}
        if self.family == "gpt" and any(of_llama.values()):
            wrong = ", ".join(name for name, value in of_llama.items() if value)
            raise ValueError(f"{wrong}: of the family llama, and this model is a gpt")
        if self.family == "llama" and self.tanh_gelu:
            raise ValueError("tanh_gelu: of the family gpt, and this model is a llama")
        return self
