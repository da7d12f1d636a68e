"""Layers that only other engines compute: their keys, and attention other than plain. Free of torch."""

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
"""Those, and the keys of experts and of what goes with them."""


@dataclass(frozen=True)
class LatentAttention(SharedSettings):
    """Multi-head latent attention: keys and values of all heads are made of one narrow vector a token."""

    # DeepSeek-AI, DeepSeek-V2, 2024, section 2.1.
    kv_rank: Positive
    """Width of the vector that keys and values are made of. Example: 512"""
    q_rank: Annotated[int, Limits(ge=0)] = 0
    """Width of the vector that queries are made of; 0: they are made of the hidden state. Example: 1536"""
    nope_head_dim: Positive = 128
    """Width of a head's queries and keys that is not rotated. Example: 128"""
    rope_head_dim: Positive = 64
    """Width of a head's queries and keys that is rotated; all heads share these keys. Example: 64"""
    value_head_dim: Positive = 128
    """Width of a head's values. Example: 128"""

    def parameters(self, hidden_size: int, num_heads: int) -> int:
        """Return the weights of one layer's attention."""
        query = num_heads * (self.nope_head_dim + self.rope_head_dim)
        queries = self.q_rank * (hidden_size + query) if self.q_rank else hidden_size * query
        from_latent = self.kv_rank * num_heads * (self.nope_head_dim + self.value_head_dim)
        latent = hidden_size * (self.kv_rank + self.rope_head_dim)
        return queries + latent + from_latent + num_heads * self.value_head_dim * hidden_size


@dataclass(frozen=True)
class LinearAttention(SharedSettings):
    """Layers of gated delta networks, whose attention costs the same for every token, however long the sequence."""

    # Yang et al., Gated Delta Networks, 2024, as Qwen3-Next has them.
    layers: Positive
    """Layers of this kind; the others attend over the whole sequence. Example: 36"""
    key_heads: Positive
    """Heads of queries and keys. Example: 16"""
    value_heads: Positive
    """Heads of values, each with two gates. Example: 32"""
    head_dim: Positive
    """Width of each head. Example: 128"""
    conv: Positive = 4
    """Tokens that the convolution over queries, keys and values sees. Example: 4"""

    def parameters(self, hidden_size: int) -> int:
        """Return the weights of one such layer's attention: queries, keys, values, output gate, two gates, result."""
        keys, values = self.key_heads * self.head_dim, self.value_heads * self.head_dim
        inputs = 2 * keys + 2 * values + 2 * self.value_heads
        return hidden_size * (inputs + values) + self.conv * (2 * keys + values)

    def mean_parameters(self, hidden_size: int, full: int, num_layers: int) -> int:
        """Return the mean of all layers, if each of the others has `full` weights."""
        return (self.layers * self.parameters(hidden_size) + (num_layers - self.layers) * full) // num_layers

    def mean_token_flops(self, full: float, num_layers: int) -> float:
        """Return the mean FLOPs of a token's attention core, if each of the other layers takes `full`.

        A state of d x d for each head of values is read, updated and written: four products of 2 d^2.
        """
        share, state = self.layers / num_layers, self.value_heads * self.head_dim**2
        return (1 - share) * full + share * 8.0 * state
