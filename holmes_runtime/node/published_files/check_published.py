"""The comparison of a job's model with the published one that it starts from. Free of torch.

`holmes plan` makes it if the folder exists; every node makes it before its ranks start, and so does each rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.node.data_files.home_folder import read_run_config
from holmes_runtime.node.published_files.architectures import CONFIG_FILE, read_shape
from holmes_runtime.node.published_files.check_adapters import check_adapters
from holmes_runtime.node.published_files.needed_tensors import check_tensors
from holmes_runtime.node.published_files.safetensors_header import INDEX_FILE, SINGLE_FILE, StoredTensor, read_headers


class PickledWeights(ValueError):
    """A folder's weights are a pickle, which is not read because it may run any code."""


def wrong_weights(run_config: str) -> tuple[str, ...]:
    """Return why the run of this configuration cannot begin with the published files on this host, if it would.

    A missing folder is left to another check, which covers all files that job.yaml names.
    """
    config = read_run_config(run_config)
    weights = Path(config.weights) if config.weights is not None and config.reads_weights else None
    adapters, reasons = config.first_adapters, []
    try:
        if weights is not None and weights.exists():
            check_published(weights, config.model)
    except (OSError, ValueError) as error:
        reasons.append(f"weights: {error}")
    try:
        if config.lora is not None and adapters is not None and Path(adapters).exists():
            check_adapters(Path(adapters), config.model, config.lora)
    except (OSError, ValueError) as error:
        reasons.append(f"trainable.lora.adapters: {error}")
    return tuple(reasons)


def check_published(folder: Path, shape: ModelShape) -> Mapping[str, StoredTensor]:
    """Return the tensors by name of the model in `folder`, which must have this `shape`.

    Raises:
        ValueError: it is another model, computed differently, or incomplete; it names file, key and value.
        OSError: a file cannot be read.
    """
    check_config(folder, shape)
    return read_tensors(folder, shape)


def check_config(folder: Path, shape: ModelShape) -> None:
    """Raise ValueError unless config.json in `folder` is for a model of `shape`, computed as this runtime does."""
    published, ours = asdict(read_shape(folder, shape.seq_length)), asdict(shape.in_full)
    if shape.experts is not None:  # every layer has experts, and a Mixtral's file has no other width
        ours.pop("ffn_hidden_size")
    wrong = [f"{key} {published[key]}, not {value}" for key, value in ours.items() if published[key] != value]
    if wrong:
        raise ValueError(
            f"{folder / CONFIG_FILE} has {'; '.join(wrong)} as in job.yaml; `holmes model {folder}` prints what fits"
        )


def read_tensors(folder: Path, shape: ModelShape) -> Mapping[str, StoredTensor]:
    """Return the tensors by name in `folder`, after checking that a model of `shape` has all it needs.

    Raises:
        PickledWeights: the weights are only in a pickle.
        FileNotFoundError: the folder has no weights.
        ValueError: a tensor is missing or belongs to another model.
    """
    if not any((folder / name).exists() for name in (SINGLE_FILE, INDEX_FILE)):
        pickled = next(folder.glob("pytorch_model*.bin*"), None)
        if pickled is not None:
            raise PickledWeights(f"{folder} has its weights only in {pickled.name}, a pickle, which is not read")
        raise FileNotFoundError(f"{folder} has neither {SINGLE_FILE} nor {INDEX_FILE}")
    stored = read_headers(folder)
    check_tensors(folder, stored, shape)
    return stored
