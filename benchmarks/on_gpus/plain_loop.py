"""`python -m benchmarks.on_gpus.plain_loop MODEL.json ...`: a Llama in plain torch, to set Holmes' trainer beside.

What one writes by hand from torch's tutorials: fp32 weights under autocast, fused attention, torch.compile, a fused
AdamW, random tokens. Prints one line of JSON: seconds of a step (the median of the second half) and peak bytes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holmes_runtime.config.model_shape import ModelShape


class Block(nn.Module):
    """A layer of a Llama: attention with rotary positions, SwiGLU, RMS norms before both."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        hidden, self.head = shape.hidden_size, shape.hidden_size // shape.num_heads
        self.norms = nn.ModuleList(nn.RMSNorm(hidden) for _ in range(2))
        sizes = [hidden, *[shape.num_kv_heads * self.head] * 2]
        self.qkv = nn.ModuleList(nn.Linear(hidden, size, bias=False) for size in sizes)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.gate, self.up = (nn.Linear(hidden, shape.ffn_hidden_size, bias=False) for _ in range(2))
        self.down = nn.Linear(shape.ffn_hidden_size, hidden, bias=False)

    def forward(self, hidden: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Hidden states (b, s, h) of the next layer; `cosine` and `sine` are (s, head / 2)."""
        normed = self.norms[0](hidden)
        query, key, value = (each(normed).unflatten(-1, (-1, self.head)).transpose(1, 2) for each in self.qkv)
        query, key = (_rotated(each, cosine, sine) for each in (query, key))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).flatten(2))
        normed = self.norms[1](hidden)
        result: Tensor = hidden + self.down(F.silu(self.gate(normed)) * self.up(normed))
        return result


def _rotated(values: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = values.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, first * sine + second * cosine), dim=-1).to(values.dtype)


class Llama(nn.Module):
    """The whole model."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.num_layers))
        self.norm = nn.RMSNorm(shape.hidden_size)
        self.head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
        size = shape.hidden_size // shape.num_heads
        rates = shape.rope_theta ** (-torch.arange(0, size, 2) / size)
        angles = torch.outer(torch.arange(shape.seq_length), rates)
        self.register_buffer("cosine", angles.cos())
        self.register_buffer("sine", angles.sin())

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (b, s, V) of int64 `tokens` (b, s)."""
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden, self.cosine, self.sine)
        logits: Tensor = self.head(self.norm(hidden))
        return logits


def train(shape: ModelShape, device: torch.device, micro_batch_size: int, microbatches: int, steps: int) -> list[float]:
    """Seconds of each step, of `microbatches` that are added up. Compiled on GPUs, in bf16 there and fp32 elsewhere."""
    on_gpu = device.type == "cuda"
    model = Llama(shape).to(device)
    forward = torch.compile(model) if on_gpu else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(shape.vocab_size, (micro_batch_size, shape.seq_length + 1), device=device)
    seconds = []
    for _ in range(steps):
        began_s = time.monotonic()
        for _ in range(microbatches):
            with torch.autocast(device.type, torch.bfloat16, enabled=on_gpu):
                logits = forward(tokens[:, :-1])
                loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten()) / microbatches
            loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()  # waits for the device
        seconds.append(time.monotonic() - began_s)
    return seconds


def main() -> None:
    """Reads the command line, trains and prints."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path, help="the fields of a ModelShape, JSON")
    for name in ("--micro-batch-size", "--microbatches", "--steps"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--device", choices=["cpu", "cuda"], required=True)
    given = parser.parse_args()
    shape = ModelShape(**json.loads(given.model.read_text(encoding="utf-8")))
    device = torch.device(given.device)
    seconds = train(shape, device, given.micro_batch_size, given.microbatches, given.steps)
    peak_bytes = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    print(json.dumps({"step_s": statistics.median(seconds[len(seconds) // 2 :]), "memory_bytes": peak_bytes}))


if __name__ == "__main__":
    main()
