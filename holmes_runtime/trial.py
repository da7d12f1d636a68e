"""Time a few training steps of a small run on this host, using the real trainer and one slot (GPU or CPUs) per rank."""

from __future__ import annotations

import multiprocessing
import os
import socket
import statistics
import time
from array import array
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from multiprocessing.context import ForkContext, SpawnContext
from multiprocessing.queues import SimpleQueue
from typing import Literal

import torch

from holmes_runtime.comm import process_groups
from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.comm.stopwatch import REST, Stopwatch
from holmes_runtime.config.codec import Codec
from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.config.rank_grid import EDGE_AXES, Axis, Group, Rank
from holmes_runtime.config.run_config import RunConfig, Stage
from holmes_runtime.config.run_settings import DataSettings, OptimizerSettings, Precision
from holmes_runtime.config.schedule import ScheduleName
from holmes_runtime.data.corpus import Corpus
from holmes_runtime.data.tokens import TokenPart, Tokens
from holmes_runtime.node.data_files.bad_lines import BadLines
from holmes_runtime.node.data_files.stored_bytes import MemoryBytes
from holmes_runtime.trainer import Trainer

LOOPBACK = "lo"
WARM_UP = 2  # uncounted first steps, which set up connections, caches and buffers
NO_CODEC: Codec = "none"


@dataclass(frozen=True)
class Trial:
    """A run of `pp` (1 or 2) x `dp` ranks: equal stages, and `num_microbatches` micro-batches per replica and step."""

    model: ModelShape
    device: Literal["cpu", "cuda"]
    value_type: Precision
    threads: int
    micro_batch_size: int
    compile: bool = False
    fp8: bool = False
    num_microbatches: int = 4
    pp: int = 1
    dp: int = 1
    schedule: ScheduleName = "1f1b"

    def device_of(self, rank: int) -> torch.device:
        """Return the device that `rank` runs on: its own GPU, or the CPU."""
        return torch.device("cuda", rank) if self.device == "cuda" else torch.device("cpu")

    @property
    def by_cpu_time(self) -> bool:
        """True if costs are CPU time of the training thread rather than wall-clock time."""
        return self.device == "cpu" and self.threads == 1

    def config(self) -> RunConfig:
        """Return the run configuration for the trial's ranks."""
        ranks = [
            Rank(stage * self.dp + replica, "here", "here", stage, replica, 0)
            for stage in range(self.pp)
            for replica in range(self.dp)
        ]
        samples = self.micro_batch_size * self.num_microbatches * self.dp
        return RunConfig(
            run_id="trial",
            device=self.device,
            seed=0,
            steps=1,
            global_batch_size=samples,
            micro_batch_size=self.micro_batch_size,
            microbatches=(self.num_microbatches,) * self.dp,
            pp=self.pp,
            dp=self.dp,
            schedule=self.schedule,
            lossiest_codec="none",
            value_type=self.value_type,
            compile=self.compile,
            fp8=self.fp8,
            model=self.model,
            emulation=None,
            data=DataSettings("/none.bin"),
            expected_tokenizer=None,
            optimizer=OptimizerSettings(learning_rate=1e-4),
            stages=self._stages(),
            ranks=tuple(ranks),
            groups=tuple(self._groups()),
            expectation=None,
            timeout_s=60.0,
            threads_per_rank=self.threads,
        )

    def _stages(self) -> tuple[Stage, ...]:
        layers_per_stage = self.model.num_layers // self.pp
        return tuple(Stage(index, index * layers_per_stage, (index + 1) * layers_per_stage) for index in range(self.pp))

    def _groups(self) -> list[Group]:
        first, second = ([stage * self.dp + replica for replica in range(self.dp)] for stage in range(2))
        stages = (first, second)[: self.pp] if self.dp > 1 else ()
        groups = [_group("dp", stage) for stage in stages]
        edges = list(zip(first, second, strict=True)) if self.pp > 1 else []
        return [*groups, *(_group(axis, edge) for edge in edges for axis in EDGE_AXES)]


def _group(axis: Axis, ranks: Sequence[int]) -> Group:
    name = f"{axis}/{'-'.join(map(str, ranks))}"
    return Group(name, axis, tuple(ranks), (LOOPBACK,) * len(ranks), None, 1, NO_CODEC)


@dataclass(frozen=True)
class Cost:
    """One rank's median seconds per step.

    `computing_s`: forward and backward passes. `other_s`: everything else in the step. `other_busy_s`: the part of
    `other_s` not spent waiting for data or other ranks. `backward_s`: backward passes only. With one CPU thread these
    are that thread's CPU time, which is largely unaffected by other load; otherwise wall-clock time.
    """

    computing_s: float
    other_s: float
    other_busy_s: float
    backward_s: float


