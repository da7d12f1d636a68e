"""The steps of `make test-gpu`, in order: what each runs, what it measures, and when it has failed.

Each trains by Holmes' own three commands on this machine. On CPUs the same steps run with tiny shapes, and what only a
GPU can show is not judged.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from benchmarks.on_gpus.machine import Device
from benchmarks.on_gpus.one_rank_group import settings
from benchmarks.on_gpus.product_run import ProductRun, largest_difference, last_words, run_product
from benchmarks.on_gpus.report import Failed, Figure
from benchmarks.on_gpus.scale import ONE_RANK, Scale
from holmes_runtime.config.gpu_peaks import peak_flops_per_s
from holmes_runtime.config.model_shape import step_flops
from launcher.prepare.prepare import run_config_of

FP32_TOLERANCE, BF16_TOLERANCE = 1e-3, 1e-2  # of losses, relative: kernels and orders of sums differ
MAX_OFF = 2.0  # by which a measured step may differ from its prediction before planning by it is no use


@dataclass
class Bench:
    """Where steps run, and the runs of earlier steps that later ones compare with."""

    folder: Path
    device: Device
    scale: Scale
    gpus: Sequence[str]
    runs: dict[str, ProductRun] = field(default_factory=dict)

    def train(self, name: str, **changes: Any) -> ProductRun:
        """The run of the scale's small job with `changes`, kept under `name`."""
        job = {**self.scale.job(self._corpus(), self.device), **changes}
        self.runs[name] = run_product(self.folder / name, job)
        return self.runs[name]

    def agree(self, names: Sequence[str], with_: str, tolerance: float) -> list[Figure]:
        """The largest relative difference between each run's losses and those of another. Raises Failed beyond."""
        losses = {name: self.runs[name].losses for name in (with_, *names)}
        found = [
            Figure(f"{name}: loss differs by", largest_difference(losses[name], losses[with_]), "") for name in names
        ]
        wrong = [f"{each.name} {each.value:.2g}" for each in found if not each.value <= tolerance]
        if wrong:
            raise Failed(f"{'; '.join(wrong)} from {with_}, {tolerance:g} are allowed", found)
        return found

    def _corpus(self) -> str:
        path = self.folder / "corpus.txt"
        if not path.exists():
            path.write_text(json.dumps(list(range(60_000))), encoding="utf-8")
        return str(path)


def single(bench: Bench) -> list[Figure]:
    """fp32 and bf16, eager and compiled, against the same job in fp32 on this machine's CPUs."""
    bench.train("reference", device="cpu", threads_per_slot=len(os.sched_getaffinity(0)), parallel=ONE_RANK)
    bench.train("fp32", compile=False, parallel=ONE_RANK)
    bench.train("bf16", precision="bf16", compile=False, parallel=ONE_RANK)
    bench.train("bf16-compiled", precision="bf16", compile=bench.device == "cuda", parallel=ONE_RANK)
    exact = bench.agree(["fp32"], "reference", FP32_TOLERANCE)
    return exact + bench.agree(["bf16", "bf16-compiled"], "reference", BF16_TOLERANCE)


def utilisation(bench: Bench) -> list[Figure]:
    """A Llama of 1.3 B as Holmes trains it by itself: step against its prediction, memory against the plan's."""
    return _against_plan(bench, bench.train("llama-1.3b", **bench.scale.large))


def _against_plan(bench: Bench, run: ProductRun) -> list[Figure]:
    planned_bytes, predicted_s = max(run.plan.prediction.memory_bytes), run.plan.prediction.step_s
    figures = [
        Figure("MFU", run.mfu, ""),
        Figure("compute a rank", run.tflops_per_s, "TFLOP/s"),
        Figure("step", run.step_s, "s"),
        Figure("step over its prediction", run.step_s / predicted_s, ""),
        Figure("peak memory", run.memory_bytes / 2**30, "GiB"),
        Figure("peak memory over the plan's", run.memory_bytes / planned_bytes, ""),
    ]
    if bench.device == "cuda" and run.memory_bytes > planned_bytes:
        raise Failed(f"{run.memory_bytes} bytes were allocated, the plan counts {planned_bytes}", figures)
    if bench.device == "cuda" and not 1 / MAX_OFF < run.step_s / predicted_s < MAX_OFF:
        raise Failed(f"a step takes {run.step_s:.3g} s, {predicted_s:.3g} s were predicted", figures)
    return figures


