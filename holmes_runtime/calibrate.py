"""`python -m holmes_runtime.calibrate ...`: measure the cost of a model's step here, and print YAML for job.yaml.

All slots of the host train at the same time, with the real trainer. First each slot is a run of its own, which gives
its FLOP/s. On CPUs the slots then also train over the loopback: as replicas, for the rate of the parameter update, and
in pipelines of two stages, for the overhead of an action and the slowdown of a backward that zero-bubble splits.

A CPU slot of one thread is measured in CPU time, which other work on the machine hardly changes, and any other slot in
elapsed time. With `--device cuda` a slot is a GPU. Its layers are then bf16 and compiled by default, as in a job.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import torch

from holmes_runtime.config.model_shape import ModelShape, stage_parameters, step_flops
from holmes_runtime.config.run_settings import VALUE_BYTES, Precision
from holmes_runtime.config.schedule import ScheduleName
from holmes_runtime.trial import Cost, Trial, run_trial

UPDATE_BYTES = 28  # per parameter, in addition to its weight, as in the planner's optimizer_s
FEW, MANY = 2, 8  # micro-batches of two trials; their difference gives the cost of one


@dataclass(frozen=True)
class CalibrationRound:
    """Results of one round of trials, for a slot with its own cores. Overheads are None on GPUs."""

    flops_per_s: float
    action_s: float | None = None
    update_bytes_per_s: float | None = None
    split_factor: float | None = None


def measure(alone: Trial, slots: int, cores: int, seconds: float, job_layers: int) -> CalibrationRound:
    """Run a round of trials: `slots` processes with the model of `alone` on `cores` cores, `seconds` for each trial.

    On GPUs the FLOP/s are of a model with `job_layers` layers.
    """

    def computing_s(num_layers: int) -> float:
        trial = replace(alone, model=replace(alone.model, num_layers=num_layers))
        return max(cost.computing_s for cost in run_trial(trial, seconds, slots))

    num_layers = alone.model.num_layers
    if alone.device == "cuda":
        return CalibrationRound(
            whole_flops_per_s(alone, computing_s(num_layers), computing_s(2 * num_layers), job_layers)
        )
    threads_per_core = 1.0 if alone.by_cpu_time else max(1.0, slots * alone.threads / cores)
    flops_per_s = _step_flops(alone, num_layers) / computing_s(num_layers) * threads_per_core
    action_s, split_factor = _in_pipelines(alone, slots, seconds)
    return CalibrationRound(flops_per_s, action_s, _update_bytes_per_s(alone, slots, seconds), split_factor)


def whole_flops_per_s(alone: Trial, once_s: float, twice_s: float, job_layers: int) -> float:
    """Return the FLOP/s of a step of `job_layers`, from its seconds with the layers of `alone` and with twice as many.

    The difference is the time of the layers alone. Head and loss are slower, and with few layers they would count far
    more than in the whole model: half of the FLOPs with two layers of a GPT of 1.3 B, instead of a twelfth.
    """
    layers_s = twice_s - once_s
    return _step_flops(alone, job_layers) / (once_s + (job_layers / alone.model.num_layers - 1) * layers_s)


def _step_flops(trial: Trial, num_layers: int) -> float:
    return step_flops(replace(trial.model, num_layers=num_layers), trial.num_microbatches * trial.micro_batch_size)


def _in_pipelines(alone: Trial, slots: int, seconds: float) -> tuple[float, float | None]:
    """Return the overhead in seconds of a forward or backward in a pipeline, and the split factor of a backward.

    The overhead is half of the time that each micro-batch adds to a step outside computing: one half for its forward,
    one for its backward. The split factor is the time of a backward in halves divided by its time in one piece, and at
    least 1. It is None if layers are compiled or in FP8, because their backward is not split. It is measured on the
    last stages, because under zero-bubble the first stages run whole backwards.
    """
    pipelines = replace(alone, model=replace(alone.model, num_layers=2), pp=2, dp=max(1, slots // 2))

    def costs(count: int, schedule: ScheduleName = "1f1b") -> list[Cost]:
        trial = replace(pipelines, num_microbatches=count, schedule=schedule)
        return run_trial(trial, seconds, pipelines.pp * pipelines.dp)

    def last_backwards_s(of: Sequence[Cost]) -> float:
        return statistics.median(cost.backward_s for cost in of[pipelines.dp :])

    few, many = costs(FEW), costs(MANY)
    few_s, many_s = (statistics.median(cost.other_busy_s for cost in each) for each in (few, many))
    action_s = max(0.0, many_s - few_s) / (2 * (MANY - FEW))
    if alone.compile or alone.fp8:
        return action_s, None
    return action_s, max(1.0, last_backwards_s(costs(MANY, "zero-bubble")) / last_backwards_s(many))


def _update_bytes_per_s(alone: Trial, slots: int, seconds: float) -> float:
    """Return the bytes of the slot's share of the optimizer, divided by the seconds of a step's update."""
    replicas = replace(alone, dp=max(2, slots), num_microbatches=FEW)
    update_s = statistics.median(cost.other_s for cost in run_trial(replicas, seconds, replicas.dp))
    parameters = stage_parameters(alone.model, alone.model.num_layers, is_first=True, is_last=True)
    moved = parameters / replicas.dp * (UPDATE_BYTES + VALUE_BYTES[alone.value_type])
    return moved / update_s


def yaml_lines(rounds: Sequence[CalibrationRound]) -> Iterator[str]:
    """Yield the lines of job.yaml with the medians of the rounds, and their spread as comments."""
    yield "compute:"
    yield f"  flops_per_s: {_with_spread([each.flops_per_s for each in rounds])}"
    actions_s = [each.action_s for each in rounds if each.action_s is not None]
    rates = [each.update_bytes_per_s for each in rounds if each.update_bytes_per_s is not None]
    factors = [each.split_factor for each in rounds if each.split_factor is not None]
    if actions_s:
        yield "  overheads:"
        yield f"    action_s: {_with_spread(actions_s)}"
        yield f"    update_bytes_per_s: {_with_spread(rates)}"
    if factors:
        yield f"    split_factor: {_with_spread(factors)}"


def _with_spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3e}  # {min(values):.3e} to {max(values):.3e} in {len(values)} rounds"


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m holmes_runtime.calibrate", description="Measure the cost of a step on a slot of this host."
    )
    parser.add_argument("--family", choices=["gpt", "llama"], default="gpt")
    for name in ("--hidden-size", "--num-heads", "--seq-length", "--micro-batch-size"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--num-kv-heads", type=int, help="default: --num-heads")
    parser.add_argument("--ffn-hidden-size", type=int, help="default: four times --hidden-size")
    parser.add_argument("--vocab-size", type=int, default=256)
    parser.add_argument("--factory", help="FILE.py:FUNCTION, like model.factory of the job")
    parser.add_argument("--precision", choices=get_args(Precision), help="default: bf16 on GPUs, fp32 on CPUs")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, help="default: on GPUs")
    parser.add_argument("--fp8", action="store_true", help="multiply matrices of layers in FP8, like fp8 of the job")
    parser.add_argument("--num-layers", type=int, default=2, help="layers of a stage")
    parser.add_argument("--job-layers", type=int, help="layers of the whole model, on GPUs; default: --num-layers")
    parser.add_argument("--seconds", type=float, default=0.5, help="duration of each trial")
    parser.add_argument("--rounds", type=int, default=3, help="number of measurements, whose medians are printed")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads, like threads_per_slot of the job")
    parser.add_argument("--slots", type=int, default=1, help="processes, or GPUs, that compute here at once")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    return parser


def main(command_line: Sequence[str] | None = None) -> None:
    """Read the command line, measure round after round, and print the keys for job.yaml."""
    parser = make_parser()
    arguments = parser.parse_args(command_line)
    gpus = torch.cuda.device_count() if arguments.device == "cuda" else None
    if gpus is not None and arguments.slots > gpus:
        parser.error(f"--slots {arguments.slots}: torch sees {gpus} GPUs here, and each slot is one")

    cores = len(os.sched_getaffinity(0))
    alone = trial_of(arguments)
    job_layers = arguments.job_layers or arguments.num_layers
    rounds = [measure(alone, arguments.slots, cores, arguments.seconds, job_layers) for _ in range(arguments.rounds)]
    print("\n".join(yaml_lines(rounds)))


def trial_of(arguments: argparse.Namespace) -> Trial:
    """Return the trial of one slot alone. The defaults of precision and compiling are those in a job."""
    on_gpu = arguments.device == "cuda"
    compiles = arguments.compile if arguments.compile is not None else on_gpu and arguments.factory is None
    shape = ModelShape(
        family=arguments.family,
        num_layers=arguments.num_layers,
        hidden_size=arguments.hidden_size,
        num_heads=arguments.num_heads,
        num_kv_heads=arguments.num_kv_heads,
        ffn_hidden_size=arguments.ffn_hidden_size,
        vocab_size=arguments.vocab_size,
        seq_length=arguments.seq_length,
        factory=arguments.factory,
    )
    precision: Precision = arguments.precision or ("bf16" if on_gpu else "fp32")
    sizes = arguments.threads, arguments.micro_batch_size
    return Trial(shape, arguments.device, precision, *sizes, compiles, fp8=arguments.fp8)


if __name__ == "__main__":
    main()
