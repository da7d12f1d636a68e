"""GPT and Llama in stages: a stage builds only its own layers, and every cut or split starts from the same weights.

GPT: pre-LayerNorm, learned positions, GELU, biases (Radford et al., GPT-2, 2019). Llama: RMSNorm, rotary positions,
SwiGLU, grouped-query attention, no biases (Touvron et al., Llama 2, 2023), and the additions of Llama 3, Qwen, Mistral
and Mixtral (see `ModelShape`). A tied head is the table of token vectors. Under a pipeline the last stage has a copy.

Modules are written as if they were whole. Under tensor parallelism `tensor_part.py` gives the dimension along which a
parameter is split, and `tensor_parallel.py` the collectives. Where several ranks share a sequence, seq is this rank's
part of it: `context_parallel.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.config.run_config import Stage
from holmes_runtime.config.run_settings import Precision, Recompute, takes_document_ends
from holmes_runtime.config.trainable import Lora
from holmes_runtime.model.adapters import Adapter, gather_adapted, is_adapter, make_adapter, plus
from holmes_runtime.model.context_parallel import WHOLE, ContextParallel, Masks
from holmes_runtime.model.document_mask import attend_documents, document_ends, document_mask
from holmes_runtime.model.expert_parallel import ALL_EXPERTS, ExpertParallel
from holmes_runtime.model.experts import Balancing, Experts
from holmes_runtime.model.initial_weights import initial_value
from holmes_runtime.model.recomputed_values import Keep, checkpoint_selectively, keeping, recomputing
from holmes_runtime.model.rotary import make_rotation, rotate
from holmes_runtime.model.tensor_parallel import ALONE, TensorParallel
from holmes_runtime.model.tensor_part import part_of

TABLE = "token_embedding.weight"  # the vectors of tokens, and the head if it is tied
DTYPES: dict[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Attention(nn.Module):
    """Causal self-attention in which each key and value head serves `num_heads / num_kv_heads` query heads.

    `qkv` has for each key-value head the rows of its query heads, of its key and of its value. So a tensor shard's rows
    are whole heads.
    """

    def __init__(
        self,
        shape: ModelShape,
        tp: TensorParallel,
        cp: ContextParallel = WHOLE,
        regathers: bool = False,
        lora: Lora | None = None,
    ) -> None:
        """With `regathers`, keys and values of other parts of a sequence are not kept for the backward."""
        super().__init__()
        self.tp, self.cp, self.regathers, self.head_size = tp, cp, regathers, shape.head_size
        self.queries_per_kv = shape.num_heads // shape.kv_heads
        rows = (shape.num_heads + 2 * shape.kv_heads) * shape.head_size
        is_gpt = shape.family == "gpt"
        self.qkv = nn.Linear(shape.hidden_size, rows, bias=is_gpt or shape.qkv_bias)
        self.query_norm = nn.RMSNorm(shape.head_size, eps=shape.norm_eps) if shape.qk_norm else None
        self.key_norm = nn.RMSNorm(shape.head_size, eps=shape.norm_eps) if shape.qk_norm else None
        self.projection = nn.Linear(shape.query_size, shape.hidden_size, bias=is_gpt)
        self.qkv_lora = make_adapter(shape, lora, "qkv")
        self.query_lora = make_adapter(shape, lora, "query")
        self.key_lora = make_adapter(shape, lora, "key")
        self.value_lora = make_adapter(shape, lora, "value")
        self.projection_lora = make_adapter(shape, lora, "projection")

    def forward(self, hidden: Tensor, rotation: Tensor | None, mask: Tensor | Masks | None = None) -> Tensor:
        """Return the attention inside samples, or inside documents if `mask` shows them.

        hidden and result: (micro_batch_size, seq_length / tp, hidden_size); rotation: see `make_rotation`; mask: from
        `document_mask`, or int32 from `document_ends`. Rotations are by positions in the sample, also inside documents,
        because scores depend on distances alone.
        """
        adapters = self.qkv_lora, self.query_lora, self.key_lora, self.value_lora
        (made,), (of_all, of_query, of_key, of_value) = gather_adapted(self.tp, hidden, [self.qkv], adapters)
        made = plus(made, of_all)
        # grouped: (micro_batch_size, seq_length, num_kv_heads / tp, queries_per_kv + 2, head_size)
        grouped = made.view(*made.shape[:2], -1, self.queries_per_kv + 2, self.head_size)
        query = grouped[:, :, :, :-2].flatten(2, 3)  # (micro_batch_size, seq_length, num_heads / tp, head_size)
        key, value = grouped[:, :, :, -2], grouped[:, :, :, -1]  # (.., num_kv_heads / tp, head_size)
        query, key, value = plus(query, of_query), plus(key, of_key), plus(value, of_value)
        if self.query_norm is not None and self.key_norm is not None:
            # Norms keep their inputs. Copies let `grouped` be freed.
            query, key = self.query_norm(query.contiguous()), self.key_norm(key.contiguous())
        if rotation is not None:
            # The backward of a rotation needs no inputs, so with a copy of the values `grouped` is freed.
            query, key, value = rotate(query, rotation), rotate(key, rotation), value.contiguous()
        if not isinstance(mask, Masks) and self.cp.size == 1:
            return _add_up(self.projection, [self._mix(query, key, value, mask)], self.tp, self.projection_lora)
        assert not isinstance(mask, Tensor)
        mixed = self.cp.attend(query, key, value, mask, self.regathers)
        return _add_up(self.projection, mixed, self.tp, self.projection_lora)

    def _mix(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """Return the mixed values of all heads: (micro_batch_size, seq_length, query_size / tp)."""
        if mask is not None and mask.dtype == torch.int32:
            return attend_documents(query, key, value, mask).flatten(2)
        # by head: (micro_batch_size, heads, seq_length, head_size)
        query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        grouped = self.queries_per_kv > 1
        if mask is not None and grouped:  # on GPUs the fused kernel that takes masks does not support groups
            key, value = (each.repeat_interleave(self.queries_per_kv, 1) for each in (key, value))
            grouped = False
        mixed = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped
        )
        return mixed.transpose(1, 2).flatten(2)


class Mlp(nn.Module):
    """The feed-forward network: GELU of `up` for a GPT, SiLU of `gate` times `up` for a Llama, then `down`.

    `keep` decides if results of cheap operators are kept for the backward or recomputed, here and in `Block`.
    """

    def __init__(self, shape: ModelShape, tp: TensorParallel, keep: Keep, lora: Lora | None = None) -> None:
        super().__init__()
        is_gpt = shape.family == "gpt"
        self.tp, self.keep = tp, keep
        self.make: Callable[..., Tensor] = swiglu
        if is_gpt:
            self.make = partial(functional.gelu, approximate="tanh") if shape.tanh_gelu else functional.gelu
        self.gate = None if is_gpt else nn.Linear(shape.hidden_size, shape.ffn_size, bias=False)
        self.up = nn.Linear(shape.hidden_size, shape.ffn_size, bias=is_gpt)
        self.down = nn.Linear(shape.ffn_size, shape.hidden_size, bias=is_gpt)
        self.gate_lora = make_adapter(shape, lora, "gate")
        self.up_lora = make_adapter(shape, lora, "up")
        self.down_lora = make_adapter(shape, lora, "down")

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden and result: (micro_batch_size, seq_length / tp, hidden_size)."""
        # inner: (micro_batch_size, seq_length, ffn_hidden_size / tp), as all values here
        linears = [self.up] if self.gate is None else [self.gate, self.up]
        adapters = [self.up_lora] if self.gate is None else [self.gate_lora, self.up_lora]
        products, added = gather_adapted(self.tp, hidden, linears, adapters)
        made = [plus(product, more) for product, more in zip(products, added, strict=True)]
        if self.gate is None:
            inner = self.make(*made)
        else:
            gated = functional.silu(made[0])
            with self.keep(gated, functional.silu, made[0]):
                inner = gated * made[1]
        with self.keep(inner, self.make, *made):
            return _add_up(self.down, [inner], self.tp, self.down_lora)


