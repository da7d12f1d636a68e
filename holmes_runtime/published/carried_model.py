"""The parts of a published model that an export of its run keeps, apart from copied files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.node.published_files.architectures import read_config
from holmes_runtime.node.published_files.check_published import check_config, read_tensors
from holmes_runtime.node.published_files.weight_names import POSITIONS
from holmes_runtime.published.safetensors_files import TensorFolder


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
