"""Run tasks in a worker process, each within a time limit; a worker that hangs or dies costs one task, not the rest."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from benchmarks.on_gpus.machine import Device
from benchmarks.on_gpus.shape_worker import Result, Task, read_result

POLL_S = 0.1
START_S = 60.0  # to import torch and open the GPU, on top of the first task's limit


def run_tasks(
    folder: Path,
    device: Device,
    tasks: Sequence[Task],
    limit_s: float,
    end_s: float,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Result]:
    """Return the result of each task by name, and print it as it comes. `environment` is added to this process's.

    No task takes longer than `limit_s`, and none runs beyond `end_s` of the monotonic clock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    left, results = list(tasks), {}
    while left and time.monotonic() < end_s:
        for result in _in_one_worker(folder, device, left, limit_s, end_s, environment or {}):
            results[result.name] = result
            left = [task for task in left if task.name != result.name]
    for task in left:
        results[task.name] = Result(task.name, "not run: the time for this call was over")
    return results


def _in_one_worker(
    folder: Path,
    device: Device,
    tasks: Sequence[Task],
    limit_s: float,
    end_s: float,
    environment: Mapping[str, str],
) -> list[Result]:
    """Return the results of the first tasks, up to all: the last one's is an error if the worker was ended or died."""
    tasks_file, results_file, errors_file = (folder / name for name in ("tasks.json", "results.jsonl", "errors.txt"))
    tasks_file.write_text(json.dumps([asdict(task) for task in tasks]), encoding="utf-8")
    results_file.write_text("", encoding="utf-8")
    command = [sys.executable, "-m", "benchmarks.on_gpus.shape_worker", str(tasks_file), str(results_file)]
    with open(errors_file, "w", encoding="utf-8") as errors:
        process = subprocess.Popen(
            [*command, "--device", device],
            stdout=errors,
            stderr=errors,
            env={**os.environ, **environment},
            start_new_session=True,
        )
    results: list[Result] = []
    due_s = time.monotonic() + START_S + limit_s
    why = None
    while why is None and len(results) < len(tasks):
        is_over = process.poll() is not None  # asked before reading: what it wrote last is then read
        new = _read_new(results_file, len(results))
        for result in new:
            _print(result)
        results += new
        if new:
            due_s = time.monotonic() + limit_s
        elif is_over:
            said = errors_file.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]
            why = f"the worker ended with {process.returncode}: {' / '.join(said)}"
        elif time.monotonic() > min(due_s, end_s):
            why = f"not done within {limit_s:g} s" if due_s < end_s else "the time for this call was over"
        else:
            time.sleep(POLL_S)
    with suppress(ProcessLookupError):  # also where all is done: it has nothing to put away
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if why is not None:
        failed = Result(tasks[len(results)].name, why)
        _print(failed)
        results.append(failed)
    return results


def _read_new(path: Path, num_read: int) -> list[Result]:
    whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
    return [read_result(line) for line in whole.splitlines()[num_read:]]


def _print(result: Result) -> None:
    if result.error is not None:
        print(f"  {result.name}: {result.error[:300]}", flush=True)
        return
    gib = result.memory_bytes / 2**30
    whole_s = result.build_s + sum(result.steps_s)
    print(f"  {result.name}: {result.step_s:.4g} s a step, {gib:.2f} GiB, {whole_s:.1f} s in all", flush=True)
