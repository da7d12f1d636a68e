"""Layers that only other engines compute: their keys, and special kinds of attention. Free of torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from holmes_runtime.config.field_limits import Limits, Positive, SharedSettings

ENGINES_OWN = (
    *("shared_experts", "first_dense_layers"),
    *("latent_attention", "linear_attention", "attention_gate", "sliding_window"),
)
"""Keys that only other engines compute."""
LAYER_KEYS = (
    *ENGINES_OWN,
    *("experts", "experts_per_token", "expert_ffn", "normalized_routing", "sliding_window_every"),
)
"""The same, and the keys of experts with their companions."""


@dataclass(frozen=True)
class LatentAttention(SharedSettings):
    """Multi-head latent attention: the keys and values of all heads are made from one narrow vector per token."""

    # DeepSeek-AI, DeepSeek-V2, 2024, section 2.1.
    kv_rank: Positive
    """Width of the vector from which keys and values are made. Example: 512"""
    q_rank: Annotated[int, Limits(ge=0)] = 0
    """Width of the vector from which queries are made; 0: they are made from the hidden state. Example: 1536"""
    nope_head_dim: Positive = 128
    """Width of the part of a head's queries and keys that is not rotated. Example: 128"""
    rope_head_dim: Positive = 64
    """Width of the part of a head's queries and keys that is rotated; all heads share these keys. Example: 64"""
    value_head_dim: Positive = 128
    """Width of a head's values. Example: 128"""

    def parameters(self, hidden_size: int, num_heads: int) -> int:
        """Return the number of weights in one layer's attention."""
        query = num_heads * (self.nope_head_dim + self.rope_head_dim)
        queries = self.q_rank * (hidden_size + query) if self.q_rank else hidden_size * query
        from_latent = self.kv_rank * num_heads * (self.nope_head_dim + self.value_head_dim)
        latent = hidden_size * (self.kv_rank + self.rope_head_dim)
        return queries + latent + from_latent + num_heads * self.value_head_dim * hidden_size


@dataclass(frozen=True)
class LinearAttention(SharedSettings):
    """Gated delta networks: layers with attention that costs the same for every token, however long the sequence."""

    # Yang et al., Gated Delta Networks, 2024, as in Qwen3-Next.
    layers: Positive
    """Number of layers of this kind; the others attend to the whole sequence. Example: 36"""
    key_heads: Positive
    """Number of heads of queries and keys. Example: 16"""
    value_heads: Positive
    """Number of heads of values, each with two gates. Example: 32"""
    head_dim: Positive
    """Width of each head. Example: 128"""
    conv: Positive = 4
    """Number of tokens covered by the convolution over queries, keys and values. Example: 4"""

    def parameters(self, hidden_size: int) -> int:
        """Return the weights of one such layer's attention: queries, keys, values, output gate, two gates, output."""
        keys, values = self.key_heads * self.head_dim, self.value_heads * self.head_dim
        inputs = 2 * keys + 2 * values + 2 * self.value_heads
        return hidden_size * (inputs + values) + self.conv * (2 * keys + values)

    def mean_parameters(self, hidden_size: int, full: int, num_layers: int) -> int:
        """Return the mean over all layers, if each of the other layers has `full` weights."""
        return (self.layers * self.parameters(hidden_size) + (num_layers - self.layers) * full) // num_layers

    def mean_token_flops(self, full: float, num_layers: int) -> float:
        """Return the mean FLOPs per token of the attention core, if each of the other layers takes `full`.

        For each head of values, a d x d state is read, updated and written: four products of 2 d^2.
        """
        share, state = self.layers / num_layers, self.value_heads * self.head_dim**2
        return (1 - share) * full + share * 8.0 * state
