"""The tensors of adapters as the peft library names them. Free of torch.

Source: the files that peft 0.21.2 writes for Llama and GPT-2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from holmes_runtime.config.model_shape import Family, ModelShape
from holmes_runtime.config.trainable import Lora, Matrix, matrix_size
from holmes_runtime.node.published_files.weight_names import BLOCKS, Rows, rows_of

PREFIX = "base_model.model."
MLP = ("gate", "up", "down")
LEAVES = {"a": "lora_A.weight", "b": "lora_B.weight"}
MODULES: Mapping[Family, Mapping[Matrix, str]] = {
    "gpt": {"qkv": "attn.c_attn", "projection": "attn.c_proj", "up": "mlp.c_fc", "down": "mlp.c_proj"},
    "llama": {
        "query": "self_attn.q_proj",
        "key": "self_attn.k_proj",
        "value": "self_attn.v_proj",
        "projection": "self_attn.o_proj",
        "gate": "mlp.gate_proj",
        "up": "mlp.up_proj",
        "down": "mlp.down_proj",
    },
}
"""By family and matrix, the published module within its layer that has the adapter."""


def adapter_sizes(shape: ModelShape, lora: Lora) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the name and shape of each parameter of all adapters, layer by layer."""
    for layer in range(shape.num_layers):
        for matrix in lora.targets:
            inputs, outputs = matrix_size(shape, matrix)
            name = f"blocks.{layer}.{'mlp' if matrix in MLP else 'attention'}.{matrix}_lora"
            yield from ((f"{name}.a", (lora.rank, inputs)), (f"{name}.b", (outputs, lora.rank)))


def adapter_rows(shape: ModelShape, name: str, num_rows: int) -> tuple[Rows, ...]:
    """Return, in order, the rows of peft's tensor that make up the adapter's parameter `name` of `num_rows` rows.

    Raises:
        ValueError: the family has no such adapter.
    """
    owner, _, leaf = name.rpartition(".")
    _, _, layer_and_matrix = owner.partition("blocks.")
    layer, _, matrix = layer_and_matrix.removesuffix("_lora").partition(".")
    module = next((module for each, module in MODULES[shape.family].items() if matrix.endswith(f".{each}")), None)
    if module is None or leaf not in LEAVES or not layer.isdecimal():
        raise ValueError(f"{name!r} is not an adapter of a {shape.family}")
    tensor = f"{PREFIX}{BLOCKS[shape.family]}.{layer}.{module}.{LEAVES[leaf]}"
    if matrix.endswith(".qkv") and leaf == "b":
        of_matrix = rows_of(shape, f"blocks.{layer}.attention.qkv.weight", num_rows)
        return tuple(block._replace(name=tensor) for block in of_matrix)
    return (Rows(tensor, 0, num_rows),)


def adapted_weight(tensor: str) -> str:
    """Return the published weight to which peft's adapter `tensor` belongs."""
    module, _, _ = tensor.removeprefix(PREFIX).rpartition(".lora_")
    return f"{module}.weight"
