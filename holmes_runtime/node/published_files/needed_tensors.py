"""The tensors that a published model of a shape has, and the check that a folder has them. Free of torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.node.published_files.safetensors_header import StoredTensor, check_tensor
from holmes_runtime.node.published_files.weight_names import BLOCKS, POSITIONS, expert_name, router_name

Sizes = tuple[int, ...]


def check_tensors(folder: Path, stored: Mapping[str, StoredTensor], shape: ModelShape) -> None:
    """Raise ValueError unless `stored`, the tensors of `folder`, has all tensors of a model of `shape`."""
    for name, size in needed_tensors(shape):
        if name not in stored:
            raise ValueError(f"{folder} has no tensor {name}")
        found = stored[name]
        # Positions beyond the run's sequences are left out.
        is_longer = name == POSITIONS and found.shape[1:] == size[1:] and found.shape[:1] > size[:1]
        check_tensor(name, found, found.shape if is_longer else size)


def needed_tensors(shape: ModelShape) -> Iterator[tuple[str, Sizes]]:
    """Yield the name and shape of each tensor, layer by layer: even a huge number of layers takes no memory."""
    is_gpt, h, table = shape.family == "gpt", shape.hidden_size, (shape.vocab_size, shape.hidden_size)
    yield "transformer.wte.weight" if is_gpt else "model.embed_tokens.weight", table
    if is_gpt:
        yield POSITIONS, (shape.seq_length, h)
    layer = dict(_gpt_layer(shape) if is_gpt else _llama_layer(shape))
    for number in range(shape.num_layers):
        for name, size in layer.items():
            yield f"{BLOCKS[shape.family]}.{number}.{name}", size
    yield from _norm("transformer.ln_f", h) if is_gpt else [("model.norm.weight", (h,))]
    if not shape.tied_embeddings:
        yield "lm_head.weight", table


def _gpt_layer(shape: ModelShape) -> Iterator[tuple[str, Sizes]]:
    h, q, k, f = shape.hidden_size, shape.query_size, shape.kv_size, shape.ffn_size
    matrices = {"attn.c_attn": (h, q + 2 * k), "attn.c_proj": (q, h), "mlp.c_fc": (h, f), "mlp.c_proj": (f, h)}
    for name, size in matrices.items():  # transposed: one row per input
        yield from [(f"{name}.weight", size), (f"{name}.bias", size[1:])]
    for name in ("ln_1", "ln_2"):
        yield from _norm(name, h)


def _norm(name: str, size: int) -> list[tuple[str, Sizes]]:
    """Return the tensors of a LayerNorm."""
    return [(f"{name}.weight", (size,)), (f"{name}.bias", (size,))]


def _llama_layer(shape: ModelShape) -> Iterator[tuple[str, Sizes]]:
    h, q, k, f = shape.hidden_size, shape.query_size, shape.kv_size, shape.ffn_size
    for name, rows in (("q", q), ("k", k), ("v", k)):
        yield f"self_attn.{name}_proj.weight", (rows, h)
        if shape.qkv_bias:
            yield f"self_attn.{name}_proj.bias", (rows,)
    yield "self_attn.o_proj.weight", (h, q)
    for name in ("q_norm", "k_norm") if shape.qk_norm else ():
        yield f"self_attn.{name}.weight", (shape.head_size,)
    if shape.experts is None:
        for name, size in (("gate", (f, h)), ("up", (f, h)), ("down", (h, f))):
            yield f"mlp.{name}_proj.weight", size
    else:
        yield from _experts(shape, shape.experts)
    for name in ("input_layernorm", "post_attention_layernorm"):
        yield f"{name}.weight", (h,)


def _experts(shape: ModelShape, experts: int) -> Iterator[tuple[str, Sizes]]:
    h, g = shape.hidden_size, shape.expert_size
    yield router_name(shape), (experts, h)
    for expert in range(experts):
        for name, size in (("gate", (g, h)), ("up", (g, h)), ("down", (h, g))):
            yield expert_name(shape, expert, name), size
