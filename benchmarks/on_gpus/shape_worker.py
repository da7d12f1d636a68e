"""`python -m benchmarks.on_gpus.shape_worker TASKS.json RESULTS.jsonl --device cuda`: short trainings, one by one.

Each task trains one model for a few steps, by Holmes' trainer or by the loop of plain torch. A task that fails leaves
its error; the others go on. Each runs in a copy of this process, which has imported torch and not opened the GPU, so
none finds memory that another kept.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.on_gpus import plain_loop
from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.train import num_threads
from holmes_runtime.trainer import Trainer
from holmes_runtime.trial import random_corpus

PROFILED_STEPS = 2
DOCUMENT_TOKENS = 1403  # of each document, where they are separate; borders fall anywhere in samples


@dataclass(frozen=True)
class Task:
    """One training: `config` is a RunConfig in JSON. `profiled`: the last steps are recorded."""

    name: str
    loop: Literal["holmes", "plain"]
    config: str
    profiled: bool = False


@dataclass(frozen=True)
class Result:
    """The measurements of one task; `error` is None unless it failed.

    `laps_s`: the trainer's seconds by lap, medians over steps. `kernels_s`: seconds a step on the device, by kernel.
    """

    name: str
    error: str | None = None
    steps_s: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()
    memory_bytes: int = 0
    reserved_bytes: int = 0
    build_s: float = 0.0
    laps_s: dict[str, float] = field(default_factory=dict)
    kernels_s: dict[str, float] = field(default_factory=dict)
    micro_batch_size: int | None = None  # the plain loop's

    @property
    def step_s(self) -> float:
        """The median of the second half, when nothing is compiled any more."""
        return statistics.median(self.steps_s[len(self.steps_s) // 2 :])


def read_result(line: str) -> Result:
    """Return the result in one line of JSON."""
    data = json.loads(line)
    return Result(**{**data, "steps_s": tuple(data["steps_s"]), "losses": tuple(data["losses"])})


def run_task(task: Task, device: torch.device) -> Result:
    """Train, and return what was measured."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    try:
        made = _by_holmes(task, device) if task.loop == "holmes" else _by_plain_loop(task, device)
    except Exception as error:  # whatever it is, it is the result of this task, and the others are run
        return Result(task.name, f"{type(error).__name__}: {str(error)[:1500]}")
    if device.type == "cuda":
        made["memory_bytes"] = torch.cuda.max_memory_allocated(device)
        made["reserved_bytes"] = torch.cuda.max_memory_reserved(device)
    return Result(task.name, **made)


def _run_and_write(task: Task, device: torch.device, results: Path) -> None:
    line = json.dumps(asdict(run_task(task, device))) + "\n"
    with open(results, "a", encoding="utf-8") as file:
        file.write(line)


def _by_holmes(task: Task, device: torch.device) -> dict[str, Any]:
    config = RunConfig.from_json(task.config)
    torch.set_num_threads(num_threads(config, os.environ, len(os.sched_getaffinity(0))))
    began_s = time.monotonic()
    separate = config.data.documents == "separate"
    documents = range(0, 100 * config.model.seq_length, DOCUMENT_TOKENS) if separate else ()
    trainer = Trainer(config, config.grid.rank(0), random_corpus(config.model, documents), RankGroups(), device)
    _wait_for(device)
    build_s = time.monotonic() - began_s
    losses, steps_s, laps_s = [], [], []
    recorded = profile(activities=_activities(device)) if task.profiled else None
    for step in range(config.steps):
        if recorded is not None and step == config.steps - PROFILED_STEPS:
            _wait_for(device)
            recorded.start()
        began_s = time.monotonic()
        losses.append(trainer.step(step).loss or 0.0)
        laps_s.append(trainer.stopwatch.read_s())
        steps_s.append(time.monotonic() - began_s)
    trainer.zero1.wait()
    _wait_for(device)
    kernels_s = {}
    if recorded is not None:
        recorded.stop()
        kernels_s = _kernel_seconds(recorded, device)
    return {
        "losses": tuple(losses),
        "steps_s": tuple(steps_s),
        "build_s": build_s,
        "laps_s": _medians(laps_s[len(laps_s) // 2 :]),
        "kernels_s": kernels_s,
    }


def _by_plain_loop(task: Task, device: torch.device) -> dict[str, Any]:
    """Train with the micro-batch of the plan, or half of it and so on until memory suffices: the loop needs more."""
    config = RunConfig.from_json(task.config)
    size, count = config.micro_batch_size, config.total_microbatches
    while True:
        try:
            steps_s = plain_loop.train(
                config.model, device, size, count, config.steps, config.compile, config.recompute == "full"
            )
        except torch.OutOfMemoryError:
            if size == 1:
                raise
            size, count = size // 2, count * 2
            continue
        return {"steps_s": tuple(steps_s), "micro_batch_size": size}


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _medians(laps_s: Sequence[dict[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for laps in laps_s for name in laps)
    return {name: statistics.median(laps.get(name, 0.0) for laps in laps_s) for name in names}


def _activities(device: torch.device) -> list[ProfilerActivity]:
    gpu = [ProfilerActivity.CUDA] if device.type == "cuda" else []
    return [ProfilerActivity.CPU, *gpu]


def _kernel_seconds(recorded: profile, device: torch.device) -> dict[str, float]:
    """Return seconds a step by name of kernel; of operator on CPUs."""
    seconds: Counter[str] = Counter()
    for event in recorded.events() or ():  # type: ignore[no-untyped-call]
        if event.is_user_annotation:
            continue
        if device.type == "cpu":
            seconds[event.name] += event.self_cpu_time_total / 1e6 / PROFILED_STEPS
        elif event.device_type == DeviceType.CUDA:
            seconds[event.name] += event.time_range.elapsed_us() / 1e6 / PROFILED_STEPS
    return dict(seconds.most_common(200))


def main() -> None:
    """Run the tasks, and write a line for each as soon as it ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("tasks", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--device", choices=["cpu", "cuda"], required=True)
    given = parser.parse_args()
    device = torch.device("cuda", 0) if given.device == "cuda" else torch.device("cpu")
    tasks = [Task(**task) for task in json.loads(given.tasks.read_text(encoding="utf-8"))]
    for task in tasks:
        copy = multiprocessing.get_context("fork").Process(target=_run_and_write, args=(task, device, given.results))
        copy.start()
        copy.join()
        if copy.exitcode != 0:
            raise SystemExit(f"{task.name}: its process ended with {copy.exitcode}")


if __name__ == "__main__":
    main()
