"""Reading of .safetensors files by mapping them into memory, and writing tensor by tensor."""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from holmes_runtime.config.bounded_file import open_bounded
from holmes_runtime.node.data_files.whole_file import whole_file
from holmes_runtime.node.published_files.safetensors_header import LENGTH_BYTES, TYPE_BYTES, StoredTensor

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
ALIGNMENT = 8  # bytes; written tensors begin at a multiple of it


class TensorFolder:
    """The tensors of a published model's folder, mapped into memory."""

    def __init__(self, stored: Mapping[str, StoredTensor]) -> None:
        self.stored = stored
        self._maps: dict[Path, mmap.mmap] = {}

    def tensor(self, name: str) -> Tensor:
        """Return the tensor `name`, with the type and shape in its file. Do not write to it.

        Only parts that are used are read from disk.
        """
        stored = self.stored[name]
        dtype, count = DTYPES[stored.type_name], math.prod(stored.shape)
        if count == 0:
            return torch.empty(stored.shape, dtype=dtype)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            flat = torch.frombuffer(self._mapped(stored.file), dtype=dtype, count=count, offset=stored.start)
        return flat.view(stored.shape)

    def _mapped(self, file: Path) -> mmap.mmap:
        if file not in self._maps:
            with open_bounded(file) as opened:
                self._maps[file] = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        return self._maps[file]


def write_tensors(path: Path, type_name: str, shapes: Mapping[str, tuple[int, ...]], values: Iterator[Tensor]) -> None:
    """Write `values`, tensors of these `shapes`, one by one. The file appears when it is complete."""
    with whole_file(path) as file:
        file.write(_header(shapes, type_name))
        for shape, value in zip(shapes.values(), values, strict=True):
            tensor = value.to(DTYPES[type_name]).contiguous()
            assert tuple(tensor.shape) == shape
            if tensor.numel():
                file.write((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr()))


def _header(shapes: Mapping[str, tuple[int, ...]], type_name: str) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        stop = offset + math.prod(shape) * TYPE_BYTES[type_name]
        entries[name] = {"dtype": type_name, "shape": list(shape), "data_offsets": [offset, stop]}
        offset = stop
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text
