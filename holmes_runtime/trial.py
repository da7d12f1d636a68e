"""A few steps of a small run on this host, with the real trainer, to measure their cost on a slot."""

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
from holmes_runtime.comm.stopwatch import Stopwatch
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
WARM_UP = 2  # first steps, which make connections, caches and buffers and are not counted
NO_CODEC: Codec = "none"


@dataclass(frozen=True)
class Trial:
    """A run of `pp` x `dp` ranks with equal stages. Each replica runs `num_microbatches` per step."""

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

    def device_of(self, slot: int) -> torch.device:
        """Return the device of a slot: its own GPU, or the CPU."""
        return torch.device("cuda", slot) if self.device == "cuda" else torch.device("cpu")

    @property
    def by_cpu_time(self) -> bool:
        """True if seconds are CPU time of the training thread, not elapsed time."""
        return self.device == "cpu" and self.threads == 1

    def config(self) -> RunConfig:
        """Return the configuration that the ranks of the run read."""
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
    """Medians over the steps of one rank, in seconds.

    `computing_s`: forwards and backwards. `update_s`: the rest of the step. `rest_s`: that without waits for other
    ranks. `backward_s`: backwards alone. On a CPU slot of one thread they are CPU time of that thread, which other work
    on the machine does not change, and else elapsed time.
    """

    computing_s: float
    update_s: float
    rest_s: float
    backward_s: float


def run_trial(trial: Trial, seconds: float, processes: int) -> list[Cost]:
    """Take steps for about `seconds` in `processes` processes at the same time. Return their costs by rank.

    The processes form one run, or, if the trial has one rank, one run each.

    Raises:
        RuntimeError: A process failed.
    """
    # With a fork, torch is imported only once. No thread is lost, as nothing was computed yet. CUDA allows no fork.
    fork, spawn = multiprocessing.get_context("fork"), multiprocessing.get_context("spawn")
    context: ForkContext | SpawnContext = fork if trial.device == "cpu" else spawn
    answers: SimpleQueue[tuple[int, Cost | str]] = context.SimpleQueue()
    port = _free_port()
    slots = [(trial, number, trial.device_of(number), port, seconds, answers) for number in range(processes)]
    started = [context.Process(target=_run_rank, args=slot, daemon=True) for slot in slots]
    for process in started:
        process.start()
    for process in started:
        process.join()
        if process.exitcode != 0:
            reason = "" if answers.empty() else f": {answers.get()[1]}"
            raise RuntimeError(f"a process of the trial ended with {process.exitcode}{reason}")
    by_rank = dict(answers.get() for _ in started)
    return [cost for number in range(processes) if isinstance(cost := by_rank[number], Cost)]


def _run_rank(
    trial: Trial,
    number: int,
    device: torch.device,
    port: int,
    seconds: float,
    answers: SimpleQueue[tuple[int, Cost | str]],
) -> None:
    """Put this rank's cost, or the error, into `answers`."""
    try:
        cost = _cost_of_rank(trial, number, device, port, seconds)
    except Exception as error:
        answers.put((number, f"{type(error).__name__}: {error}"))
        raise
    answers.put((number, cost))


def _cost_of_rank(trial: Trial, number: int, device: torch.device, port: int, seconds: float) -> Cost:
    config, groups = trial.config(), RankGroups()
    torch.set_num_threads(trial.threads)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    is_run = config.world_size > 1
    if is_run:
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(number)}
        os.environ.update(where, WORLD_SIZE=str(config.world_size))
        process_groups.connect(config, number, config.world_size)
        groups = process_groups.open_groups(config, number, device)
    corpus = random_corpus(trial.model)
    me = config.grid.rank(number if is_run else 0)
    stopwatch = Stopwatch(device, time.thread_time) if trial.by_cpu_time else Stopwatch(device)
    return _take_steps(Trainer(config, me, corpus, groups, device, stopwatch), seconds)


def random_corpus(model: ModelShape, documents: Sequence[int] = ()) -> Corpus:
    """Return random tokens for a hundred samples, the same in every process, with documents from these positions."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.vocab_size, (100 * model.seq_length,), generator=generator)
    stored = MemoryBytes(array("q", tokens.tolist()))
    return Corpus((Tokens([TokenPart("random", stored, "int64", documents)]),), (), "", BadLines(0))


def _take_steps(trainer: Trainer, seconds: float) -> Cost:
    """Take steps for about `seconds`. Return their cost by the trainer's clock."""
    for step in range(WARM_UP):
        trainer.step(step)
        trainer.stopwatch.read_s()
    steps: list[Cost] = []
    stop_s, stop = time.monotonic() + seconds, False
    while not stop:
        if time.monotonic() > stop_s:
            trainer.ask_to_stop()
        stop = trainer.step(WARM_UP + len(steps)).stop
        laps_s = trainer.stopwatch.read_s()
        backward_s = laps_s.get("backward", 0.0)
        computing_s = laps_s.get("forward", 0.0) + backward_s
        steps.append(Cost(computing_s, sum(laps_s.values()) - computing_s, laps_s.get("rest", 0.0), backward_s))
    trainer.zero1.wait()
    return Cost(*map(statistics.median, zip(*map(astuple, steps), strict=True)))


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
