"""The command of torchtitan 0.3.0 as keys of job.yaml: a configuration by name, and overrides of its fields."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple, get_args

from holmes_core.errors import HolmesError
from holmes_core.trainers.command_line import TrainerCommand, shown, split_options
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
from holmes_runtime.config.run_settings import Recompute


class _Config(NamedTuple):
    """The settings of a configuration function that a plan reads."""

    preset: str
    local_batch_size: int
    steps: int
    recompute: str
    tp: int


# torchtitan 0.3.0, models/llama3/config_registry.py; each has sequences of 8192 tokens.
_CONFIGS = {
    "llama3_8b": _Config("llama-3-8b", 1, 1000, "selective", 1),
    "llama3_70b": _Config("llama-3-70b", 8, 1000, "full", 8),
    "llama3_405b": _Config("llama-3.1-405b", 2, 3000, "full", 8),
}
_PARALLELISM = "--parallelism."
_SCHEDULES = {"1f1b": "1f1b", "gpipe": "gpipe", "interleaved1f1b": "interleaved"}
_SUBCOMMAND = "activation-checkpoint:"  # with its own options behind it, and no others
_TAKEN = {
    **dict.fromkeys(("--module", "--config"), "model"),
    "--training.steps": "steps",
    "--training.mixed_precision_param": "precision",
}
_DECIDED = {
    "--training.seq_len": "model.seq_length",
    "--parallelism.fsdp_reshard_after_forward": "always: weights are gathered again for the backward",
    "--parallelism.tensor_parallel_degree": "parallel.tp",
    "--parallelism.pipeline_parallel_degree": "parallel.pp",
    "--parallelism.data_parallel_shard_degree": "parallel.dp",
    "--parallelism.data_parallel_replicate_degree": "parallel.dp",
    "--parallelism.context_parallel_degree": "parallel.cp",
    "--parallelism.pipeline_parallel_schedule": "parallel.schedule",
    "--parallelism.pipeline_parallel_microbatch_size": "parallel.micro_batch_size",
    "--training.local_batch_size": "parallel.micro_batch_size",
    "--training.global_batch_size": "global_batch_size",
    "--parallelism.module_fqns_per_model_part": "parallel.layers",
    **dict.fromkeys(
        (
            "--parallelism.pipeline_parallel_layers_per_stage",
            "--parallelism.pipeline_parallel_first_stage_less_layers",
            "--parallelism.pipeline_parallel_last_stage_less_layers",
        ),
        "the plan cuts the layers",
    ),
}
_MAX_PARTS = 10_000
_REFUSED = {
    "--parallelism.expert_parallel_degree": "mixtures of experts are not planned",
    "--parallelism.pipeline_parallel_schedule_csv": "a schedule from a file is not planned",
}
_HARMLESS = dict.fromkeys(_REFUSED, "1")
_NOT_COUNTED = {
    "--parallelism.enable_sequence_parallel": "sequences are counted as split over tensor ranks",
    "--training.enable_cpu_offload": "counted on the GPU: less memory there in truth",
    "--training.dtype": "weights that are sharded are counted in fp32",
}
_KEPT_PREFIXES = (
    *("--optimizer.", "--lr_scheduler.", "--metrics.", "--checkpoint.", "--dataloader.", "--profiler.", "--validator."),
    *("--debug.", "--tokenizer.", "--dump_folder", "--hf_assets_path", "--training.max_norm", "--compile."),
    *("--training.disable_cuda_graphs", "--training.gc_freq", "--comm."),
)


def import_torchtitan(command: TrainerCommand) -> ImportedJob:
    """Return the job that the command fixes.

    Raises:
        HolmesError: A setting cannot be planned.
    """
    words = [word for option in command.options for word in option.words]
    at = next((at for at, word in enumerate(words) if word.startswith(_SUBCOMMAND)), len(words))
    words, behind = words[:at], words[at:]
    options = OptionReader(split_options(words), with_underscores)
    options.refuse(_REFUSED, _HARMLESS, "leave it out: `holmes plan` takes such a job.yaml")
    name = options.text("--config") or ""
    config = next((each for start, each in _CONFIGS.items() if re.fullmatch(rf"{start}(_.*)?", name)), None)
    kept, rows = options.sorted_by(_rule)
    seq_length = options.whole("--training.seq_len") or (8192 if config else None)
    model = known(preset=config.preset if config else None, seq_length=seq_length)
    if config is not None and name not in _CONFIGS:
        rows.append(OptionRow(f"--config {shown(name)}", "not counted", f"counted as {config.preset} in 16 bits"))
    steps = options.whole("--training.steps") or (config.steps if config else None)
    parallel, batch = _parallel(options, config, command.num_ranks)
    if behind:
        recompute = behind[0].removeprefix(_SUBCOMMAND)
        is_planned = recompute in get_args(Recompute)
        rows.append(OptionRow(shown(" ".join(behind)), "taken" if is_planned else "not counted", "parallel.recompute"))
        parallel = {**parallel, **({"recompute": recompute} if is_planned else {})}
    precision = "fp32" if options.text("--training.mixed_precision_param") == "float32" else "bf16"
    data = {"model": model, **known(global_batch_size=batch, steps=steps), "precision": precision, "parallel": parallel}
    rows = [*outer_rows(command), *rows]
    sections = job_sections(command, "torchtitan", (*kept, *behind))
    return ImportedJob(data | sections, rows, ("recompute",) if behind else ())


def _rule(name: str) -> OptionRule:
    if name in _TAKEN:
        return OptionRule("taken", _TAKEN[name])
    if name in _DECIDED:
        return OptionRule("decided", _DECIDED[name], _MAX_PARTS if name.endswith("model_part") else 1)
    if name in _NOT_COUNTED:
        return OptionRule("not counted", _NOT_COUNTED[name])
    return OptionRule("kept" if name.startswith(_KEPT_PREFIXES) or name in _HARMLESS else "not understood")


def _parallel(
    options: OptionReader, config: _Config | None, num_ranks: int | None
) -> tuple[Mapping[str, object], int | None]:
    """Return the section `parallel` and the batch of a step; None where neither command nor function shows it."""
    tp = options.whole(f"{_PARALLELISM}tensor_parallel_degree") or (config.tp if config else 1)
    pp = options.whole(f"{_PARALLELISM}pipeline_parallel_degree") or 1
    shards = options.whole(f"{_PARALLELISM}data_parallel_shard_degree", least=-1) or -1
    copies = options.whole(f"{_PARALLELISM}data_parallel_replicate_degree") or 1
    cp = options.whole(f"{_PARALLELISM}context_parallel_degree") or 1
    dp = shards * copies if shards > 0 else num_ranks // (tp * pp * cp) if num_ranks else None
    local = options.whole("--training.local_batch_size") or (config.local_batch_size if config else None)
    batch = options.whole("--training.global_batch_size", least=-1)
    if batch is None or batch < 1:
        batch = local * dp if local is not None and dp is not None else None
    micro = local if pp == 1 else options.whole(f"{_PARALLELISM}pipeline_parallel_microbatch_size") or 1
    fixed = known(tp=tp, pp=pp, dp=dp, cp=cp, micro_batch_size=micro, zero=3)
    if config is not None:
        fixed["recompute"] = config.recompute
    if pp > 1:
        fixed |= _stages(options)
    return fixed, batch


def _stages(options: OptionReader) -> dict[str, object]:
    """Return the schedule of a pipeline, and the layers of its parts where the command names their modules."""
    name = options.text(f"{_PARALLELISM}pipeline_parallel_schedule") or "1F1B"
    schedule = _SCHEDULES.get(name.lower())
    if schedule is None:
        what = f"command: {_PARALLELISM}pipeline_parallel_schedule {shown(name)}: that schedule is not planned"
        raise HolmesError(what, f"choose {', '.join(('1F1B', 'GPipe', 'Interleaved1F1B'))}")
    parts = options.values(f"{_PARALLELISM}module_fqns_per_model_part")
    layers = [len(re.findall(r"\blayers\.[0-9]+", part)) for part in parts]
    return {"schedule": schedule, **({"layers": layers} if layers else {})}
