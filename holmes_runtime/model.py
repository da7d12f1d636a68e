"""A GPT cut into pipeline stages: a stage builds only its own layers, and any cut starts from the same weights.

Pre-LayerNorm, learned positions, GELU, an untied head without bias. Source: Radford et al., GPT-2, 2019.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from holmes_runtime.run_config import ModelShape, Stage

INIT_STD = 0.02  # GPT-2


class Attention(nn.Module):
    """Causal multi-head self-attention."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size)
        self.projection = nn.Linear(hidden_size, hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """Attends within each sample. hidden and result: (micro_batch_size, seq_length, hidden_size)."""
        batch, seq, size = hidden.shape
        split = self.qkv(hidden).view(batch, seq, 3, self.num_heads, size // self.num_heads)
        # query, key, value: (micro_batch_size, num_heads, seq_length, hidden_size / num_heads)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        # merged: (micro_batch_size, seq_length, hidden_size)
        merged = mixed.transpose(1, 2).reshape(batch, seq, size)
        projected: Tensor = self.projection(merged)
        return projected


class Mlp(nn.Module):
    """Two linear layers with GELU between; the inner one is four times as wide."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.up = nn.Linear(hidden_size, 4 * hidden_size)
        self.down = nn.Linear(4 * hidden_size, hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden and result: (micro_batch_size, seq_length, hidden_size)."""
        inner = functional.gelu(self.up(hidden))  # (micro_batch_size, seq_length, 4 * hidden_size)
        result: Tensor = self.down(inner)
        return result


class Block(nn.Module):
    """One transformer layer: attention and MLP, each behind a LayerNorm and added to its input."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(hidden_size)
        self.attention = Attention(hidden_size, num_heads)
        self.mlp_norm = nn.LayerNorm(hidden_size)
        self.mlp = Mlp(hidden_size)

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden and result: (micro_batch_size, seq_length, hidden_size)."""
        hidden = hidden + self.attention(self.attention_norm(hidden))
        result: Tensor = hidden + self.mlp(self.mlp_norm(hidden))
        return result


class GptStage(nn.Module):
    """The layers of one stage; the first also embeds tokens, the last also computes logits.

    Parameters carry the names they have in the whole model (`blocks.7.attention.qkv.weight`), and each starts from a
    generator seeded by (seed, name), so the cut does not change the weights.
    """

    def __init__(self, shape: ModelShape, stage: Stage, seed: int) -> None:
        super().__init__()
        self.is_first = stage.first_layer == 0
        self.is_last = stage.stop_layer == shape.num_layers
        with torch.device("meta"):
            if self.is_first:
                self.token_embedding = nn.Embedding(shape.vocab_size, shape.hidden_size)
                self.position_embedding = nn.Embedding(shape.seq_length, shape.hidden_size)
            layers = range(stage.first_layer, stage.stop_layer)
            self.blocks = nn.ModuleDict({str(layer): Block(shape.hidden_size, shape.num_heads) for layer in layers})
            if self.is_last:
                self.final_norm = nn.LayerNorm(shape.hidden_size)
                self.head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
        self.to_empty(device="cpu")
        for name, parameter in self.named_parameters():
            _initialise(name, parameter, seed, shape.num_layers)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (micro_batch_size, seq_length, vocab_size) on the last stage, else hidden states.

        inputs: int64 tokens (micro_batch_size, seq_length) on the first stage, else hidden states
        (micro_batch_size, seq_length, hidden_size).
        """
        hidden = inputs
        if self.is_first:
            positions = torch.arange(inputs.shape[1], device=inputs.device)  # (seq_length,)
            hidden = self.token_embedding(inputs) + self.position_embedding(positions)
        for block in self.blocks.values():
            hidden = block(hidden)  # (micro_batch_size, seq_length, hidden_size)
        return self.head(self.final_norm(hidden)) if self.is_last else hidden


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean next-token loss, a scalar, of logits (batch, seq, vocab) against int64 targets (batch, seq)."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _initialise(name: str, parameter: nn.Parameter, seed: int, num_layers: int) -> None:
    """Fills one parameter, found by its global name, in place.

    Biases 0, norms 1, weights normal with standard deviation 0.02, divided by sqrt(2 * num_layers) for the two
    matrices that write to the residual stream (GPT-2).
    """
    owner, _, kind = name.rpartition(".")
    with torch.no_grad():
        if kind == "bias":
            parameter.zero_()
        elif owner.endswith("norm"):
            parameter.fill_(1.0)
        else:
            writes_residual = owner.endswith(("attention.projection", "mlp.down"))
            std = INIT_STD / math.sqrt(2 * num_layers) if writes_residual else INIT_STD
            parameter.normal_(0.0, std, generator=_generator(seed, name))


def _generator(seed: int, name: str) -> torch.Generator:
    """A CPU generator that depends on the run's seed and the parameter's global name only."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
