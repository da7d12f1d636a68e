"""`python -m holmes_runtime.export CHECKPOINT FOLDER`: a checkpoint's weights as a model that transformers loads.

Numbers are in the precision the run trained in; names and layouts are those of the published architecture that computes
the same (docs/models.md).
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint.state_dict_loader as dcp_loader
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from holmes_runtime.checkpoint.checkpoint_folder import newest_in
from holmes_runtime.checkpoint.description import Description, whose_weights
from holmes_runtime.checkpoint.piece_files import SafeReader
from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.config.strict_json import decode
from holmes_runtime.published.write_model import write_model

WEIGHT = "weight/"


def export(checkpoint: Path, output: Path) -> int:
    """Writes the model of `checkpoint`, one of a run's or the run's folder with its newest; how many tensors.

    One weight at a time is in memory. Raises ValueError if it is no checkpoint, or the output is there and not empty.
    """
    if output.is_file() or (output.is_dir() and any(output.iterdir())):
        raise ValueError(f"{output} exists")
    folder = newest_in(checkpoint) or checkpoint
    description = Description.read(folder)
    shape: ModelShape = decode(ModelShape, description.shape, "shape")
    saved = SafeReader(folder).read_metadata().state_dict_metadata
    weights = {
        name.removeprefix(WEIGHT): tuple(tensor.size)
        for name, tensor in sorted(saved.items())  # so that equal models are equal files
        if name.startswith(WEIGHT) and isinstance(tensor, TensorStorageMetadata)
    }
    return write_model(output, shape, description.value_type, weights, lambda name: _load(folder, name, weights[name]))


def _load(folder: Path, name: str, shape: tuple[int, ...]) -> Tensor:
    """One weight, fp32 of `shape`."""
    state = {WEIGHT + name: torch.empty(shape)}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp_loader.load(state, storage_reader=SafeReader(folder), no_dist=True)
    return state[WEIGHT + name]


def main() -> int:
    """Reads the command line and exports."""
    parser = argparse.ArgumentParser(prog="python -m holmes_runtime.export", description="A model for transformers.")
    parser.add_argument("checkpoint", type=Path, help="a step-... folder, or the folder of all: its newest")
    parser.add_argument("output", type=Path, help="the model's folder, which must not exist or be empty")
    arguments = parser.parse_args()
    try:
        count = export(arguments.checkpoint, arguments.output)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{count} tensors: {arguments.output}")
    if (said := whose_weights(newest_in(arguments.checkpoint) or arguments.checkpoint)) is not None:
        print(said)
    return 0


if __name__ == "__main__":
    sys.exit(main())
