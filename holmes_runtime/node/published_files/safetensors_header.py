"""The headers of .safetensors files, which list the tensors they hold. Free of torch.

The format is: the length of the header in eight bytes, little endian; the header, JSON; the tensors, row by row, little
endian. Files come from anywhere, so a header is used only if it is consistent with its file.
Source: https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from holmes_runtime.config.bounded_file import json_object, open_bounded, read_json_object
from holmes_runtime.config.checks import shown

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
TYPE_BYTES = {"F32": 4, "BF16": 2, "F16": 2}
"""Bytes per number, by the types that can be read."""
WITHOUT_HEAD = {"wte.weight": "transformer.", "embed_tokens.weight": "model."}
"""Prefix of all names in a model with a head, by the name of the token table in a model saved without one."""
LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
MAX_DIMENSIONS, MAX_NUMBER = 64, 2**63 - 1  # torch's own limits


@dataclass(frozen=True)
class StoredTensor:
    """The place of a tensor: bytes [start, stop) of `file`, with `shape` and the format's type `type_name`."""

    file: Path
    type_name: str
    shape: tuple[int, ...]
    start: int
    stop: int


def read_header(file: Path) -> dict[str, StoredTensor]:
    """Return the tensors of `file` by name. Raises ValueError naming file and tensor for an impossible header."""
    with open_bounded(file) as opened:
        size = os.fstat(opened.fileno()).st_size
        length = int.from_bytes(opened.read(LENGTH_BYTES), "little")
        if size < LENGTH_BYTES or length > min(size - LENGTH_BYTES, MAX_HEADER_BYTES):
            raise ValueError(f"{file} is not a safetensors file: its header would have {length} of {size} bytes")
        text = opened.read(length)
    entries = json_object(file, text, keys_once=True)
    entries.pop("__metadata__", None)
    begin = LENGTH_BYTES + length
    try:
        found = {name: _entry(file, begin, size, entry) for name, entry in entries.items()}
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{file}: its header is invalid: {error!s:.200}") from None
    ordered = sorted(found.items(), key=lambda item: (item[1].start, item[1].stop))
    for (name, before), (other, after) in pairwise(ordered):
        if after.start < before.stop:
            raise ValueError(f"{file}: its header is invalid: {name:.60} and {other:.60} overlap")
    return found


def _entry(file: Path, begin: int, size: int, entry: Mapping[str, Any]) -> StoredTensor:
    """Return a tensor of a header. The data of all tensors is from byte `begin` on, in a file of `size` bytes."""
    type_name, shape, (start, stop) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    if len(shape) > MAX_DIMENSIONS or any(
        type(number) is not int or not 0 <= number <= MAX_NUMBER for number in (*shape, start, stop)
    ):
        raise ValueError(f"a shape {shown(list(shape))} at {shown([start, stop])}")
    if type_name in TYPE_BYTES and stop - start != math.prod(shape) * TYPE_BYTES[type_name]:
        raise ValueError(f"a tensor of {type_name} {shown(list(shape))} in {stop - start} bytes")
    if start > stop or begin + stop > size:
        raise ValueError(f"bytes {[start, stop]} of only {size - begin}")
    return StoredTensor(file, str(type_name), shape, begin + start, begin + stop)


def check_tensor(name: str, tensor: StoredTensor, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless the tensor `name` has this shape and a type that can be read."""
    if tensor.shape != shape:
        raise ValueError(
            f"{tensor.file}: {name} has the shape {shown(list(tensor.shape))}, the model needs {list(shape)}"
        )
    if tensor.type_name not in TYPE_BYTES:
        raise ValueError(f"{tensor.file}: {name} is of type {tensor.type_name:.60}, not one of {', '.join(TYPE_BYTES)}")


def read_headers(folder: Path) -> dict[str, StoredTensor]:
    """Return all tensors of the model in `folder` by name, from one file, or from several and their index.

    Raises ValueError or OSError naming the file if there are none or a header is impossible.
    """
    index = folder / INDEX_FILE
    found: dict[str, StoredTensor] = {}
    for name in _indexed(index) if index.exists() else [SINGLE_FILE]:
        if not (folder / name).exists():
            raise ValueError(f"{folder / name} is missing: {folder} has no readable model")
        found.update(read_header(folder / name))
    return _full_names(found)


def _full_names(found: dict[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return the tensors by the names they have in a model with a head.

    The library also accepts a model saved without a head, such as OpenAI's GPT-2, with names that lack the prefix.
    """
    prefix = next((prefix for table, prefix in WITHOUT_HEAD.items() if table in found), None)
    if prefix is None:
        return found
    return {name if name.startswith("lm_head.") else prefix + name: tensor for name, tensor in found.items()}


def _indexed(index: Path) -> Iterable[str]:
    """Return the files that `index` names. Raises ValueError for anything but plain names."""
    try:
        names = set(read_json_object(index, MAX_HEADER_BYTES)["weight_map"].values())
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{index} does not say which tensors are in which file: {error!r}") from None
    strange = [name for name in names if not isinstance(name, str) or Path(name).name != name]
    if strange:
        raise ValueError(f"{index} names {shown(strange[0])}, which is not a file in its folder")
    return sorted(names)