class Block(nn.Module):
    """One transformer layer: attention and MLP, or experts, each behind a norm and added to its input."""

    def __init__(
        self,
        shape: ModelShape,
        tp: TensorParallel,
        recompute: Recompute,
        balancing: Balancing | None = None,
        cp: ContextParallel = WHOLE,
        ep: ExpertParallel = ALL_EXPERTS,
        lora: Lora | None = None,
    ) -> None:
        super().__init__()
        self.keep = recomputing if recompute == "selective" else keeping
        self.attention_norm = make_norm(shape)
        self.attention = Attention(shape, tp, cp, regathers=recompute == "selective", lora=lora)
        self.mlp_norm = make_norm(shape)
        is_dense = shape.experts is None
        self.mlp = Mlp(shape, tp, self.keep, lora) if is_dense else Experts(shape, tp, self.keep, balancing, ep)
        self.is_interrupted = tp.size > 1 or cp.size > 1 or shape.experts is not None  # a compiler stops inside

    def forward(self, hidden: Tensor, rotation: Tensor | None, mask: Tensor | Masks | None = None) -> Tensor:
        """hidden and result: (micro_batch_size, seq_length / tp, hidden_size)."""
        normed = self.attention_norm(hidden)
        with self.keep(normed, self.attention_norm, hidden):
            attended: Tensor = self.attention(normed, rotation, mask)
        hidden = hidden + attended
        normed = self.mlp_norm(hidden)
        with self.keep(normed, self.mlp_norm, hidden):
            result: Tensor = hidden + self.mlp(normed)
        return result

    def forward_to_compile(self, hidden: Tensor, rotation: Tensor | None, mask: Tensor | Masks | None = None) -> Tensor:
        """Run `forward` as one function to compile, which recomputes cheap results if the block does."""
        if self.keep is keeping or self.is_interrupted:
            return Block.forward(self, hidden, rotation, mask)
        assert not isinstance(mask, Masks)
        return checkpoint_selectively(partial(Block.forward, self), hidden, rotation, mask)


