"""`python -m holmes_runtime.export CHECKPOINT FOLDER`: write a checkpoint's weights as a model for transformers.

Numbers have the precision that the run trained in. Names and layouts follow the published architecture that computes
the same function (docs/models.md). Adapters are written as the peft library reads them, or merged with the published
model that they were trained on.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from holmes_runtime.carried_files import copy_files, files_to_carry
from holmes_runtime.checkpoint.piece_loading import values_of
from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.config.strict_json import decode
from holmes_runtime.config.trainable import Lora
from holmes_runtime.data.same_weights import identity_of
from holmes_runtime.node.checkpoint_files.checkpoint_folder import newest_in
from holmes_runtime.node.checkpoint_files.description import Description, whose_weights
from holmes_runtime.node.checkpoint_files.piece_index import DamagedPiece, WrittenTensor, lacks, read_box, read_index
from holmes_runtime.node.data_files.text import FileTokenizer
from holmes_runtime.node.published_files.architectures import CONFIG_FILE
from holmes_runtime.published.carried_model import read_carried
from holmes_runtime.published.peft_adapters import write_adapters, write_merged
from holmes_runtime.published.write_model import write_model

WEIGHT = "weight/"


Tell = Callable[[str], None]
"""A function that receives messages on files and settings that the export took over or left out."""


def _silent(_: str) -> None:
    """Ignore a message."""


def export(
    checkpoint: Path, output: Path, published: Path | None = None, tell: Tell = _silent, merge: bool = False
) -> int:
    """Write the model of `checkpoint` to `output` and return the number of its tensors.

    `checkpoint` is one checkpoint, or the folder of a run's checkpoints, whose newest is taken. Only one weight at a
    time is in memory. Configuration, generation settings and tokenizer, which training does not change, come from the
    published model that the run began with, or from `published` if that model is elsewhere now. If the checkpoint
    holds adapters alone, they are written; with `merge`, the published model with them in its weights.

    Raises:
        ValueError: `checkpoint` is no checkpoint, `published` is another model, or `output` exists and is not empty.
            With `merge`: the checkpoint holds no adapters, or the published model is not there.
    """
    if output.is_file() or (output.is_dir() and any(output.iterdir())):
        raise ValueError(f"{output} exists")
    folder = newest_in(checkpoint) or checkpoint
    description = Description.read(folder)
    shape: ModelShape = decode(ModelShape, {"preset": None, **description.shape}, "shape")
    origin = description.origin
    if description.lora is not None:
        return _export_adapters(folder, output, shape, description, published, tell, merge)
    if merge:
        raise ValueError(f"{folder} holds all weights and no adapters: nothing is to be merged, leave --merge out")
    model = read_carried(published, shape) if published is not None else None
    if published is None and origin.weights is not None:
        try:
            model = read_carried(Path(origin.weights), shape)
        except (OSError, ValueError) as error:
            tell(
                f"note: without the context length, token ids, generation settings and tokenizer of {origin.weights}, "
                f"which the run began with: {error}; to take them from a copy: --published FOLDER"
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
        tell(f"note: {reason}")
    carried = ([CONFIG_FILE] if model is not None else []) + [name for name in files if (output / name).exists()]
    if carried:
        tell(f"taken over: {', '.join(carried)}")
    return count


def _export_adapters(
    folder: Path,
    output: Path,
    shape: ModelShape,
    description: Description,
    published: Path | None,
    tell: Tell,
    merge: bool,
) -> int:
    """Write the adapters in the checkpoint `folder`, or the model that they were trained on merged with them."""
    said, origin, saved = description.lora or {}, description.origin, _weights_of(folder)
    lora: Lora = decode(
        Lora, {"adapters": None, **{key: said.get(key) for key in ("rank", "targets", "alpha")}}, "lora"
    )
    sizes = {name: tensor.shape for name, tensor in saved.items()}
    base = published or (Path(origin.weights) if origin.weights is not None else None)

    def load(name: str) -> Tensor:
        return _load(folder, saved[name])

    if base is not None and (merge or published is not None or base.is_dir()):
        identity, expected = identity_of(base, shape), said.get("frozen_weights")
        if identity != expected:
            raise ValueError(f"{folder} has adapters of weights with the {expected}; {base} has the {identity}")
    if not merge:
        return write_adapters(output, shape, lora, None if base is None else str(base), sizes, load)
    if base is None:
        raise ValueError(f"{folder} has adapters of random weights: no published model is there to merge them with")
    count = write_merged(output, base, shape, lora, sizes, load)
    tokenizer = Path(origin.tokenizer) if origin.tokenizer is not None else None
    for reason in copy_files({CONFIG_FILE: base / CONFIG_FILE, **files_to_carry(base, tokenizer)}, output):
        tell(f"note: {reason}")
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
        ValueError: A file is missing or cut, or the checkpoint does not hold all of a weight.
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
    """Return one weight as fp32. Raises ValueError if a file is not as it was written."""
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
    parser = argparse.ArgumentParser(prog="python -m holmes_runtime.export", description="A model for transformers.")
    parser.add_argument("checkpoint", type=Path, help="a step-... folder, or the folder of all: its newest")
    parser.add_argument("output", type=Path, help="the model's folder, which must not exist or be empty")
    parser.add_argument(
        "--published", type=Path, help="the model the run began with, where it is not where `weights` named it"
    )
    parser.add_argument(
        "--merge", action="store_true", help="of adapters: write the model that they were trained on, with them in it"
    )
    arguments = parser.parse_args()
    try:
        count = export(
            *(arguments.checkpoint, arguments.output, arguments.published, lambda said: print(said, file=sys.stderr)),
            merge=arguments.merge,
        )
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{count} tensors: {arguments.output}")
    if (said := whose_weights(newest_in(arguments.checkpoint) or arguments.checkpoint)) is not None:
        print(said)
    return 0


if __name__ == "__main__":
    sys.exit(main())
