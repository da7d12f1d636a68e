"""The parts of a published model that an export of its run keeps: configuration, positions, and files to copy."""

from __future__ import annotations

import filecmp
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from holmes_runtime.config.bounded_file import open_bounded, read_json_object
from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.node.data_files.document_tokens import TOKENIZER_FILE
from holmes_runtime.node.published_files.architectures import read_config
from holmes_runtime.node.published_files.check_published import check_config, read_tensors
from holmes_runtime.node.published_files.weight_names import POSITIONS
from holmes_runtime.published.safetensors_files import TensorFolder

GENERATION_FILE = "generation_config.json"
TOKENIZER_FILES = (
    *(TOKENIZER_FILE, "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "merges.txt", "chat_template.jinja"),
)
MAX_FILE_BYTES = 2**28  # the largest tokenizers have some tens of MB


@dataclass(frozen=True)
class CarriedModel:
    """The config.json of the model in `folder`, and a GPT-2's whole position table (n_positions, hidden_size)."""

    folder: Path
    config: Mapping[str, Any]
    positions: Tensor | None


def read_carried(folder: Path, shape: ModelShape) -> CarriedModel:
    """Return the parts to keep from the model in `folder`.

    Raises:
        ValueError: The folder does not hold a model of `shape`.
        OSError: A file cannot be read.
    """
    check_config(folder, shape)
    positions = None
    if shape.family == "gpt":
        positions = TensorFolder(read_tensors(folder, shape)).tensor(POSITIONS)
    return CarriedModel(folder, read_config(folder), positions)


def files_to_carry(folder: Path | None, tokenizer: Path | None) -> dict[str, Path]:
    """Return the existing files to copy, by their names in the export.

    `folder` is the published model's. `tokenizer` is the file with which text was read, and takes precedence if the two
    differ. With a tokenizer of the usual name, the other tokenizer files of its folder are copied too. The path comes
    from a checkpoint, so the file is used only if it holds a tokenizer.
    """
    from_folder = _existing(folder, (GENERATION_FILE, *TOKENIZER_FILES)) if folder is not None else {}
    if tokenizer is None or not _is_tokenizer(tokenizer) or _is_same(from_folder.get(TOKENIZER_FILE), tokenizer):
        return from_folder
    siblings = _existing(tokenizer.parent, TOKENIZER_FILES) if tokenizer.name == TOKENIZER_FILE else {}
    generation = {name: path for name, path in from_folder.items() if name == GENERATION_FILE}
    return {**generation, **siblings, TOKENIZER_FILE: tokenizer}


def copy_files(files: dict[str, Path], output: Path) -> list[str]:
    """Copy `files` into `output`, which has none of them. Return a reason for each file that cannot be copied."""
    reasons = []
    for name, path in files.items():
        try:
            with open_bounded(path, MAX_FILE_BYTES) as source, open(output / name, "xb") as target:
                shutil.copyfileobj(source, target)
        except (OSError, ValueError) as error:
            reasons.append(f"{path} is not copied: {error}")
    return reasons


def _existing(folder: Path, names: Sequence[str]) -> dict[str, Path]:
    return {name: folder / name for name in names if (folder / name).is_file()}


def _is_tokenizer(path: Path) -> bool:
    try:
        return isinstance(read_json_object(path, MAX_FILE_BYTES).get("model"), dict)
    except (OSError, ValueError):
        return False


def _is_same(path: Path | None, other: Path) -> bool:
    try:
        return path is not None and filecmp.cmp(path, other, shallow=False)
    except OSError:
        return False
