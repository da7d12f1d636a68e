"""The writer of a model folder for the transformers library: config.json and one .safetensors file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.config.run_settings import Precision
from holmes_runtime.node.published_files.architectures import CONFIG_FILE, carried_config, published_config
from holmes_runtime.node.published_files.safetensors_header import SINGLE_FILE
from holmes_runtime.node.published_files.weight_names import Rows, is_transposed, rows_of
from holmes_runtime.published.carried_model import CarriedModel
from holmes_runtime.published.safetensors_files import write_tensors

POSITION_TABLE = "position_embedding.weight"
FORMAT_NAMES: dict[Precision, str] = {"fp32": "F32", "bf16": "BF16", "fp16": "F16"}


def write_model(
    folder: Path,
    shape: ModelShape,
    value_type: Precision,
    weights: Mapping[str, tuple[int, ...]],
    load: Callable[[str], Tensor],
    carried: CarriedModel | None = None,
    borders: tuple[int | None, int | None] = (None, None),
) -> int:
    """Write the model of `shape` with `weights` of these shapes. Return the number of tensors.

    `load` returns one weight, so that only one is in memory. `carried` is the published model that training began with:
    its configuration is kept, and its positions beyond the trained ones. Without it, `borders` are the tokens at the
    borders of documents. The weights of a user's own model keep their names, and it has no config.json.

    Raises:
        ValueError: No published architecture computes this model.
    """
    config = None if shape.factory is not None else published_config(shape, value_type, *borders)
    if carried is not None:
        beyond = torch.empty(0) if carried.positions is None else carried.positions[shape.seq_length :]
        config = carried_config(carried.config, shape, value_type, shape.seq_length + len(beyond))
        if len(beyond):
            weights, load = _with_positions(weights, load, beyond)
    if config is not None:
        rows = {name: rows_of(shape, name, size[0]) for name, size in weights.items()}
    else:
        rows = {name: (Rows(name, 0, size[0] if size else 1),) for name, size in weights.items()}
    folder.mkdir(parents=True, exist_ok=True)
    count = write_rows(folder / SINGLE_FILE, value_type, weights, load, rows)
    if config is not None:
        (folder / CONFIG_FILE).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    return count


def write_rows(
    file: Path,
    value_type: Precision,
    weights: Mapping[str, tuple[int, ...]],
    load: Callable[[str], Tensor],
    rows: Mapping[str, tuple[Rows, ...]],
) -> int:
    """Write the published tensors that make up `weights` of these shapes, by their `rows`. Return their number."""
    tensors = {name: size for weight in weights for name, size in _published(rows[weight], weights[weight]).items()}
    values = (tensor for name in weights for tensor in published_values(load(name), rows[name]))
    write_tensors(file, FORMAT_NAMES[value_type], tensors, values)
    return len(tensors)


def _with_positions(
    weights: Mapping[str, tuple[int, ...]], load: Callable[[str], Tensor], beyond: Tensor
) -> tuple[Mapping[str, tuple[int, ...]], Callable[[str], Tensor]]:
    """Return the weights with the rows `beyond` appended to the table of positions."""
    rows, width = weights[POSITION_TABLE]

    def load_whole(name: str) -> Tensor:
        return torch.cat([load(name), beyond.float()]) if name == POSITION_TABLE else load(name)

    return {**weights, POSITION_TABLE: (rows + len(beyond), width)}, load_whole


def _published(rows: tuple[Rows, ...], size: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Return the shapes, by name, of the published tensors that make up a weight of shape `size`."""
    if rows[0].is_stacked:
        return {block.name: size[1:] for block in rows}
    counts: dict[str, int] = {}
    for block in rows:
        counts[block.name] = counts.get(block.name, 0) + block.num_rows
    sizes = {name: (count, *size[1:]) if size else () for name, count in counts.items()}
    return {name: each[::-1] if is_transposed(name) else each for name, each in sizes.items()}


def published_values(weight: Tensor, rows: tuple[Rows, ...]) -> Iterator[Tensor]:
    """Yield the published tensors of `weight`, in the order of their names in `rows`."""
    found = {name: torch.empty(size) for name, size in _published(rows, tuple(weight.shape)).items()}
    row = 0
    for block in rows:
        target = found[block.name].t() if is_transposed(block.name) else found[block.name]
        if block.is_stacked:
            target.copy_(weight[row])
        elif weight.dim():
            target[block.first : block.first + block.num_rows] = weight[row : row + block.num_rows]
        else:
            target.copy_(weight)
        row += block.num_rows
    yield from found.values()
