"""Check that a folder holds the adapters of a job, as the peft library writes them. Free of torch.

Source of the settings: LoraConfig of peft 0.21.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from holmes_runtime.config.bounded_file import read_json_object
from holmes_runtime.config.checks import shown
from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.config.trainable import Lora
from holmes_runtime.node.published_files.adapter_names import adapter_rows, adapter_sizes
from holmes_runtime.node.published_files.safetensors_header import StoredTensor, check_tensor, read_header

SETTINGS_FILE = "adapter_config.json"
TENSORS_FILE = "adapter_model.safetensors"
MAX_SETTINGS_BYTES = 2**20
PLAIN_STARTS = (None, True, False, "gaussian", "eva", "orthogonal")  # others also change the frozen weights
# Settings that do not change what the tensors compute, or whose change shows in the tensors' names. All others must be
# off: known ones, such as `use_dora`, and future ones.
HARMLESS = {
    *("peft_type", "r", "lora_alpha", "bias", "init_lora_weights", "target_modules", "fan_in_fan_out", "lora_dropout"),
    *("task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode"),
    *("exclude_modules", "layers_to_transform", "layers_pattern", "megatron_core", "qalora_group_size"),
    *("runtime_config", "eva_config", "corda_config", "ensure_weight_tying"),
}


def check_adapters(folder: Path, shape: ModelShape, lora: Lora) -> Mapping[str, StoredTensor]:
    """Return the tensors by name in `folder`, which must be exactly the adapters `lora` of a model of `shape`.

    Raises:
        ValueError: they are not, or are computed differently, or are incomplete; it names file, key and value.
        OSError: a file cannot be read.
    """
    file = folder / SETTINGS_FILE
    settings = read_json_object(file, MAX_SETTINGS_BYTES)
    wanted = {"peft_type": "LORA", "r": lora.rank, "lora_alpha": lora.weight, "bias": "none"}
    for key, value in wanted.items():
        if settings.get(key) != value:
            of_job = {"r": "rank", "lora_alpha": "alpha"}.get(key)
            rule = f"job.yaml has {of_job} {value:g}" if of_job else f"only {value} is trained here"
            raise ValueError(f"{file}: {key} is {shown(settings.get(key))}, {rule}")
    for key in sorted(settings.keys() - HARMLESS):
        if settings[key]:
            raise ValueError(f"{file}: {key:.60} is {shown(settings[key])}, which is not trained here")
    if settings.get("init_lora_weights") not in PLAIN_STARTS:
        raise ValueError(f"{file}: init_lora_weights is {shown(settings['init_lora_weights'])}: frozen weights change")
    return _check_tensors(folder / TENSORS_FILE, shape, lora)


def _check_tensors(file: Path, shape: ModelShape, lora: Lora) -> Mapping[str, StoredTensor]:
    stored, needed = read_header(file), set()
    for name, size in adapter_sizes(shape, lora):
        tensor = adapter_rows(shape, name, size[0])[0].name
        found = stored.get(tensor)
        if found is None:
            raise ValueError(f"{file} has no tensor {tensor}, which trainable.lora.targets name")
        check_tensor(tensor, found, size)
        needed.add(tensor)
    others = stored.keys() - needed
    if others:
        raise ValueError(f"{file} has {min(others):.120}, which belongs to no matrix of trainable.lora.targets")
    return stored