class Embedding(nn.Embedding):
    """A table that is filled by `DecoderStage.fill`. To draw values on "meta", torch would import its compiler."""

    def reset_parameters(self) -> None:
        """Draw no values."""


class TokenEmbedding(Embedding):
    """The table of token vectors, or this rank's rows of it. A tied head uses it too."""

    def __init__(self, shape: ModelShape, tp: TensorParallel) -> None:
        super().__init__(shape.vocab_size, shape.hidden_size)
        self.tp, self.vocab_size = tp, shape.vocab_size

    def forward(self, inputs: Tensor, is_head: bool = False) -> Tensor:
        """Map int64 tokens (micro_batch_size, seq_length) to vectors (micro_batch_size, seq_length / tp, hidden_size).

        As the head, map hidden states (.., seq_length / tp, hidden_size) to logits (.., seq_length, vocab_size / tp).
        """
        if is_head:
            return self.tp.gather_product(inputs, self.weight)
        return self.tp.embed(inputs, self.weight, self.vocab_size)


class Head(nn.Linear):
    """The output matrix, or this rank's rows of it. It is a module so that hooks can wait for its weights."""

    def __init__(self, shape: ModelShape, tp: TensorParallel) -> None:
        super().__init__(shape.hidden_size, shape.vocab_size, bias=False)
        self.tp = tp

    def forward(self, hidden: Tensor) -> Tensor:
        """Map hidden (.., seq_length / tp, hidden_size) to logits (micro_batch_size, seq_length, vocab_size / tp)."""
        return self.tp.gather_product(hidden, self.weight)