def plain_torch(bench: Bench) -> list[Figure]:
    """The same model by a plain torch loop, with as many samples a micro-batch."""
    run = bench.runs.get("llama-1.3b")
    if run is None:
        raise Failed("the run to compare with has not come about")
    config = run_config_of(run.plan, "plain")
    model = bench.folder / "model.json"
    model.write_text(json.dumps(asdict(config.model)), encoding="utf-8")
    numbers = {
        "--micro-batch-size": config.micro_batch_size,
        "--microbatches": config.total_microbatches,
        "--steps": config.steps,
    }
    options = [str(word) for option in numbers.items() for word in option]
    said = _module("benchmarks.on_gpus.plain_loop", str(model), "--device", bench.device, *options)
    plain = json.loads(said.splitlines()[-1])
    flops_per_s = step_flops(config.model, config.global_batch_size) / plain["step_s"]
    peak = peak_flops_per_s(bench.gpus[0], "bf16") if bench.gpus else None
    return [
        Figure("step of plain torch", plain["step_s"], "s"),
        Figure("MFU of plain torch", flops_per_s / peak if peak else 0.0, ""),
        Figure("peak memory of plain torch", plain["memory_bytes"] / 2**30, "GiB"),
        Figure("Holmes is x times as fast", plain["step_s"] / run.step_s, ""),
    ]


def calibrated(bench: Bench) -> list[Figure]:
    """What calibrate finds for that model against what its run did."""
    run = bench.runs.get("llama-1.3b")
    if run is None:
        raise Failed("the run to compare with has not come about")
    model = run_config_of(run.plan, "calibrate").model
    numbers = {
        "--hidden-size": model.hidden_size,
        "--num-heads": model.num_heads,
        "--ffn-hidden-size": model.ffn_hidden_size,
        "--seq-length": model.seq_length,
        "--vocab-size": model.vocab_size,
        "--micro-batch-size": run.plan.micro_batch_size,
        "--rounds": 1,
        "--seconds": bench.scale.calibrate_s,
    }
    options = [str(word) for option in numbers.items() for word in option]
    said = _module("holmes_runtime.calibrate", "--family", "llama", "--device", bench.device, *options)
    found = float(yaml.safe_load(said)["compute"]["flops_per_s"]) / 1e12
    return [Figure("calibrate", found, "TFLOP/s"), Figure("the run over calibrate", run.tflops_per_s / found, "")]


def nccl_settings(bench: Bench) -> list[Figure]:
    """A communicator of one rank under every variable and option that a plan may set."""
    said = json.loads(_module("benchmarks.on_gpus.one_rank_group", "--device", bench.device).splitlines()[-1])
    if said["mean"] != 1.0 or said["warnings"]:
        raise Failed(f"the sum over the group is off ({said['mean']}), or NCCL warns: {said['warnings']}")
    return [Figure("variables set", len(settings()), ""), Figure("of them named by NCCL's log", len(said["named"]), "")]


def shared_gpu(bench: Bench) -> list[Figure]:
    """Two ranks of a pipeline on one GPU, messages through host memory, against one rank with both stages."""
    alone, together = (_ranks_on_one_gpu(bench.device, ranks) for ranks in (1, 2))
    differs_by = largest_difference(together, alone)
    if not differs_by <= FP32_TOLERANCE:
        raise Failed(f"losses differ by {differs_by:.2g}, {FP32_TOLERANCE:g} are allowed: {alone} and {together}")
    return [Figure("two ranks: loss differs by", differs_by, "")]


