"""Initial weights from the folder of a published model. Each rank reads only its own pieces."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from torch import Tensor

from holmes_runtime.checkpoint.tensor_piece import TensorPiece
from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.config.trainable import Lora
from holmes_runtime.node.published_files.adapter_names import adapter_rows
from holmes_runtime.node.published_files.check_adapters import check_adapters
from holmes_runtime.node.published_files.check_published import check_published
from holmes_runtime.node.published_files.weight_names import Rows, is_transposed, rows_of
from holmes_runtime.published.safetensors_files import TensorFolder


def load_first_weights(folder: Path, shape: ModelShape, pieces: Mapping[str, TensorPiece]) -> None:
    """Fill `pieces` of weights, by name, from the model in `folder`. Raise ValueError if it is no model of `shape`."""
    _fill_all(pieces, TensorFolder(check_published(folder, shape)), partial(rows_of, shape))


def load_first_adapters(folder: Path, shape: ModelShape, lora: Lora, pieces: Mapping[str, TensorPiece]) -> None:
    """Fill `pieces` of adapters, by name, from `folder`. Raise ValueError if its adapters do not match `lora`."""
    _fill_all(pieces, TensorFolder(check_adapters(folder, shape, lora)), partial(adapter_rows, shape))


def _fill_all(
    pieces: Mapping[str, TensorPiece], tensors: TensorFolder, rows_of_parameter: Callable[[str, int], Sequence[Rows]]
) -> None:
    for name, piece in pieces.items():
        rows = rows_of_parameter(name, piece.part.global_shape[0])
        for chunk, values in piece.chunks():
            _fill(values, tuple(chunk.offsets), tensors, rows)


def _fill(values: Tensor, corner: tuple[int, ...], tensors: TensorFolder, rows: Sequence[Rows]) -> None:
    """Fill `values`, a box of a weight with its first element at `corner`."""
    columns = [slice(start, start + size) for start, size in zip(corner[1:], values.shape[1:], strict=True)]
    begin, row = corner[0], 0
    for block in rows:
        low, high = max(begin, row), min(begin + len(values), row + block.num_rows)
        if low < high:
            source = tensors.tensor(block.name)
            source = source.t() if is_transposed(block.name) else source
            source = source.unsqueeze(0) if block.is_stacked else source
            own = slice(block.first + low - row, block.first + high - row)
            box = (own, *columns)
            values[low - begin : high - begin] = source[box]
        row += block.num_rows