class DecoderStage(nn.Module):
    """The layers of one stage. The first stage also embeds tokens, and the last also computes logits.

    Parameters are named as in the whole model (`blocks.7.attention.qkv.weight`). Initial values depend on seed and name
    alone, so they are the same for every cut and split. `parts` maps names to the parts of parameters on this rank.
    """

    def __init__(
        self,
        shape: ModelShape,
        stage: Stage,
        seed: int,
        *,
        tp: TensorParallel = ALONE,
        cp: ContextParallel = WHOLE,
        recompute: Recompute = "none",
        value_type: Precision = "fp32",
        device: torch.device | None = None,
        draws: bool = True,
        lazily: bool = False,
        balancing: Balancing | None = None,
        ep: ExpertParallel = ALL_EXPERTS,
        lora: Lora | None = None,
    ) -> None:
        """Without `draws` weights are zeros, to be loaded from a checkpoint. With `lora` all parameters are frozen
        except adapters, which are always drawn. With `lazily` parameters take memory only after the caller calls
        `fill`. `balancing` is for the experts of each layer, which the replicas of `ep` share.
        """
        super().__init__()
        self.seed, self.draws = seed, draws
        self.shape, self.tp, self.cp, self.recompute = shape, tp, cp, recompute == "full"
        self.is_first = stage.first_layer == 0
        self.is_last = stage.stop_layer == shape.num_layers
        with torch.device("meta"):
            if self.is_first:
                self.token_embedding = TokenEmbedding(shape, tp)
                if shape.family == "gpt":
                    self.position_embedding = Embedding(shape.seq_length, shape.hidden_size)
            layers = range(stage.first_layer, stage.stop_layer)
            self.blocks = nn.ModuleDict(
                {str(layer): Block(shape, tp, recompute, balancing, cp, ep, lora) for layer in layers}
            )
            if self.is_last:
                self.final_norm = make_norm(shape)
                if not shape.tied_embeddings:
                    self.head = Head(shape, tp)
                elif not self.is_first:
                    self.token_embedding = TokenEmbedding(shape, tp)
        self.rotation = cp.take(make_rotation(shape, device)) if shape.family == "llama" else None
        self.takes_ends = device is not None and takes_document_ends(device.type, value_type, cp.size, shape)
        self.causal_masks = cp.causal_masks(shape.seq_length, DTYPES[value_type], device)
        named = self.named_parameters()
        self.parts = {name: part_of(name, tuple(parameter.shape), tp, ep) for name, parameter in named}
        for name, part in self.parts.items():
            owner, _, leaf = name.rpartition(".")
            empty = torch.empty(part.shape, dtype=DTYPES[value_type], device=device)
            empty.untyped_storage().resize_(0)
            is_trained = lora is None or is_adapter(name)
            setattr(self.get_submodule(owner), leaf, nn.Parameter(empty, requires_grad=is_trained))
            if not lazily:
                self.fill([name])

    def fill(self, names: Iterable[str]) -> None:
        """Give the parameters `names` memory and their initial values."""
        for name in names:
            part, parameter = self.parts[name], self.get_parameter(name)
            parameter.untyped_storage().resize_(parameter.nbytes)
            if self.draws or is_adapter(name):
                value = initial_value(name, part.global_shape, self.seed, self.shape.num_layers, part)
                parameter.data.copy_(value)
            else:
                parameter.data.zero_()

    def compile_blocks(self) -> None:
        """Compile the blocks. Hooks on a block stay outside the compiled code."""
        for block in self.blocks.values():
            compiled = torch.compile(cast(Block, block).forward_to_compile)
            block.forward = partial(_without_gradients, compiled, tuple(block.parameters()))

    def forward(self, inputs: Tensor, positions: Tensor | None = None, max_documents: int = 0) -> Tensor:
        """Return logits (micro_batch_size, seq_length, vocab_size / tp) on the last stage, else hidden states.

        inputs: int64 tokens (micro_batch_size, seq_length) on the first stage, else hidden states (micro_batch_size,
        seq_length / tp, hidden_size). positions: for separate documents, at most `max_documents`, each token's position
        in its document, for whole sequences, int64 (micro_batch_size, seq_length).
        """
        hidden = self._embed(inputs, positions) if self.is_first else inputs
        mask: Tensor | Masks | None = self.causal_masks
        if positions is not None:
            mask = self._borders(positions, max_documents, hidden.dtype)
        for block in self.blocks.values():
            if self.recompute:
                hidden = checkpoint(block, hidden, self.rotation, mask, use_reentrant=False, preserve_rng_state=False)
            else:
                hidden = block(hidden, self.rotation, mask)
        return self._logits(self.final_norm(hidden)) if self.is_last else hidden

    def _borders(self, positions: Tensor, max_documents: int, dtype: torch.dtype) -> Tensor | Masks:
        """Return the masks or ends that separate documents in attention."""
        if self.cp.size > 1:
            return self.cp.document_masks(positions, dtype)
        if self.takes_ends:
            return document_ends(positions, max_documents)
        return document_mask(positions, dtype)

    def _logits(self, hidden: Tensor) -> Tensor:
        """Map hidden (.., seq_length / tp, hidden_size) to logits (micro_batch_size, seq_length, vocab_size / tp)."""
        logits: Tensor = self.token_embedding(hidden, True) if self.shape.tied_embeddings else self.head(hidden)
        return logits

    def _embed(self, tokens: Tensor, positions: Tensor | None) -> Tensor:
        """Return hidden states (micro_batch_size, seq_length / tp, hidden_size) of int64 tokens (.., seq_length)."""
        hidden: Tensor = self.token_embedding(tokens)
        if self.shape.family == "gpt":
            own = self.tp.part(tokens.shape[1])
            whole = torch.arange(self.shape.seq_length, device=tokens.device).unsqueeze(0)
            places = self.cp.take(whole if positions is None else positions)
            hidden = hidden + self.position_embedding(places[:, own.start : own.stop])
        return hidden