def _ranks_on_one_gpu(device: Device, ranks: int) -> list[float]:
    """The losses, which the last rank prints."""
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(ranks)}
    command = [sys.executable, "-m", "benchmarks.on_gpus.shared_gpu", "--device", device]
    started = [
        subprocess.Popen(
            command, env={**os.environ, **where, "RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for rank in range(ranks)
    ]
    said = [process.communicate() for process in started]
    for rank, (process, (_, errors)) in enumerate(zip(started, said, strict=True)):
        if process.returncode != 0:
            raise Failed(f"rank {rank} ended with {process.returncode}: {errors.decode()[-1000:]}")
    losses: list[float] = json.loads(said[-1][0].splitlines()[-1])
    return losses


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def degrees(*wanted: int) -> Callable[[Bench], list[Figure]]:
    """The layouts of the scale for so many ranks, each against one rank, losses and traffic of their networks."""

    def run(bench: Bench) -> list[Figure]:
        if "fp32" not in bench.runs:
            bench.train("fp32", compile=False, parallel=ONE_RANK)
        names, seconds = [], []
        for count in wanted:
            for name, parallel in bench.scale.layouts(count).items():
                done = bench.train(name, compile=False, parallel=parallel, slots_per_host=count)
                names.append(name)
                seconds.append(Figure(f"{name}: step", done.step_s, "s"))
        return bench.agree(names, "fp32", FP32_TOLERANCE) + seconds

    return run


def eight_b(bench: Bench) -> list[Figure]:
    """Llama 3 8B as Holmes plans it by itself on eight GPUs."""
    return _against_plan(bench, bench.train("llama-3-8b", **bench.scale.largest))


def _module(name: str, *arguments: str) -> str:
    return last_words([sys.executable, "-m", name, *arguments])


@dataclass(frozen=True)
class Step:
    """One step of the list: what it shows, and how many GPUs it needs."""

    name: str
    shows: str
    least_gpus: int
    run: Callable[[Bench], list[Figure]]


STEPS = (
    Step("single", "losses of one GPU against CPUs, fp32, bf16, compiled", 1, single),
    Step("utilisation", "MFU, peak memory and step of 1.3 B against the plan", 1, utilisation),
    Step("plain-torch", "the same model by a plain torch loop", 1, plain_torch),
    Step("calibrate", "measured FLOP/s against the run's", 1, calibrated),
    Step("nccl-settings", "NCCL takes every setting that plans make", 1, nccl_settings),
    Step("shared-gpu", "two ranks of a pipeline on one GPU against one rank", 1, shared_gpu),
    Step("two", "pp under every schedule, tp and dp on two GPUs against one", 2, degrees(2)),
    Step("eight", "degrees of eight GPUs against one", 8, degrees(8)),
    Step("eight-b", "MFU, peak memory and step of 8 B against the plan", 8, eight_b),
)
"""What this machine can run."""

BY_HAND = {
    "faults": "`kill -STOP` a rank at step 0 and at step 50 of a launch, `kill -9` one: what is named, how soon, what "
    "stays in nvidia-smi",
    "memcheck": "`compute-sanitizer --tool memcheck` on 5 steps; `nsys profile -t cuda,nvtx` of 3",
    "one-fabric": "two hosts over InfiniBand or RoCE: port counters against the plan's bytes, nccl-tests beside",
    "two-clusters": "2 + 2 hosts over sockets: `NCCL_SOCKET_NTHREADS` x `NSOCKS_PERTHREAD`, delays by `tc netem`",
    "checkpoint": "7 B: `paused_s`, `--resume` under another plan, a host pulled with `--on-loss replan`",
    "scale": "64 GPUs and more: seconds to step 1, open files a rank, 24 h without hands",
}
"""What is left out everywhere: several hosts, or a person's hands."""
