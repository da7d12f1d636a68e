"""Adapters in the format of the peft library, and published models with adapters merged into their weights.

Source of names and settings: files written by peft 0.21.2.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from torch import Tensor

from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.config.trainable import Lora
from holmes_runtime.node.published_files.adapter_names import MODULES, adapted_weight, adapter_rows
from holmes_runtime.node.published_files.check_adapters import SETTINGS_FILE, TENSORS_FILE
from holmes_runtime.node.published_files.check_published import check_published
from holmes_runtime.node.published_files.needed_tensors import needed_tensors
from holmes_runtime.node.published_files.safetensors_header import SINGLE_FILE
from holmes_runtime.node.published_files.weight_names import is_transposed
from holmes_runtime.published.safetensors_files import TensorFolder, write_tensors
from holmes_runtime.published.write_model import published_values, write_rows

Load = Callable[[str], Tensor]
"""A function that maps the name of an adapter's parameter to its values, fp32."""


def write_adapters(
    folder: Path, shape: ModelShape, lora: Lora, base: str | None, sizes: Mapping[str, tuple[int, ...]], load: Load
) -> int:
    """Write the adapters with parameters of these `sizes`, in fp32. Return the number of tensors.

    `base` is the folder of the published model on which they were trained.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = {name: adapter_rows(shape, name, size[0]) for name, size in sizes.items()}
    count = write_rows(folder / TENSORS_FILE, "fp32", sizes, load, rows)
    modules = MODULES[shape.family]
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": lora.weight,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": shape.family == "gpt",
        "inference_mode": True,
        "target_modules": sorted(_shortest(modules[matrix], modules.values()) for matrix in lora.targets),
    }
    (folder / SETTINGS_FILE).write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
    return count


def _shortest(module: str, modules: Collection[str]) -> str:
    """Return the last word of `module`, as users of peft name it, or the whole name if several modules end with it."""
    last = module.rpartition(".")[2]
    return last if sum(each.endswith(f".{last}") for each in modules) == 1 else module


def write_merged(
    folder: Path, base: Path, shape: ModelShape, lora: Lora, sizes: Mapping[str, tuple[int, ...]], load: Load
) -> int:
    """Write the published model in `base` with alpha / rank B A added to each weight that has an adapter.

    Return the number of tensors. They have the precision of `base`, or fp32 if it has several. Only one tensor and its
    adapter are in memory. Tensors that the model does not need, such as masks saved by older libraries, are left out.

    Raises:
        ValueError: `base` is no model of `shape`.
    """
    stored, needed = check_published(base, shape), {name for name, _ in needed_tensors(shape)}
    published = TensorFolder({name: each for name, each in stored.items() if name in needed})
    kinds = {each.type_name for each in published.stored.values()}
    added = _adapters_by_weight(shape, sizes)

    def merged() -> Iterator[Tensor]:
        for name in published.stored:
            value = published.tensor(name)
            if name in added:
                a, b = added[name]
                (ordered,) = published_values(load(b), adapter_rows(shape, b, sizes[b][0]))
                update = lora.scale * ordered @ load(a)
                value = value.float() + (update.t() if is_transposed(name) else update)
            yield value

    folder.mkdir(parents=True, exist_ok=True)
    shapes = {name: each.shape for name, each in published.stored.items()}
    write_tensors(folder / SINGLE_FILE, kinds.pop() if len(kinds) == 1 else "F32", shapes, merged())
    return len(shapes)


def _adapters_by_weight(shape: ModelShape, sizes: Mapping[str, tuple[int, ...]]) -> Mapping[str, tuple[str, str]]:
    """Return the names of A and B of each adapter, by the name of the published weight."""
    names = (name.removesuffix(".b") for name in sizes if name.endswith(".b"))
    return {adapted_weight(adapter_rows(shape, f"{name}.b", 1)[0].name): (f"{name}.a", f"{name}.b") for name in names}
