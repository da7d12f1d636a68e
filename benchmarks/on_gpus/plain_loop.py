"""A GPT or Llama in plain torch, to set Holmes' trainer beside.

What one writes by hand from torch's tutorials: fp32 weights under autocast, fused attention, torch.compile, a fused
AdamW, random tokens.
"""

from __future__ import annotations

import time
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from holmes_runtime.config.model_shape import ModelShape


class Block(nn.Module):
    """A layer: norm, attention and norm, network, each added to its input; as a GPT or a Llama has them."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        hidden, self.head, self.is_gpt = shape.hidden_size, shape.head_size, shape.family == "gpt"
        linear = partial(nn.Linear, bias=self.is_gpt)
        self.norms = nn.ModuleList(_norm(shape) for _ in range(2))
        self.qkv = nn.ModuleList(linear(hidden, size) for size in (shape.query_size, shape.kv_size, shape.kv_size))
        self.qk_norms = nn.ModuleList(nn.RMSNorm(self.head) for _ in range(2)) if shape.qk_norm else None
        self.out = linear(shape.query_size, hidden)
        self.gate = None if self.is_gpt else linear(hidden, shape.ffn_size)
        self.up = linear(hidden, shape.ffn_size)
        self.down = linear(shape.ffn_size, hidden)

    def forward(self, hidden: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Return the hidden states (b, s, h) of the next layer; `cosine` and `sine` are (s, head / 2)."""
        hidden = hidden + self._attention(self.norms[0](hidden), cosine, sine)
        normed = self.norms[1](hidden)
        inner = F.gelu(self.up(normed)) if self.gate is None else F.silu(self.gate(normed)) * self.up(normed)
        result: Tensor = hidden + self.down(inner)
        return result

    def _attention(self, normed: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        query, key, value = (part(normed).unflatten(-1, (-1, self.head)).transpose(1, 2) for part in self.qkv)
        if self.qk_norms is not None:
            query, key = self.qk_norms[0](query), self.qk_norms[1](key)
        if not self.is_gpt:
            query, key = (_rotated(part, cosine, sine).to(value.dtype) for part in (query, key))
        grouped = query.shape[1] != key.shape[1]
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=grouped)
        result: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return result


def _norm(shape: ModelShape) -> nn.Module:
    return (nn.LayerNorm if shape.family == "gpt" else nn.RMSNorm)(shape.hidden_size)


def _rotated(values: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = values.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, first * sine + second * cosine), dim=-1).to(values.dtype)


class PlainModel(nn.Module):
    """The whole model. With `recomputes`, blocks keep nothing but their input for the backward."""

    def __init__(self, shape: ModelShape, recomputes: bool = False) -> None:
        super().__init__()
        self.recomputes = recomputes
        self.embedding = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.places = nn.Embedding(shape.seq_length, shape.hidden_size) if shape.family == "gpt" else None
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.num_layers))
        self.norm = _norm(shape)
        self.head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
        if shape.tied_embeddings:
            self.head.weight = self.embedding.weight
            nn.init.normal_(self.head.weight, std=0.02)
        size = shape.head_size
        rates = shape.rope_theta ** (-torch.arange(0, size, 2) / size)
        angles = torch.outer(torch.arange(shape.seq_length), rates)
        self.register_buffer("cosine", angles.cos())
        self.register_buffer("sine", angles.sin())

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (b, s, V) of int64 `tokens` (b, s)."""
        hidden = self.embedding(tokens)
        if self.places is not None:
            hidden = hidden + self.places.weight
        for block in self.blocks:
            if self.recomputes:
                hidden = checkpoint(block, hidden, self.cosine, self.sine, use_reentrant=False)
            else:
                hidden = block(hidden, self.cosine, self.sine)
        logits: Tensor = self.head(self.norm(hidden))
        return logits


def train(
    shape: ModelShape,
    device: torch.device,
    micro_batch_size: int,
    microbatches: int,
    steps: int,
    compiles: bool = False,
    recomputes: bool = False,
) -> list[float]:
    """Return the seconds of each step, of `microbatches` that are added up; in bf16 on GPUs and fp32 elsewhere.

    Compiled block by block, as torchtitan does.
    """
    on_gpu = device.type == "cuda"
    with device:
        model = PlainModel(shape, recomputes)
    if compiles:
        for block in model.blocks:
            block.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(shape.vocab_size, (micro_batch_size, shape.seq_length + 1), device=device)
    seconds = []
    for _ in range(steps):
        began_s = time.monotonic()
        for _ in range(microbatches):
            with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
                logits = model(tokens[:, :-1])
                loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten()) / microbatches
            loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()  # waits for the device
        seconds.append(time.monotonic() - began_s)
    return seconds
