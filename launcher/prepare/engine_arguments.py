"""The plan in a trainer's own words: arguments by which it makes the ranks, stages and batches that are planned.

Words of the command may hold `{tp}`, `{layout}` and the other names of `placeholders`; then nothing is appended.
Options as Megatron-LM d98e8a64, torchtitan 0.3.0 and accelerate 1.15.0 read them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches

from holmes_core.errors import HolmesError
from holmes_core.records.plan import Plan

PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
TITAN_SCHEDULES = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B"}


def command_of(plan: Plan) -> tuple[str, ...]:
    """Return the trainer's command with the plan's settings. Raises HolmesError for a placeholder that has no value."""
    trainer = plan.job.trainer
    assert trainer is not None
    values = placeholders(plan)
    named = {name for word in trainer.command for name in PLACEHOLDER.findall(word)}
    for name in sorted(named - set(values)):
        near = get_close_matches(name, values, 1)
        known = [f"{{{each}}}" for each in near or values]
        raise HolmesError(
            f"job.yaml: trainer.command: {{{name}}} is no setting of a plan",
            f"did you mean {known[0]}?" if near else f"there are {', '.join(known)}",
        )
    words = tuple(PLACEHOLDER.sub(lambda found: values[found[1]], word) for word in trainer.command)
    if named:
        return words
    before = _accelerate(plan) if trainer.engine == "accelerate" else ()
    return (*before, *words, *_appended(plan))


def placeholders(plan: Plan) -> Mapping[str, str]:
    """Return, by name, the settings that words of the command may hold."""
    replicas = plan.dp // plan.weight_shards
    numbers = {
        "tp": plan.tp,
        "pp": plan.pp,
        "dp": plan.dp,
        "dp_shard": plan.weight_shards,
        "dp_replicate": replicas,
        "chunks": plan.chunks,
        "micro_batch_size": plan.micro_batch_size,
        "num_microbatches": plan.microbatches[0],
        "global_batch_size": plan.job.global_batch_size,
        "seq_length": plan.job.model.seq_length,
        "steps": plan.job.steps,
    }
    layers = ",".join(str(stage.num_layers) for stage in plan.stages)
    texts = {"layers": layers, "layout": megatron_layout(plan), "schedule": plan.schedule, "recompute": plan.recompute}
    return {**{name: str(value) for name, value in numbers.items()}, **texts}


def megatron_layout(plan: Plan) -> str:
    """Return the stages as `--pipeline-model-parallel-layout` has them: `Et*10|t*9|t*9|t*8L`.

    E is the embedding, t a layer, L the loss. Stage i is on pipeline rank i % pp.
    """
    stages = [f"t*{stage.num_layers}" for stage in plan.stages]
    return f"E{'|'.join(stages)}L"


def _accelerate(plan: Plan) -> tuple[str, ...]:
    """Return the words before a command of accelerate, which takes degrees from the environment."""
    values = {
        "ACCELERATE_USE_PARALLELISM_CONFIG": "true",
        "PARALLELISM_CONFIG_DP_REPLICATE_SIZE": plan.dp // plan.weight_shards,
        "PARALLELISM_CONFIG_DP_SHARD_SIZE": plan.weight_shards,
        "PARALLELISM_CONFIG_TP_SIZE": plan.tp,
    }
    return ("env", *(f"{name}={value}" for name, value in values.items()))


def _appended(plan: Plan) -> tuple[str, ...]:
    """Return the arguments that set the plan's degrees, stages and batches; a script of torch has none of its own."""
    options = {"megatron": _megatron, "torchtitan": _torchtitan}.get(plan.job.engine)
    return () if options is None else tuple(word for words in options(plan) for word in words)


def _megatron(plan: Plan) -> list[tuple[str, ...]]:
    words: list[tuple[str, ...]] = [
        ("--tensor-model-parallel-size", str(plan.tp)),
        ("--pipeline-model-parallel-size", str(plan.pp)),
        ("--micro-batch-size", str(plan.micro_batch_size)),
        ("--global-batch-size", str(plan.job.global_batch_size)),
        ("--use-distributed-optimizer",),
        ("--overlap-grad-reduce",),
        ("--overlap-param-gather",),
    ]
    if plan.pp > 1:
        words.append(("--pipeline-model-parallel-layout", megatron_layout(plan)))
    if plan.tp > 1:
        words.append(("--sequence-parallel",))
    if plan.recompute == "full":
        words.append(
            ("--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1")
        )
    elif plan.recompute == "selective":
        words.append(("--recompute-granularity", "selective"))
    return words


def _torchtitan(plan: Plan) -> list[tuple[str, ...]]:
    """Local batch: the samples of a replica in a step. Parts are named as Llama's modules are."""
    words: list[tuple[str, ...]] = [
        ("--parallelism.tensor-parallel-degree", str(plan.tp)),
        ("--parallelism.pipeline-parallel-degree", str(plan.pp)),
        ("--parallelism.data-parallel-replicate-degree", str(plan.dp // plan.weight_shards)),
        ("--parallelism.data-parallel-shard-degree", str(plan.weight_shards)),
    ]
    if plan.pp == 1:
        local = ("--training.local-batch-size", str(plan.micro_batch_size))
        return [*words, local, ("--training.global-batch-size", str(plan.job.global_batch_size))]
    parts = [[f"layers.{layer}" for layer in range(each.first_layer, each.stop_layer)] for each in plan.stages]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "lm_head"]
    return [
        *words,
        ("--parallelism.pipeline-parallel-schedule", TITAN_SCHEDULES[plan.schedule]),
        ("--parallelism.pipeline-parallel-microbatch-size", str(plan.micro_batch_size)),
        ("--training.local-batch-size", str(plan.micro_batch_size * plan.microbatches[0])),
        ("--parallelism.module-fqns-per-model-part", *(",".join(part) for part in parts)),
    ]
