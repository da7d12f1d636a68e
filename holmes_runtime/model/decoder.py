"""GPT and Llama cut into stages: a stage builds only its own layers, and any cut or split starts from the same weights.

GPT: pre-LayerNorm, learned positions, GELU, biases (Radford et al., GPT-2, 2019). Llama: RMSNorm, rotary positions,
SwiGLU, grouped-query attention, no biases (Touvron et al., Llama 2, 2023). Neither ties the head to the embedding.

Every module is described as if it were whole; under tensor parallelism `tensor_part.py` says along which dimension a
parameter is cut, and `tensor_parallel.py` where the pieces meet. With tp = 1 read seq / tp as seq.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.config.run_config import Stage
from holmes_runtime.config.run_settings import Precision, Recompute
from holmes_runtime.model.tensor_parallel import ALONE, TensorParallel
from holmes_runtime.model.tensor_part import part_of

INIT_STD = 0.02  # GPT-2
NORM_EPS = 1e-5  # GPT-2 and Llama 2
DTYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Attention(nn.Module):
    """Causal self-attention in which each key and value head serves `num_heads / num_kv_heads` query heads.

    The rows of `qkv` go by key-value head: its query heads, then its key, then its value. So a range of rows is a
    range of whole heads.
    """

    def __init__(self, shape: ModelShape, tp: TensorParallel, recompute: bool) -> None:
        super().__init__()
        self.tp, self.recompute, self.head_size = tp, recompute, shape.head_size
        self.queries_per_kv = shape.num_heads // shape.num_kv_heads
        rows = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_size
        self.qkv = nn.Linear(shape.hidden_size, rows, bias=shape.family == "gpt")
        self.projection = nn.Linear(shape.hidden_size, shape.hidden_size, bias=shape.family == "gpt")

    def forward(self, hidden: Tensor, rotation: Tensor | None) -> Tensor:
        """Attends within each sample.

        hidden and result: (micro_batch_size, seq_length / tp, hidden_size); rotation: see `make_rotation`.
        """
        whole = self.tp.gather(hidden)  # (micro_batch_size, seq_length, hidden_size)
        batch, seq, _ = whole.shape
        # grouped: (micro_batch_size, seq_length, num_kv_heads / tp, queries_per_kv + 2, head_size)
        grouped = self.qkv(whole).view(batch, seq, -1, self.queries_per_kv + 2, self.head_size)
        query = grouped[:, :, :, :-2].flatten(2, 3)  # (micro_batch_size, seq_length, num_heads / tp, head_size)
        key, value = grouped[:, :, :, -2], grouped[:, :, :, -1]  # (.., num_kv_heads / tp, head_size)
        if rotation is not None:
            query, key = rotate(query, rotation), rotate(key, rotation)
        if self.recompute:
            mixed = checkpoint(self._mix, query, key, value, use_reentrant=False, preserve_rng_state=False)
        else:
            mixed = self._mix(query, key, value)
        return _add_up(self.projection, mixed, self.tp)

    def _mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention's core: (micro_batch_size, seq_length, hidden_size / tp), heads one after the other."""
        # by head: (micro_batch_size, heads, seq_length, head_size)
        query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        grouped = self.queries_per_kv > 1
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=grouped)
        return mixed.transpose(1, 2).flatten(2)


class Mlp(nn.Module):
    """The feed-forward network: GELU of `up` for a GPT, SiLU of `gate` times `up` for a Llama; then `down`."""

    def __init__(self, shape: ModelShape, tp: TensorParallel) -> None:
        super().__init__()
        is_gpt = shape.family == "gpt"
        self.tp = tp
        self.gate = None if is_gpt else nn.Linear(shape.hidden_size, shape.ffn_hidden_size, bias=False)
        self.up = nn.Linear(shape.hidden_size, shape.ffn_hidden_size, bias=is_gpt)
        self.down = nn.Linear(shape.ffn_hidden_size, shape.hidden_size, bias=is_gpt)

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden and result: (micro_batch_size, seq_length / tp, hidden_size)."""
        whole = self.tp.gather(hidden)  # (micro_batch_size, seq_length, hidden_size)
        # inner: (micro_batch_size, seq_length, ffn_hidden_size / tp)
        inner = (
            functional.gelu(self.up(whole)) if self.gate is None else functional.silu(self.gate(whole)) * self.up(whole)
        )
        return _add_up(self.down, inner, self.tp)


class Block(nn.Module):
    """One transformer layer: attention and MLP, each behind a norm and added to its input."""

    def __init__(self, shape: ModelShape, tp: TensorParallel, recompute: Recompute) -> None:
        super().__init__()
        self.attention_norm = make_norm(shape)
        self.attention = Attention(shape, tp, recompute == "selective")
        self.mlp_norm = make_norm(shape)
        self.mlp = Mlp(shape, tp)

    def forward(self, hidden: Tensor, rotation: Tensor | None) -> Tensor:
        """hidden and result: (micro_batch_size, seq_length / tp, hidden_size)."""
        hidden = hidden + self.attention(self.attention_norm(hidden), rotation)
        result: Tensor = hidden + self.mlp(self.mlp_norm(hidden))
        return result


class TokenEmbedding(nn.Embedding):
    """The table of token vectors, or this rank's rows of it."""

    def __init__(self, shape: ModelShape, tp: TensorParallel) -> None:
        super().__init__(shape.vocab_size, shape.hidden_size)
        self.tp, self.vocab_size = tp, shape.vocab_size

    def forward(self, tokens: Tensor) -> Tensor:
        """Vectors (micro_batch_size, seq_length / tp, hidden_size) of int64 tokens (micro_batch_size, seq_length)."""
        return self.tp.embed(tokens, self.weight, self.vocab_size)


