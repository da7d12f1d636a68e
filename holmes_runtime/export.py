"""`python -m holmes_runtime.export CHECKPOINT FOLDER`: write a checkpoint's weights as a model for transformers.

Numbers have the precision of the run. Names and layouts follow the published architecture that computes the same
function (docs/models.md). Adapters are written in the format of the peft library, or merged into the published model on
which they were trained.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from holmes_runtime.checkpoint.piece_loading import values_of
from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.config.strict_json import decode
from holmes_runtime.config.trainable import Lora
from holmes_runtime.data.same_on_hosts import identity_of
from holmes_runtime.node.checkpoint_files.checkpoint_folder import newest_in
from holmes_runtime.node.checkpoint_files.description import Description, whose_weights
from holmes_runtime.node.checkpoint_files.piece_index import DamagedPiece, WrittenTensor, lacks, read_box, read_index
from holmes_runtime.node.data_files.text import FileTokenizer
from holmes_runtime.node.published_files.architectures import CONFIG_FILE
from holmes_runtime.published.carried_model import copy_files, files_to_carry, read_carried
from holmes_runtime.published.peft_adapters import write_adapters, write_merged
from holmes_runtime.published.write_model import write_model

WEIGHT = "weight/"

Notify = Callable[[str], None]
"""A function that receives messages about files and settings that the export kept or left out."""


def export(
    checkpoint: Path,
    output: Path,
    published: Path | None = None,
    notify: Notify = lambda _: None,
    merge: bool = False,
) -> int:
    """Write the model of `checkpoint` to `output` and return the number of its tensors.

    `checkpoint` is one checkpoint, or a folder of checkpoints, whose newest is exported. Only one weight at a time is
    in memory. Configuration, generation settings and tokenizer come from the published model that the run began with,
    or from `published` if that model has moved. A checkpoint of adapters is written as adapters, or, with `merge`, as
    the published model with the adapters merged into its weights.

    Raises:
        ValueError: `checkpoint` is no checkpoint, `published` is another model, or `output` exists and is not empty.
            With `merge`: the checkpoint holds no adapters, or the published model does not exist.
    """
    if output.is_file() or (output.is_dir() and any(output.iterdir())):
        raise ValueError(f"{output} exists")
    folder = newest_in(checkpoint) or checkpoint
    description = Description.read(folder)
    shape: ModelShape = decode(ModelShape, {"preset": None, **description.shape}, "shape")
    origin = description.origin
    if description.lora is not None:
        return _export_adapters(folder, output, shape, description, published, notify, merge)
    if merge:
        raise ValueError(f"{folder} holds all weights and no adapters to merge: leave out --merge")
    model = read_carried(published, shape) if published is not None else None
    if published is None and origin.weights is not None:
        try:
            model = read_carried(Path(origin.weights), shape)
        except (OSError, ValueError) as error:
            notify(
                "note: the model lacks the context length, token ids, generation settings and tokenizer of "
                f"{origin.weights}, which the run began with: {error}; to take them from a copy: --published FOLDER"
            )
    tokenizer = Path(origin.tokenizer) if origin.tokenizer is not None else None
    saved = _weights_of(folder)
    count = write_model(
        output,
        shape,
        description.value_type,
        {name: tensor.shape for name, tensor in saved.items()},
        lambda name: _load(folder, saved[name]),
        model,
        _borders_of_documents(tokenizer),
    )
    files = files_to_carry(model.folder if model else None, tokenizer)
    for reason in copy_files(files, output):
        notify(f"note: {reason}")
    carried = ([CONFIG_FILE] if model is not None else []) + [name for name in files if (output / name).exists()]
    if carried:
        notify(f"kept: {', '.join(carried)}")
    return count


def _export_adapters(
    folder: Path,
    output: Path,
    shape: ModelShape,
    description: Description,
    published: Path | None,
    notify: Notify,
    merge: bool,
) -> int:
    """Write the adapters in the checkpoint `folder`, or, with `merge`, the published model with them."""
    stored, origin, saved = description.lora or {}, description.origin, _weights_of(folder)
    keys = {key: stored.get(key) for key in ("rank", "targets", "alpha")}
    lora: Lora = decode(Lora, {"adapters": None, **keys}, "lora")
    sizes = {name: tensor.shape for name, tensor in saved.items()}
    base = published or (Path(origin.weights) if origin.weights is not None else None)

    def load(name: str) -> Tensor:
        return _load(folder, saved[name])

    if base is not None and (merge or published is not None or base.is_dir()):
        identity, expected = identity_of(base, shape), stored.get("frozen_weights")
        if identity != expected:
            raise ValueError(f"{folder} has adapters of weights with the {expected}; {base} has the {identity}")
    if not merge:
        return write_adapters(output, shape, lora, None if base is None else str(base), sizes, load)
    if base is None:
        raise ValueError(f"{folder} has adapters of random weights: there is no published model to merge them with")
    count = write_merged(output, base, shape, lora, sizes, load)
    tokenizer = Path(origin.tokenizer) if origin.tokenizer is not None else None
    for reason in copy_files({CONFIG_FILE: base / CONFIG_FILE, **files_to_carry(base, tokenizer)}, output):
        notify(f"note: {reason}")
    return count


def _borders_of_documents(tokenizer: Path | None) -> tuple[int | None, int | None]:
    """Return the tokens before and after a document; None for both if the tokenizer cannot be read here."""
    if tokenizer is None or not tokenizer.is_file():
        return None, None
    try:
        opened = FileTokenizer(str(tokenizer))
    except (ModuleNotFoundError, ValueError):
        return None, None
    return opened.begin_of_document, opened.end_of_document


def _weights_of(folder: Path) -> dict[str, WrittenTensor]:
    """Return the weights in the checkpoint `folder`, sorted by name, so that equal models become equal files.

    Raises:
        ValueError: A file is missing or cut short, or the checkpoint does not hold all of a weight.
    """
    try:
        index = read_index(folder)
    except DamagedPiece as error:
        raise ValueError(str(error)) from None
    faults = [fault for file in index.files if (fault := lacks(folder, file)) is not None]
    if faults:
        raise ValueError("; ".join(faults))
    found = {tensor.name.removeprefix(WEIGHT): tensor for tensor in index.tensors if tensor.name.startswith(WEIGHT)}
    for name, tensor in found.items():
        if sum(math.prod(box.sizes) for box in tensor.boxes) != math.prod(tensor.shape):
            raise ValueError(f"{folder} does not hold all of {name}")
    return dict(sorted(found.items()))


def _load(folder: Path, tensor: WrittenTensor) -> Tensor:
    """Return one weight as fp32. Raise ValueError if a file has changed since it was written."""
    values = torch.empty(tensor.shape)
    for box in tensor.boxes:
        place = tuple(slice(first, first + size) for first, size in zip(box.offsets, box.sizes, strict=True))
        try:
            values[place].copy_(values_of(read_box(folder, box), box))
        except DamagedPiece as error:
            raise ValueError(f"{folder}/{error}") from None
    return values


def main() -> int:
    """Read the command line and export. Return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m holmes_runtime.export", description="Write a checkpoint as a model for transformers."
    )
    parser.add_argument("checkpoint", type=Path, help="a step-... folder, or a folder of them: its newest")
    parser.add_argument("output", type=Path, help="the model's folder, which must be empty or not exist")
    parser.add_argument("--published", type=Path, help="the model that the run began with, if it has moved")
    parser.add_argument(
        "--merge", action="store_true", help="write adapters merged into the model they were trained on"
    )
    arguments = parser.parse_args()
    try:
        count = export(
            *(arguments.checkpoint, arguments.output, arguments.published, partial(print, file=sys.stderr)),
            merge=arguments.merge,
        )
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{count} tensors: {arguments.output}")
    if (note := whose_weights(newest_in(arguments.checkpoint) or arguments.checkpoint)) is not None:
        print(note)
    return 0


if __name__ == "__main__":
    sys.exit(main())
