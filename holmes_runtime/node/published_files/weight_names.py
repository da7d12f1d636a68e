"""The tensors of a published model that hold each weight of the bundled decoder. Free of torch.

A weight consists of rows of such tensors, one block after another. `qkv` is ordered by key-value head and takes its
rows in turn from the tensors of queries, keys and values. GPT-2 stores its matrices transposed. Each expert has its own
tensors: a row of a weight of all experts is a whole tensor.
"""

from __future__ import annotations

from typing import NamedTuple

from holmes_runtime.config.model_shape import ModelShape

LLAMA_NAMES = {
    "token_embedding": "model.embed_tokens",
    "final_norm": "model.norm",
    "head": "lm_head",
    "attention_norm": "input_layernorm",
    "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm",
    "attention.projection": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}
GPT_NAMES = {
    "token_embedding": "transformer.wte",
    "position_embedding": "transformer.wpe",
    "final_norm": "transformer.ln_f",
    "head": "lm_head",
    "attention_norm": "ln_1",
    "attention.projection": "attn.c_proj",
    "mlp_norm": "ln_2",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
}
EXPERT_OWNERS = {"mlp.experts.gate": "gate", "mlp.experts.up": "up", "mlp.experts.down": "down"}
QKV = "attention.qkv"
LLAMA_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
GPT_QKV = ("attn.c_attn",) * 3
POSITIONS = "transformer.wpe.weight"
BLOCKS = {"gpt": "transformer.h", "llama": "model.layers"}


class Rows(NamedTuple):
    """Rows [first, first + num_rows) of the published tensor `name`, after transposition if it is transposed.

    If it `is_stacked`, the whole tensor is one row of the weight.
    """

    name: str
    first: int
    num_rows: int
    is_stacked: bool = False


def router_name(shape: ModelShape) -> str:
    """Return the published name of the router within its layer: Qwen 3's with `qk_norm`, else Mixtral's."""
    return "mlp.gate.weight" if shape.qk_norm else "block_sparse_moe.gate.weight"


def expert_name(shape: ModelShape, expert: int, matrix: str) -> str:
    """Return the published name of an expert's `matrix` (gate, up or down) within its layer."""
    if shape.qk_norm:
        return f"mlp.experts.{expert}.{matrix}_proj.weight"
    return f"block_sparse_moe.experts.{expert}.{ {'gate': 'w1', 'up': 'w3', 'down': 'w2'}[matrix] }.weight"


def rows_of(shape: ModelShape, name: str, num_rows: int) -> tuple[Rows, ...]:
    """Return, in order, the published rows that make up the weight `name` of `num_rows` rows."""
    owner, _, leaf = name.rpartition(".")
    prefix = ""
    if owner.startswith("blocks."):
        _, layer, owner = owner.split(".", 2)
        prefix = f"{BLOCKS[shape.family]}.{layer}."
    if owner == "mlp.router":
        return (Rows(prefix + router_name(shape), 0, num_rows),)
    if owner in EXPERT_OWNERS:
        names = (expert_name(shape, expert, EXPERT_OWNERS[owner]) for expert in range(num_rows))
        return tuple(Rows(prefix + name, 0, 1, is_stacked=True) for name in names)
    if owner != QKV:
        owners = GPT_NAMES if shape.family == "gpt" else LLAMA_NAMES
        return (Rows(f"{prefix}{owners[owner]}.{leaf}", 0, num_rows),)
    size, per_kv = shape.head_size, shape.num_heads // shape.kv_heads
    query, key, value = (f"{prefix}{each}.{leaf}" for each in (GPT_QKV if shape.family == "gpt" else LLAMA_QKV))
    keys_at, values_at = (shape.query_size, 2 * shape.query_size) if shape.family == "gpt" else (0, 0)
    return tuple(
        block
        for head in range(shape.kv_heads)
        for block in (
            Rows(query, head * per_kv * size, per_kv * size),
            Rows(key, keys_at + head * size, size),
            Rows(value, values_at + head * size, size),
        )
    )


def is_transposed(name: str) -> bool:
    """Return True if the published tensor `name` has one row per input."""
    return name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))
