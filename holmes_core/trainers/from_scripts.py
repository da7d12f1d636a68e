"""The command of a script with DeepSpeed, accelerate, Hugging Face's Trainer or only torch, as keys of job.yaml.

Such a script reads its own degrees and batches, so all its options stay in the command.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holmes_core.errors import HolmesError
from holmes_core.records.trainer_settings import TrainerName
from holmes_core.trainers.command_line import ACCELERATE, TrainerCommand, shown
from holmes_core.trainers.imported_job import (
    ImportedJob,
    OptionReader,
    OptionRow,
    OptionRule,
    job_sections,
    known,
    outer_rows,
    with_underscores,
)
from holmes_runtime.config.checks import shown as shown_value

# Arguments of Hugging Face's Trainer.
_TAKEN = {
    "--per_device_train_batch_size": "parallel.micro_batch_size",
    "--gradient_accumulation_steps": "global_batch_size",
    "--max_steps": "steps",
    "--gradient_checkpointing": "parallel.recompute",
    "--fsdp": "parallel.zero",
    **dict.fromkeys(("--bf16", "--fp16"), "precision"),
    **dict.fromkeys(("--deepspeed", "--deepspeed_config"), "the file with DeepSpeed's settings"),
}
_KEPT = ("--output_dir", "--logging_", "--save_", "--learning_rate", "--lr_", "--warmup_", "--weight_decay", "--seed")
# Options of `accelerate launch` that place ranks; its others change the training, and nothing passes them on.
_PLACING = {
    *("--num_processes", "--num_machines", "--machine_rank", "--main_process_ip", "--main_process_port", "--multi_gpu"),
    *("--same_network", "--rdzv_backend", "--rdzv_conf", "--gpu_ids", "--num_cpu_threads_per_process", "--quiet"),
    *("--max_restarts", "--monitor_interval"),
}
_PLANNED_SETTINGS = {
    *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "bf16", "fp16"),
    "zero_optimization",
}
_BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def settings_file(command: TrainerCommand) -> str | None:
    """Return the name of the file with DeepSpeed's settings, None if the command names none."""
    options = OptionReader(command.options, with_underscores)
    files = (*options.values("--deepspeed_config"), *options.values("--deepspeed"))
    return files[0] if files else None


def import_script(command: TrainerCommand, engine: TrainerName, settings: Mapping[str, Any]) -> ImportedJob:
    """Return the job that the command fixes; `settings`: DeepSpeed's, from its file.

    Raises:
        HolmesError: A setting cannot be planned, or a launch would lose it.
    """
    options = OptionReader(command.options, with_underscores)
    start = OptionReader(command.start_options if command.starter == ACCELERATE else (), with_underscores)
    _check_start_options(start)
    mixed = start.text("--mixed_precision")
    words, rows = options.sorted_by(_rule)
    micro, accumulated, batch = _batches(options, settings)
    dp = command.num_ranks
    if micro is not None and accumulated is not None and batch is not None:
        dp = _replicas(micro, accumulated, batch, dp)
    elif micro is not None and dp is not None:
        batch = batch or micro * dp * (accumulated or 1)
    zero = _zero(settings)
    if engine == "accelerate":
        zero = 3 if options.has("--fsdp") or start.has("--use_fsdp") else 1
    again = options.has("--gradient_checkpointing")
    recompute = "full" if again and options.values("--gradient_checkpointing")[:1] in ((), ("True",)) else None
    parallel = known(tp=1, pp=1, dp=dp, micro_batch_size=micro, recompute=recompute, zero=zero)
    precision = next(
        (name for name in ("bf16", "fp16") if options.has(f"--{name}") or _is_on(settings, name) or mixed == name),
        None,
    )
    sections = job_sections(command, engine, words, known(ACCELERATE_MIXED_PRECISION=mixed))
    data = {
        "model": {},
        **known(global_batch_size=batch, steps=options.whole("--max_steps", least=-1), precision=precision),
        "parallel": parallel,
    }
    if data.get("steps", 1) == -1:
        del data["steps"]  # the Trainer's default: as many as its epochs take
    return ImportedJob(data | sections, (*outer_rows(command), *rows, *_setting_rows(settings)), tuple(parallel))


