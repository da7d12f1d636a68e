"""The plan as command-line arguments for a trainer, so that it makes the planned ranks, stages and batches.

The command may contain `{tp}`, `{layout}` and the other names of `placeholders`; then nothing is appended. accelerate
reads its degrees from its environment, so they are set there unless the command sets them. Arguments are the values
that the plan decides and its prediction relies on: degrees, stages, batches, sharding, recomputation. The command
itself gives the shape of the model. Scripts for torch and DeepSpeed have no options in common, so they get none:
DeepSpeed's train_micro_batch_size_per_gpu is {micro_batch_size}, its gradient_accumulation_steps {num_microbatches}.
Options are as in Megatron-LM d98e8a64, torchtitan 0.3.0 and accelerate 1.15.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches

from holmes_core.errors import HolmesError
from holmes_core.records.plan import Plan
from holmes_core.records.trainer_settings import PLACEHOLDER

TITAN_SCHEDULES = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B"}
TITAN_SUBCOMMAND = "activation-checkpoint:"  # the last word, after all options
OF_ACCELERATE = {"tp", "dp_shard", "dp_replicate"}  # a command that uses one of these sets accelerate's degrees itself


def command_of(plan: Plan) -> tuple[str, ...]:
    """Return the trainer's command with the plan's settings. Raises HolmesError for an unknown placeholder."""
    trainer = plan.job.trainer
    assert trainer is not None
    values = placeholders(plan)
    named = trainer.placeholders
    for name in sorted(named - set(values)):
        near = get_close_matches(name, values, 1)
        known = [f"{{{each}}}" for each in near or values]
        raise HolmesError(
            f"job.yaml: trainer.command: {{{name}}} is not a setting of the plan",
            f"did you mean {known[0]}?" if near else f"there are {', '.join(known)}",
        )
    words = tuple(PLACEHOLDER.sub(lambda found: values[found[1]], word) for word in trainer.command)
    added = added_words(plan)
    if trainer.engine == "accelerate":
        return (*added, *words)
    at = _subcommand(words)
    return (*words[:at], *added, *words[at:])  # the user's own subcommand stays, after all options


def added_words(plan: Plan) -> tuple[str, ...]:
    """Return the words that a launch adds to the trainer's command; none if the command has placeholders for them."""
    trainer = plan.job.trainer
    if trainer is None or not trainer.command:
        return ()
    if trainer.engine == "accelerate":
        return () if trainer.placeholders & OF_ACCELERATE else engine_arguments(plan)
    if not trainer.takes_options:
        return ()
    arguments = engine_arguments(plan)
    return arguments if _subcommand(trainer.command) == len(trainer.command) else arguments[:-1]


def _subcommand(words: Sequence[str]) -> int:
    """Return the index of torchtitan's subcommand, or the number of words if it has none."""
    return next((at for at, word in enumerate(words) if word.startswith(TITAN_SUBCOMMAND)), len(words))