def _without_gradients(compiled: Callable[..., Tensor], parameters: Sequence[nn.Parameter], *inputs: object) -> Tensor:
    """Return `compiled(*inputs)`, computed while the `grad` of `parameters` is None.

    The compiler would break the graph at each use of a 16-bit parameter whose gradient is summed in fp32.
    """
    gradients = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    try:
        return compiled(*inputs)
    finally:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient


def make_norm(shape: ModelShape) -> nn.Module:
    """Return the norm of the family, over hidden_size."""
    kind = nn.LayerNorm if shape.family == "gpt" else nn.RMSNorm
    return kind(shape.hidden_size, eps=shape.norm_eps)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Return SiLU of `gate` times `up`, of the same shape. Source: Shazeer, GLU Variants Improve Transformer, 2020."""
    return functional.silu(gate) * up


def _add_up(linear: nn.Linear, inputs: Sequence[Tensor], tp: TensorParallel, adapter: Adapter | None = None) -> Tensor:
    """Apply `linear`, whose columns are split: sum the partial results over ranks, and then add the bias once.

    Partial results of the `adapter` are part of the same sum. `inputs` are chunks of a sequence. Each is multiplied
    separately, so that no copy of the whole sequence is kept.
    """
    is_whole = tp.size == 1
    products = [linear(chunk) if is_whole else functional.linear(chunk, linear.weight) for chunk in inputs]
    if adapter is not None:
        more = [adapter(functional.linear(chunk, adapter.a)) for chunk in inputs]
        products = [product + each for product, each in zip(products, more, strict=True)]
    if is_whole:
        return _joined(products)
    summed = tp.scatter_sum(_joined(products))
    return summed if linear.bias is None else summed + linear.bias


def _joined(chunks: Sequence[Tensor]) -> Tensor:
    """Return chunks of a sequence as one: (batch, seq, channels)."""
    return chunks[0] if len(chunks) == 1 else torch.cat(list(chunks), 1)
