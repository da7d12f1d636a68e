"""`python -m holmes_runtime.calibrate ...`: what a step of a model costs a slot of this host; prints YAML for job.yaml.

All slots of the host train at once, by the trainer itself, over the loopback: each alone, for the FLOP/s; as replicas,
for what a step does to parameters; in pipelines of two, for what an action takes beside computing. Where a slot has one
thread, its CPU time counts, which other work on the machine hardly changes; else the time that passes.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from holmes_runtime.config.model_shape import ModelShape, stage_parameters, step_flops
from holmes_runtime.config.run_settings import VALUE_BYTES, Precision
from holmes_runtime.trial import Trial, run_trial

UPDATE_BYTES = 28  # a parameter, beside the weight: as the planner's optimizer_s counts them
FEW, MANY = 2, 8  # micro-batches of the trials whose difference tells what one more of them takes


@dataclass(frozen=True)
class Measured:
    """What one round of trials says of a slot that has its cores to itself; overheads are None on GPUs."""

    flops_per_s: float
    action_s: float | None = None
    update_bytes_per_s: float | None = None


def measure(alone: Trial, slots: int, cores: int, seconds: float) -> Measured:
    """One round of trials: `slots` processes with the model of `alone` on so many cores, `seconds` for each trial."""
    flops = step_flops(alone.model, alone.num_microbatches * alone.micro_batch_size)
    computing_s = max(cost.computing_s for cost in run_trial(alone, seconds, slots))
    threads_per_core = 1.0 if alone.by_cpu_time else max(1.0, slots * alone.threads / cores)
    flops_per_s = flops / computing_s * threads_per_core
    if alone.device == "cuda":
        return Measured(flops_per_s)
    return Measured(flops_per_s, _action_s(alone, slots, seconds), _update_bytes_per_s(alone, slots, seconds))


def _action_s(alone: Trial, slots: int, seconds: float) -> float:
    """Of one forward or backward in a pipeline: by how much the rest of a step grows with each micro-batch."""
    two = replace(alone, model=replace(alone.model, num_layers=2), pp=2, dp=max(1, slots // 2))
    few_s, many_s = (
        statistics.median(
            cost.rest_s for cost in run_trial(replace(two, num_microbatches=count), seconds, two.pp * two.dp)
        )
        for count in (FEW, MANY)
    )
    return max(0.0, many_s - few_s) / (2 * (MANY - FEW))


def _update_bytes_per_s(alone: Trial, slots: int, seconds: float) -> float:
    """The rate at which what a step takes beside its micro-batches passes through its part of the optimizer."""
    replicas = replace(alone, dp=max(2, slots), num_microbatches=FEW)
    update_s = statistics.median(cost.update_s for cost in run_trial(replicas, seconds, replicas.dp))
    parameters = stage_parameters(alone.model, alone.model.num_layers, is_first=True, is_last=True)
    moved = parameters / replicas.dp * (UPDATE_BYTES + VALUE_BYTES[alone.value_type])
    return moved / update_s


def yaml_lines(rounds: Sequence[Measured]) -> Iterator[str]:
    """The medians of the rounds as job.yaml has them, with their spread as comments."""
    yield "compute:"
    yield f"  flops_per_s: {_with_spread([each.flops_per_s for each in rounds])}"
    actions_s = [each.action_s for each in rounds if each.action_s is not None]
    rates = [each.update_bytes_per_s for each in rounds if each.update_bytes_per_s is not None]
    if actions_s:
        yield "  overheads:"
        yield f"    action_s: {_with_spread(actions_s)}"
        yield f"    update_bytes_per_s: {_with_spread(rates)}"


def _with_spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3e}  # {min(values):.3e} to {max(values):.3e} in {len(values)} rounds"


def main() -> None:
    """Reads the command line, measures round after round, and prints what goes into job.yaml."""
    parser = argparse.ArgumentParser(
        prog="python -m holmes_runtime.calibrate", description="Measure what a step costs a slot of this host."
    )
    parser.add_argument("--family", choices=["gpt", "llama"], default="gpt")
    for name in ("--hidden-size", "--num-heads", "--seq-length", "--micro-batch-size"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--num-kv-heads", type=int, help="as many as --num-heads if not given")
    parser.add_argument("--ffn-hidden-size", type=int, help="four times --hidden-size if not given")
    parser.add_argument("--vocab-size", type=int, default=256)
    parser.add_argument("--factory", help="FILE.py:FUNCTION, as model.factory of the job")
    parser.add_argument("--precision", choices=get_args(Precision), default="fp32")
    parser.add_argument("--num-layers", type=int, default=2, help="of a stage")
    parser.add_argument("--seconds", type=float, default=0.5, help="how long each trial takes steps")
    parser.add_argument("--rounds", type=int, default=3, help="how often all is measured; medians count")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads, as threads_per_slot of the job")
    parser.add_argument("--slots", type=int, default=1, help="processes that share this machine and compute at once")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    arguments = parser.parse_args()

    cores = len(os.sched_getaffinity(0))
    alone = _trial(arguments)
    rounds = [measure(alone, arguments.slots, cores, arguments.seconds) for _ in range(arguments.rounds)]
    print("\n".join(yaml_lines(rounds)))


def _trial(arguments: argparse.Namespace) -> Trial:
    shape = ModelShape(
        arguments.family,
        num_layers=arguments.num_layers,
        hidden_size=arguments.hidden_size,
        num_heads=arguments.num_heads,
        num_kv_heads=arguments.num_kv_heads or arguments.num_heads,
        ffn_hidden_size=arguments.ffn_hidden_size or 4 * arguments.hidden_size,
        vocab_size=arguments.vocab_size,
        seq_length=arguments.seq_length,
        rope_theta=10000.0,
        factory=arguments.factory,
    )
    return Trial(shape, arguments.device, arguments.precision, arguments.threads, arguments.micro_batch_size)


if __name__ == "__main__":
    main()
