"""A few steps of a small run on this host, by the trainer itself, to see what they cost a slot."""

from __future__ import annotations

import multiprocessing
import os
import socket
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.queues import SimpleQueue

import torch

from holmes_runtime.comm import process_groups
from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.comm.stopwatch import Stopwatch
from holmes_runtime.config.codec import Codec
from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.config.rank_grid import EDGE_AXES, Axis, Group, Rank
from holmes_runtime.config.run_config import SCHEMA_VERSION, RunConfig, Stage
from holmes_runtime.config.run_settings import Data, Optimizer, Precision
from holmes_runtime.data.corpus import Corpus, Tokens
from holmes_runtime.trainer import Trainer

LOOPBACK = "lo"
WARM_UP = 2  # steps that are not counted: connections, caches and buffers are made in them
NO_CODEC: Codec = "none"


@dataclass(frozen=True)
class Trial:
    """A run of `pp` x `dp` ranks with one layer a stage, `num_microbatches` each of `micro_batch_size` samples."""

    model: ModelShape
    device: str
    value_type: Precision
    threads: int
    micro_batch_size: int
    num_microbatches: int = 4
    pp: int = 1
    dp: int = 1

    @property
    def by_cpu_time(self) -> bool:
        """Whether seconds are those of the training thread's CPU time."""
        return self.device == "cpu" and self.threads == 1

    def config(self) -> RunConfig:
        """The configuration that the ranks of such a run read."""
        ranks = [
            Rank(stage * self.dp + replica, "here", "here", stage, replica, 0)
            for stage in range(self.pp)
            for replica in range(self.dp)
        ]
        samples = self.micro_batch_size * self.num_microbatches * self.dp
        return RunConfig(
            schema_version=SCHEMA_VERSION,
            run_id="trial",
            device="cuda" if self.device == "cuda" else "cpu",
            seed=0,
            steps=1,
            global_batch_size=samples,
            micro_batch_size=self.micro_batch_size,
            microbatches=(self.num_microbatches,) * self.dp,
            pp=self.pp,
            dp=self.dp,
            tp=1,
            data_parallel="flat",
            schedule="1f1b",
            chunks=1,
            extra_in_flight=(),
            room_in_flight=(),
            lossiest_codec="none",
            recompute="none",
            value_type=self.value_type,
            compile=False,
            model=self.model,
            emulation=None,
            data=Data("none.bin", "*", None, 0.0),
            evaluation=None,
            checkpoint=None,
            resume=False,
            optimizer=Optimizer(1e-4, 0.0, 0, "constant", 0.1, 0.9, 0.95, 1.0),
            stages=self._stages(),
            ranks=tuple(ranks),
            groups=tuple(self._groups()),
            expectation=None,
            timeout_s=60.0,
            threads_per_rank=self.threads,
        )

    def _stages(self) -> tuple[Stage, ...]:
        each = self.model.num_layers // self.pp
        return tuple(Stage(index, index * each, (index + 1) * each) for index in range(self.pp))

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
    """Medians over the steps of one rank, in seconds: forwards and backwards; all else; all else but waits for others.

    Of the CPU time of the rank's own thread, which other work on the machine does not change; of the time that passed
    on GPUs and where several threads compute.
    """

    computing_s: float
    update_s: float
    rest_s: float


def run_trial(trial: Trial, seconds: float, processes: int) -> list[Cost]:
    """Takes steps for about `seconds` in so many processes at once: one run, or of one rank each a run of its own."""
    context = multiprocessing.get_context("fork")
    # Forked before anything has computed: torch is imported once, and no thread is lost in the fork.
    answers: SimpleQueue[Cost] = context.SimpleQueue()
    port = _free_port()
    started = [
        context.Process(target=_run_rank, args=(trial, number, port, seconds, answers), daemon=True)
        for number in range(processes)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join()
        if process.exitcode != 0:
            raise RuntimeError(f"a process of the trial ended with {process.exitcode}; its own message is above")
    return [answers.get() for _ in started]


def _run_rank(trial: Trial, number: int, port: int, seconds: float, answers: SimpleQueue[Cost]) -> None:
    config, groups = trial.config(), RankGroups()
    torch.set_num_threads(trial.threads)
    is_run = config.world_size > 1
    if is_run:
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(number)}
        os.environ.update(where, WORLD_SIZE=str(config.world_size))
        process_groups.connect(config, number, config.world_size)
        groups = process_groups.open_groups(config, number)
    device = process_groups.select_device(config.device, number, os.environ)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(trial.model.vocab_size, (100 * trial.model.seq_length,), generator=generator)
    corpus = Corpus(Tokens((tokens,)), Tokens(()), "")
    me = config.grid.rank(number if is_run else 0)
    stopwatch = Stopwatch(device, time.thread_time) if trial.by_cpu_time else Stopwatch(device)
    answers.put(_take_steps(Trainer(config, me, corpus, groups, device, stopwatch), seconds))


def _take_steps(trainer: Trainer, seconds: float) -> Cost:
    """The cost by the trainer's clock."""
    for step in range(WARM_UP):
        trainer.step(step)
    trainer.stopwatch.read_s()
    steps: list[tuple[float, float, float]] = []
    stop_s, stop = time.monotonic() + seconds, False
    while not stop:
        if time.monotonic() > stop_s:
            trainer.ask_to_stop()
        stop = trainer.step(WARM_UP + len(steps)).stop
        laps_s = trainer.stopwatch.read_s()
        computing_s = laps_s.get("forward", 0.0) + laps_s.get("backward", 0.0)
        steps.append((computing_s, sum(laps_s.values()) - computing_s, laps_s.get("rest", 0.0)))
    trainer.zero1.wait()
    first, second, third = zip(*steps, strict=True)
    return Cost(statistics.median(first), statistics.median(second), statistics.median(third))


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