def run_trial(trial: Trial, seconds: float, processes: int) -> list[Cost]:
    """Run steps in `processes` parallel processes for about `seconds`, and return one cost per process, in rank order.

    A multi-rank trial is one run across all processes. A one-rank trial runs independently in each.

    Raises:
        RuntimeError: A process failed.
    """
    # A fork imports torch only once, and is safe as torch has started no threads yet. CUDA does not survive a fork.
    fork, spawn = multiprocessing.get_context("fork"), multiprocessing.get_context("spawn")
    context: ForkContext | SpawnContext = fork if trial.device == "cpu" else spawn
    results: SimpleQueue[tuple[int, Cost | str]] = context.SimpleQueue()
    port = _free_port()
    arguments = [(trial, rank, trial.device_of(rank), port, seconds, results) for rank in range(processes)]
    started = [context.Process(target=_run_rank, args=each, daemon=True) for each in arguments]
    for process in started:
        process.start()
    for process in started:
        process.join()
        if process.exitcode != 0:
            reason = f": {error}" if (error := first_error(results)) else ""
            raise RuntimeError(f"a process of the trial ended with {process.exitcode}{reason}")
    by_rank = dict(results.get() for _ in started)
    return [cost for rank in range(processes) if isinstance(cost := by_rank[rank], Cost)]


def first_error(results: SimpleQueue[tuple[int, Cost | str]]) -> str | None:
    """Return the first error in the queue, and drop the costs before it; None if no rank reported an error."""
    while not results.empty():
        _, result = results.get()
        if isinstance(result, str):
            return result
    return None


def _run_rank(
    trial: Trial,
    rank: int,
    device: torch.device,
    port: int,
    seconds: float,
    results: SimpleQueue[tuple[int, Cost | str]],
) -> None:
    """Put the rank's cost, or its error, into `results`."""
    try:
        cost = _cost_of_rank(trial, rank, device, port, seconds)
    except Exception as error:
        results.put((rank, f"{type(error).__name__}: {error}"))
        raise
    results.put((rank, cost))


def _cost_of_rank(trial: Trial, rank: int, device: torch.device, port: int, seconds: float) -> Cost:
    config, groups = trial.config(), RankGroups()
    torch.set_num_threads(trial.threads)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    is_distributed = config.world_size > 1
    if is_distributed:
        rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank)}
        os.environ.update(rendezvous, WORLD_SIZE=str(config.world_size))
        process_groups.connect(config, rank, config.world_size)
        groups = process_groups.open_groups(config, rank, device)
    corpus = random_corpus(trial.model)
    me = config.grid.rank(rank if is_distributed else 0)
    stopwatch = Stopwatch(device, time.thread_time) if trial.by_cpu_time else Stopwatch(device)
    return _take_steps(Trainer(config, me, corpus, groups, device, stopwatch), seconds)


def random_corpus(model: ModelShape, documents: Sequence[int] = ()) -> Corpus:
    """Return 100 samples of random tokens, identical in every process, with documents starting at the given tokens."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.vocab_size, (100 * model.seq_length,), generator=generator)
    stored = MemoryBytes(array("q", tokens.tolist()))
    return Corpus((Tokens([TokenPart("random", stored, "int64", documents)]),), (), "", BadLines(0))


def _take_steps(trainer: Trainer, seconds: float) -> Cost:
    """Take steps for about `seconds`, and return the median cost per step, as measured by the trainer's stopwatch."""
    for step in range(WARM_UP):
        trainer.step(step)
        trainer.stopwatch.read_s()
    steps: list[Cost] = []
    stop_s, stop = time.monotonic() + seconds, False
    while not stop:
        if time.monotonic() > stop_s:
            trainer.ask_to_stop()  # all ranks must end with the same step
        stop = trainer.step(WARM_UP + len(steps)).stop
        laps_s = trainer.stopwatch.read_s()
        backward_s = laps_s.get("backward", 0.0)
        computing_s = laps_s.get("forward", 0.0) + backward_s
        steps.append(Cost(computing_s, sum(laps_s.values()) - computing_s, laps_s.get(REST, 0.0), backward_s))
    trainer.zero1.wait()  # other ranks may still be receiving weights from this one
    return Cost(*map(statistics.median, zip(*map(astuple, steps), strict=True)))


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