class DecoderStage(nn.Module):
    """The layers of one stage; the first also embeds tokens, the last also computes logits.

    Parameters carry the names they have in the whole model (`blocks.7.attention.qkv.weight`), and each starts from a
    generator seeded by (seed, name), so neither the cut nor the split changes the weights. `parts` says by name which
    part of a parameter is here.
    """

    def __init__(
        self,
        shape: ModelShape,
        stage: Stage,
        seed: int,
        *,
        tp: TensorParallel = ALONE,
        recompute: Recompute = "none",
        value_type: Precision = "fp32",
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.shape, self.tp, self.recompute = shape, tp, recompute == "full"
        self.is_first = stage.first_layer == 0
        self.is_last = stage.stop_layer == shape.num_layers
        with torch.device("meta"):
            if self.is_first:
                self.token_embedding = TokenEmbedding(shape, tp)
                if shape.family == "gpt":
                    self.position_embedding = nn.Embedding(shape.seq_length, shape.hidden_size)
            layers = range(stage.first_layer, stage.stop_layer)
            self.blocks = nn.ModuleDict({str(layer): Block(shape, tp, recompute) for layer in layers})
            if self.is_last:
                self.final_norm = make_norm(shape)
                self.head = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
        self.rotation = make_rotation(shape, device) if shape.family == "llama" else None
        self.parts = {name: part_of(name, tuple(parameter.shape), tp) for name, parameter in self.named_parameters()}
        for name, part in self.parts.items():
            value = part.of(initial_value(name, part.global_shape, seed, shape.num_layers))
            owner, _, leaf = name.rpartition(".")
            # A copy, so that the rest of the whole tensor is let go.
            parameter = nn.Parameter(value.to(device, DTYPES[value_type], copy=True))
            setattr(self.get_submodule(owner), leaf, parameter)

    def compile_blocks(self) -> None:
        """From now on blocks run compiled; hooks on a block stay outside what is compiled."""
        for block in self.blocks.values():
            block.forward = torch.compile(block.forward)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (micro_batch_size, seq_length, vocab_size / tp) on the last stage, else hidden states.

        inputs: int64 tokens (micro_batch_size, seq_length) on the first stage, else hidden states
        (micro_batch_size, seq_length / tp, hidden_size).
        """
        hidden = self._embed(inputs) if self.is_first else inputs
        for block in self.blocks.values():
            if self.recompute:
                hidden = checkpoint(block, hidden, self.rotation, use_reentrant=False, preserve_rng_state=False)
            else:
                hidden = block(hidden, self.rotation)
        return self.head(self.tp.gather(self.final_norm(hidden))) if self.is_last else hidden

    def _embed(self, tokens: Tensor) -> Tensor:
        """Hidden states (micro_batch_size, seq_length / tp, hidden_size) of int64 tokens (.., seq_length)."""
        hidden: Tensor = self.token_embedding(tokens)
        if self.shape.family == "gpt":
            own = self.tp.part(tokens.shape[1])
            hidden = hidden + self.position_embedding(torch.arange(own.start, own.stop, device=tokens.device))
        return hidden


def make_norm(shape: ModelShape) -> nn.Module:
    """The norm of the family, over hidden_size."""
    kind = nn.LayerNorm if shape.family == "gpt" else nn.RMSNorm
    return kind(shape.hidden_size, eps=NORM_EPS)


def make_rotation(shape: ModelShape, device: torch.device | None) -> Tensor:
    """Cosines and sines of rotary positions, fp32 (2, seq_length, 1, head_size / 2); Su et al., RoFormer, 2021."""
    exponents = torch.arange(0, shape.head_size, 2, dtype=torch.float64, device=device) / shape.head_size
    positions = torch.arange(shape.seq_length, dtype=torch.float64, device=device)
    angles = torch.outer(positions, shape.rope_theta**-exponents)
    return torch.stack([angles.cos(), angles.sin()]).float().unsqueeze(2)


def rotate(heads: Tensor, rotation: Tensor) -> Tensor:
    """`heads` (micro_batch_size, seq_length, heads, head_size), the two halves of each head turned by its position."""
    cosine, sine = rotation
    first, second = heads.float().chunk(2, -1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1).to(heads.dtype)


def _add_up(linear: nn.Linear, inputs: Tensor, tp: TensorParallel) -> Tensor:
    """`linear` whose columns are split: partial results are added up and only then, once, the bias."""
    if tp.size == 1:
        result: Tensor = linear(inputs)
        return result
    summed = tp.scatter_sum(functional.linear(inputs, linear.weight))
    return summed if linear.bias is None else summed + linear.bias


def initial_value(name: str, shape: tuple[int, ...], seed: int, num_layers: int) -> Tensor:
    """The value the whole parameter `name` starts from, fp32 on the CPU.

    Biases 0, norms 1, weights normal with standard deviation 0.02, divided by sqrt(2 * num_layers) for the two
    matrices that write to the residual stream (GPT-2).
    """
    owner, _, kind = name.rpartition(".")
    if kind == "bias":
        return torch.zeros(shape)
    if owner.endswith("norm"):
        return torch.ones(shape)
    writes_residual = owner.endswith(("attention.projection", "mlp.down"))
    std = INIT_STD / math.sqrt(2 * num_layers) if writes_residual else INIT_STD
    return torch.empty(shape).normal_(0.0, std, generator=_generator(seed, name))


def _generator(seed: int, name: str) -> torch.Generator:
    """A CPU generator that depends on the run's seed and the parameter's global name only."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
