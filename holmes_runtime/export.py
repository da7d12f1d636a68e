"""`python -m holmes_runtime.export CHECKPOINT OUT.safetensors`: the weights of a checkpoint for other programs.

Names are those of the whole model (docs/runtime.md); numbers are in the precision the run trained in. The format: the
length of the header in eight bytes, little endian; the header, JSON; the tensors, row by row, little endian.
Source: https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
import warnings
from pathlib import Path
from typing import BinaryIO

import torch
import torch.distributed.checkpoint.state_dict_loader as dcp_loader
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from holmes_runtime.checkpoint.checkpoint_folder import newest_in
from holmes_runtime.checkpoint.description import Description
from holmes_runtime.checkpoint.safe_reader import SafeReader
from holmes_runtime.model.decoder import DTYPES

WEIGHT = "weight/"
FORMAT_NAMES = {"fp32": "F32", "bf16": "BF16", "fp16": "F16"}
ALIGNMENT = 8  # bytes; the tensors begin at a multiple of it, so that they can be used from a memory map


def export(checkpoint: Path, output: Path) -> int:
    """Writes the weights of `checkpoint`, one of a run's or the run's folder with its newest; how many tensors.

    One tensor at a time is in memory. Raises ValueError if it is no checkpoint or the output exists.
    """
    if output.exists():
        raise ValueError(f"{output} exists")
    folder = newest_in(checkpoint) or checkpoint
    description = Description.read(folder)
    saved = SafeReader(folder).read_metadata().state_dict_metadata
    shapes = {
        name.removeprefix(WEIGHT): tuple(tensor.size)
        for name, tensor in saved.items()
        if name.startswith(WEIGHT) and isinstance(tensor, TensorStorageMetadata)
    }
    dtype, format_name = DTYPES[description.value_type], FORMAT_NAMES[description.value_type]
    temporary = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        with open(temporary, "wb") as file:
            file.write(_header(shapes, format_name, dtype.itemsize))
            for name, shape in shapes.items():
                _write(file, _load(folder, name, shape).to(dtype))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(output)
    finally:
        temporary.unlink(missing_ok=True)
    return len(shapes)


def _header(shapes: dict[str, tuple[int, ...]], format_name: str, item_bytes: int) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        stop = offset + torch.Size(shape).numel() * item_bytes
        entries[name] = {"dtype": format_name, "shape": list(shape), "data_offsets": [offset, stop]}
        offset = stop
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _load(folder: Path, name: str, shape: tuple[int, ...]) -> Tensor:
    """One weight, fp32 of `shape`."""
    state = {WEIGHT + name: torch.empty(shape)}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp_loader.load(state, storage_reader=SafeReader(folder), no_dist=True)
    return state[WEIGHT + name]


def _write(file: BinaryIO, tensor: Tensor) -> None:
    if tensor.numel():
        file.write((ctypes.c_char * tensor.nbytes).from_address(tensor.contiguous().data_ptr()))


def main() -> int:
    """Reads the command line and exports."""
    parser = argparse.ArgumentParser(prog="python -m holmes_runtime.export", description="Weights as safetensors.")
    parser.add_argument("checkpoint", type=Path, help="a step-... folder, or the folder of all: its newest")
    parser.add_argument("output", type=Path, help="OUT.safetensors, which must not exist")
    arguments = parser.parse_args()
    try:
        count = export(arguments.checkpoint, arguments.output)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{count} tensors: {arguments.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