def placeholders(plan: Plan) -> Mapping[str, str]:
    """Return, by name, the settings that may stand in braces in the command."""
    numbers = {
        "tp": plan.tp,
        "pp": plan.pp,
        "dp": plan.engine_dp,
        "ep": plan.job.parallel.ep or 1,
        "cp": plan.job.cp,
        "dp_shard": max(1, plan.weight_shards // plan.job.cp),
        "dp_replicate": plan.dp // plan.weight_shards,
        "optimizer_instances": plan.optimizer_instances,
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
    """Return the stages in the form of `--pipeline-model-parallel-layout`: `Et*10|t*9|t*9|t*8L`.

    E is the embedding, t a layer, L the loss. Stage i is on pipeline rank i % pp.
    """
    stages = [f"t*{stage.num_layers}" for stage in plan.stages]
    return f"E{'|'.join(stages)}L"


def engine_arguments(plan: Plan) -> tuple[str, ...]:
    """Return the words that set the plan's values. They follow the command; for accelerate they come first."""
    words = {"megatron": _megatron, "torchtitan": _torchtitan, "accelerate": _accelerate}.get(plan.job.engine)
    return () if words is None else tuple(words(plan))


def _accelerate(plan: Plan) -> Iterator[str]:
    """Yield words that set the environment from which an accelerate command takes its degrees; none for DDP."""
    values: dict[str, object] = {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": plan.microbatches[0]}
    if plan.zero == 3:
        values |= {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": 2}
    if plan.zero == 3 or plan.tp > 1:
        values |= {
            "ACCELERATE_USE_PARALLELISM_CONFIG": "true",
            "PARALLELISM_CONFIG_DP_REPLICATE_SIZE": plan.dp // plan.weight_shards,
            "PARALLELISM_CONFIG_DP_SHARD_SIZE": plan.weight_shards,
            "PARALLELISM_CONFIG_TP_SIZE": plan.tp,
        }
    yield from ("env", *(f"{name}={value}" for name, value in values.items()))


def _megatron(plan: Plan) -> Iterator[str]:
    yield from ("--tensor-model-parallel-size", str(plan.tp))
    yield from ("--pipeline-model-parallel-size", str(plan.pp))
    yield from ("--context-parallel-size", str(plan.job.cp))
    yield from ("--micro-batch-size", str(plan.micro_batch_size))
    yield from ("--global-batch-size", str(plan.job.global_batch_size))
    yield from ("--seq-length", str(plan.job.model.seq_length))
    yield from ("--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather")
    if plan.optimizer_instances > 1:
        yield from ("--num-distributed-optimizer-instances", str(plan.optimizer_instances))
    if plan.pp > 1:
        yield from ("--pipeline-model-parallel-layout", megatron_layout(plan))
    if plan.tp > 1:
        yield "--sequence-parallel"
    if plan.job.model.experts is not None:
        yield from _megatron_experts(plan)
    if plan.recompute != "none":
        yield from ("--recompute-granularity", plan.recompute)
    if plan.recompute == "selective":  # the default is attention's core, of no use with a fused kernel
        experts = ("moe_act",) if plan.job.model.experts is not None else ()
        yield from ("--recompute-modules", "layernorm", *experts)
    if plan.recompute == "full":
        yield from ("--recompute-method", "uniform", "--recompute-num-layers", "1")


def _megatron_experts(plan: Plan) -> Iterator[str]:
    """Yield the arguments of expert parallelism as it is priced. A dispatcher named in the command stays."""
    assert plan.job.trainer is not None
    yield from ("--expert-model-parallel-size", str(plan.job.parallel.ep or 1))
    yield from ("--expert-tensor-parallel-size", str(plan.job.etp))  # the default is tp
    yield "--moe-grouped-gemm"
    if not any(word.startswith("--moe-token-dispatcher-type") for word in plan.job.trainer.command):
        yield from ("--moe-token-dispatcher-type", "alltoall")


def _torchtitan(plan: Plan) -> Iterator[str]:
    """Yield the arguments. The local batch is the samples of a replica per step. Modules are named as in Llama."""
    local = plan.micro_batch_size * (plan.microbatches[0] if plan.pp > 1 else 1)
    yield from ("--parallelism.tensor-parallel-degree", str(plan.tp))
    yield from ("--parallelism.pipeline-parallel-degree", str(plan.pp))
    yield from ("--parallelism.data-parallel-replicate-degree", str(plan.dp // plan.weight_shards))
    yield from ("--parallelism.data-parallel-shard-degree", str(max(1, plan.weight_shards // plan.job.cp)))
    yield from ("--parallelism.context-parallel-degree", str(plan.job.cp))
    yield from ("--parallelism.fsdp-reshard-after-forward", "always")  # by default a pipeline keeps weights whole
    yield from ("--training.local-batch-size", str(local))
    yield from ("--training.global-batch-size", str(plan.job.global_batch_size))
    yield from ("--training.seq-len", str(plan.job.model.seq_length))
    if plan.pp > 1:
        yield "--training.disable-cuda-graphs"  # pipelines refuse them
        yield from ("--parallelism.pipeline-parallel-schedule", TITAN_SCHEDULES[plan.schedule])
        yield from ("--parallelism.pipeline-parallel-microbatch-size", str(plan.micro_batch_size))
        parts = [[f"layers.{layer}" for layer in range(each.first_layer, each.stop_layer)] for each in plan.stages]
        parts[0].insert(0, "tok_embeddings")
        parts[-1] += ["norm", "lm_head"]
        yield from ("--parallelism.module-fqns-per-model-part", *(",".join(part) for part in parts))
    yield f"{TITAN_SUBCOMMAND}{plan.recompute}"
