"""Metrics of each step of a rank: measured, and written as one JSON line."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

import torch
import torch.distributed as dist

from holmes_runtime.config.gpu_peaks import peak_flops_per_s
from holmes_runtime.config.model_shape import step_flops
from holmes_runtime.config.node_config import hca_ports
from holmes_runtime.config.rank_metrics import METRICS_FILE, ByteCounters, RankMetrics, WaitSeconds, counters_increase
from holmes_runtime.config.strict_json import to_json
from holmes_runtime.node.interface_counters import read_byte_counters, read_port_counters
from holmes_runtime.trainer import StepResult, Trainer

MAX_METRICS_BYTES = 4 << 20  # a few thousand steps; the agent reads every tenth of a second
COMPUTE = ("forward", "backward")  # laps of the stopwatch; waits inside them have their own laps


class StepMeter:
    """A meter of steps, each from the end of the previous step. Time between `pause` and `resume` belongs to no step.

    `laps_s` are the seconds of the last step by the stopwatch's laps; on GPUs, of the step before the last.
    """

    def __init__(self, trainer: Trainer, counts_bytes: bool) -> None:
        self._trainer, self._counts_bytes = trainer, counts_bytes
        config, device = trainer.config, trainer.device
        is_real = config.emulation is None
        self._flops = step_flops(config.model, config.global_batch_size) / config.world_size if is_real else 0.0
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
        self._peak_flops_per_s = peak_flops_per_s(name, config.value_type)
        self._ports = hca_ports(os.environ.get("NCCL_IB_HCA", "")) if device.type == "cuda" else ()
        self._ended_s, self._paused_s = time.monotonic(), 0.0
        self.laps_s: dict[str, float] = {}
        self._counters = self._read_counters()
        self._at_pause: dict[str, ByteCounters] | None = None
        trainer.stopwatch.skip()

    def pause(self) -> None:
        """Stop measuring until `resume`, for work that is not part of a step."""
        self._at_pause = self._read_counters()

    def resume(self) -> None:
        """End the pause, if there was one. Bytes moved between the last step and the pause count in the next step."""
        if self._at_pause is None:
            return
        now_s = time.monotonic()
        self._paused_s, self._ended_s = now_s - self._ended_s, now_s
        moved = counters_increase(self._at_pause, self._read_counters())
        self._counters = {name: before.plus(moved[name]) for name, before in self._counters.items() if name in moved}
        self._at_pause = None
        self._trainer.stopwatch.skip()

    def end_step(self, step: int, result: StepResult, barrier: bool) -> RankMetrics:
        """End a step and return its metrics. With `barrier`, wait for all ranks first, to count all of their bytes."""
        config, now_s = self._trainer.config, time.monotonic()
        step_s, self._ended_s = now_s - self._ended_s, now_s
        self.laps_s = laps_s = self._trainer.stopwatch.read_s()
        if barrier:
            self._trainer.zero1.wait()
            dist.barrier()
        before, self._counters = self._counters, self._read_counters()
        paused_s, self._paused_s = self._paused_s, 0.0
        flops_per_s = self._flops / step_s
        return RankMetrics(
            step=step,
            rank=self._trainer.me.rank,
            loss=result.loss,
            eval_loss=None,
            grad_norm=result.grad_norm,
            learning_rate=result.learning_rate,
            skipped=result.skipped,
            step_s=step_s,
            paused_s=paused_s,
            tokens_per_s=config.global_batch_size * config.model.seq_length / step_s,
            tflops_per_s=flops_per_s / 1e12,
            mfu=flops_per_s / self._peak_flops_per_s if self._peak_flops_per_s else 0.0,
            memory_bytes=self._memory_bytes(),
            compute_s=sum(laps_s.get(name, 0.0) for name in COMPUTE),
            exposed_s=WaitSeconds(*(laps_s.get(name, 0.0) for name in WaitSeconds._fields)),
            interfaces=counters_increase(before, self._counters),
            verdicts=(),
            outer=None,
        )

    def _read_counters(self) -> dict[str, ByteCounters]:
        return {**read_byte_counters(), **read_port_counters(self._ports)} if self._counts_bytes else {}

    def _memory_bytes(self) -> int:
        if self._trainer.device.type == "cuda":
            return torch.cuda.max_memory_reserved(self._trainer.device)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB


def step_line(metrics: RankMetrics, num_steps: int) -> str:
    """Return a step as a line to print."""
    loss = "" if metrics.loss is None else f"  loss {metrics.loss:.4f}"
    evaluated = "" if metrics.eval_loss is None else f"  validation {metrics.eval_loss:.4f}"
    speed = f"{metrics.tokens_per_s:.0f} tokens/s  {metrics.step_s:.3g} s"
    return f"step {metrics.step + 1}/{num_steps}{loss}{evaluated}  {speed}"


class MetricsFile:
    """The file `metrics-rank<k>.jsonl` in a folder, which is made if missing. Each line is appended and flushed.

    A file of more than `max_bytes` is renamed to `metrics-rank<k>.jsonl.1`, which replaces the previous one, and the
    agent reads it to its end. With `prints_of`, the number of steps of the run, each step is also printed, for runs
    whose files no launcher follows.
    """

    def __init__(
        self, folder: Path, rank: int, max_bytes: int = MAX_METRICS_BYTES, prints_of: int | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._prints_of, self._steps_done = prints_of, 0
        self._path, self._max_bytes = folder / METRICS_FILE.format(rank=rank), max_bytes
        self._file = self._path.open("a", encoding="utf-8")

    def write(self, metrics: RankMetrics) -> None:
        """Append one line. Raise ValueError if a number is NaN or infinite."""
        if self._file.tell() > self._max_bytes:
            self._file.close()
            self._path.replace(f"{self._path}.1")
            self._file = self._path.open("a", encoding="utf-8")
        self._file.write(to_json(metrics) + "\n")
        self._file.flush()
        self._steps_done = metrics.step + 1
        if self._prints_of is not None:
            print(step_line(metrics, self._prints_of), flush=True)

    def end(self, first_step: int) -> None:
        """Print the number of steps done by a run that began with `first_step` and ends in order."""
        if self._prints_of is not None:
            done = max(first_step, self._steps_done)
            print("done" if done >= self._prints_of else f"stopped after {done} of {self._prints_of} steps", flush=True)

    def __enter__(self) -> MetricsFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
