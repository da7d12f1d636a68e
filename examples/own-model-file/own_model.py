"""A model of one's own for `holmes launch`: a decoder whose attention and MLP run side by side, as in GPT-J.

In job.yaml: `model: {factory: own_model.py:build, num_layers: ..., ...}`. See README.md here and docs/runtime.md.
"""

import torch
from torch import nn
from torch.nn import functional

from holmes_runtime.model.initial_weights import initial_value


class SideBySide(nn.Module):
    """One layer: x + attention(norm(x)) + mlp(norm(x))."""

    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.norm = nn.LayerNorm(hidden_size)
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size, bias=False)
        self.out = nn.Linear(hidden_size, hidden_size, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(hidden_size, 4 * hidden_size), nn.GELU(), nn.Linear(4 * hidden_size, hidden_size)
        )

    def forward(self, hidden):  # (micro_batch_size, seq_length, hidden_size), as is the result
        batch, seq, size = hidden.shape
        normed = self.norm(hidden)
        query, key, value = self.qkv(normed).view(batch, seq, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return hidden + self.out(mixed.transpose(1, 2).reshape(batch, seq, size)) + self.mlp(normed)


class OwnStage(nn.Module):
    """Layers `stage_layers`; the first stage embeds tokens, the last computes logits."""

    def __init__(self, stage_layers, shape):
        super().__init__()
        self.embedding = nn.Embedding(shape.vocab_size, shape.hidden_size) if stage_layers.start == 0 else None
        # Named by the layer of the whole model, so that a checkpoint loads whatever the cut.
        self.layers = nn.ModuleDict(
            {str(layer): SideBySide(shape.hidden_size, shape.num_heads) for layer in stage_layers}
        )
        is_last = stage_layers.stop == shape.num_layers
        self.head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False) if is_last else None

    def forward(self, inputs):  # tokens (micro_batch_size, seq_length) on the first stage, else hidden states
        hidden = inputs if self.embedding is None else self.embedding(inputs)
        for layer in self.layers.values():
            hidden = layer(hidden)
        return hidden if self.head is None else self.head(hidden)


def build(stage_layers, job):
    """The module of the layers in the range `stage_layers`; `job` is the run's configuration."""
    stage = OwnStage(stage_layers, job.model)
    with torch.no_grad():
        # Each from its own seed: every stage starts as it would in the whole model, whatever the cut.
        for name, parameter in stage.named_parameters():
            parameter.copy_(initial_value(name, tuple(parameter.shape), job.seed, job.model.num_layers))
    return stage