def _rule(name: str) -> OptionRule:
    if name in _TAKEN:
        return OptionRule("taken", _TAKEN[name])
    return OptionRule("kept" if name.startswith(_KEPT) else "not understood")


def _check_start_options(options: OptionReader) -> None:
    """Raise HolmesError for an option of `accelerate launch` that changes the training and would be lost."""
    for option in options.options:
        if options.spelled(option.name) not in (*_PLACING, "--mixed_precision", "--use_fsdp"):
            what = f"command: accelerate launch {shown(' '.join(option.words))}: changes more than where ranks run"
            raise HolmesError(what, "give that setting to Accelerator(...) in the script, and leave the option out")


def _batches(options: OptionReader, settings: Mapping[str, Any]) -> tuple[int | None, int | None, int | None]:
    """Return micro-batch, micro-batches a step, and batch of a step, as settings or arguments give them."""
    batch, micro, accumulated = (_setting(settings, key) for key in _BATCH)
    micro = options.whole("--per_device_train_batch_size") or micro
    return micro, options.whole("--gradient_accumulation_steps") or accumulated, batch


def _setting(settings: Mapping[str, Any], key: str) -> int | None:
    value = settings.get(key)
    if value is None or value == "auto":
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 2**31:
        raise HolmesError(f"DeepSpeed's settings: {key} is {shown_value(value)}, no whole number", "correct it")
    return value


def _replicas(micro: int, accumulated: int, batch: int, num_ranks: int | None) -> int:
    product = micro * accumulated
    if batch % product or num_ranks not in (None, batch // product):
        what = f"DeepSpeed's settings: train_batch_size {batch} is not {micro} x {accumulated} x {num_ranks or 'ranks'}"
        raise HolmesError(what, "correct one of train_micro_batch_size_per_gpu, gradient_accumulation_steps and ranks")
    return batch // product


def _zero(settings: Mapping[str, Any]) -> int | None:
    """Return the ZeRO stage to plan for the settings."""
    if not settings:
        return None
    stage = _zero_section(settings).get("stage", 0)
    if stage not in (0, 1, 2):
        what = f"DeepSpeed's settings: zero_optimization.stage is {shown_value(stage)}: ZeRO-1 and ZeRO-2 are planned"
        raise HolmesError(
            what, "plan ZeRO-3 as FSDP: `--engine torch --set parallel.zero=3`, with a script that uses FSDP"
        )
    for key in ("pipeline", "tensor_parallel"):
        if settings.get(key):
            raise HolmesError(
                f"DeepSpeed's settings: {key}: not planned: each rank holds the whole model", "leave it out"
            )
    return 1


def _is_on(settings: Mapping[str, Any], key: str) -> bool:
    section = settings.get(key)
    return isinstance(section, dict) and section.get("enabled") is True


def _setting_rows(settings: Mapping[str, Any]) -> list[OptionRow]:
    """Return a row for each section of DeepSpeed's settings."""
    rows = []
    for key, value in settings.items():
        words = shown(f"{key}: {shown_value(value)}")
        rows.append(OptionRow(words, "taken" if key in _PLANNED_SETTINGS else "not understood", "DeepSpeed's settings"))
    zero = _zero_section(settings)
    stage = zero.get("stage", 0)
    if settings and stage != 1:
        note = f"counted as stage 1: {'gradients are sharded, too' if stage else 'no states are sharded'}, in truth"
        rows.append(OptionRow(f"zero_optimization.stage: {stage}", "not counted", note))
    rows += [
        OptionRow(f"zero_optimization.{key}", "not counted", "counted on the GPU")
        for key in ("offload_optimizer", "offload_param")
        if key in zero
    ]
    return rows


def _zero_section(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    section = settings.get("zero_optimization") or {}
    if not isinstance(section, dict):
        raise HolmesError(f"DeepSpeed's settings: zero_optimization is {shown_value(section)}", "give keys and values")
    return section
