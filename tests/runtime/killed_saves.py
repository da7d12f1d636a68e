"""Two ranks that save after every step are killed at random moments, again and again, and always go on from a whole
checkpoint. A program of its own: it forks ranks, which only a process without threads may do.

`python -m tests.runtime.killed_saves FOLDER KILLS` prints JSON: the last step resumed from, for every kill how many
saved steps it cost, and what lies in the folder. With `own` each rank has a folder of its own, and after each kill that
of one of them is deleted.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import torch.distributed as dist

from holmes_runtime.checkpoint.checkpoints import Checkpoints
from holmes_runtime.checkpoint.description import Counters
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.config.run_settings import Checkpointing
from holmes_runtime.model.tensor_part import TensorPart
from holmes_runtime.parallel.gradient_buckets import Shard

from .launched_runs import make_config

ELEMENTS = 2**18
RANKS = 2


def config(folder: Path, resume: bool, own: str) -> RunConfig:
    plain = make_config(pipelines=((0,), (1,)), cuts=(0, 3))
    return replace(plain, checkpoint=Checkpointing(str(folder / "checkpoints" / own), 1, 2, 2), resume=resume)


def shards(rank: int) -> list[Shard]:
    """This rank's half of two tensors, with the state of no step."""
    half = ELEMENTS // 2
    whole = TensorPart((512, ELEMENTS // 512), (0, 0), (512, ELEMENTS // 512))
    return [
        Shard(name, whole, rank * half, (rank + 1) * half, *(torch.zeros(half) for _ in range(5)))
        for name in ("a", "b")
    ]


def fill(mine: list[Shard], steps: int) -> None:
    """The state after `steps`: every number tells it."""
    for shard in mine:
        for times, values in enumerate((shard.master, shard.exp_avg, shard.exp_avg_sq), start=1):
            values.fill_(steps * times)


def train(rank: int, folder: Path, attempt: int, report: Connection, own: str) -> None:
    """One rank: resumes, checks that what it got is one step's state, and saves step after step until it is killed."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous-{attempt}", rank=rank, world_size=RANKS)
    settings = config(folder, resume=attempt > 0, own=own)
    checkpoints = Checkpoints(settings, settings.grid.rank(rank), "digest")
    mine, expected = shards(rank), shards(rank)
    counters = checkpoints.load(mine)
    steps = counters.steps if counters else 0
    fill(expected, steps)
    for got, wanted in zip(mine, expected, strict=True):
        assert torch.equal(got.master, wanted.master), f"resumed at {steps} with other numbers"
        assert torch.equal(got.exp_avg_sq, wanted.exp_avg_sq), f"resumed at {steps} with other numbers"
    report.send(("resumed", steps))
    while True:
        steps += 1
        fill(mine, steps)
        checkpoints.save(mine, Counters(steps, steps, 1.0, 0, steps))  # returns once the save before it is whole
        report.send(("saved", steps - 1))


def main() -> None:
    folder, kills = Path(sys.argv[1]), int(sys.argv[2])
    own = [f"host{rank}" if "own" in sys.argv else "" for rank in range(RANKS)]
    random.seed(7)
    fork = get_context("fork")
    lost, last_saved, resumed = [], 0, 0
    for attempt in range(kills + 1):
        pipes = [fork.Pipe(duplex=False) for _ in range(RANKS)]
        ranks = [
            fork.Process(target=train, args=(rank, folder, attempt, pipes[rank][1], own[rank])) for rank in range(RANKS)
        ]
        for process in ranks:
            process.start()
        reader = pipes[0][0]
        assert reader.poll(300), "no rank resumed within 300 s"
        kind, resumed = reader.recv()
        assert kind == "resumed"
        if attempt:
            lost.append(last_saved - resumed)
        last_saved = resumed
        while own[0] and last_saved in (0, resumed):  # what was resumed has one copy until something is saved again
            assert reader.poll(300), "nothing was saved within 300 s"
            last_saved = reader.recv()[1]
        time.sleep(random.uniform(0.0, 0.4))
        for process in ranks:
            assert process.is_alive(), f"attempt {attempt}: rank ended by itself with {process.exitcode}"
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
        for process in ranks:
            process.join()
        while reader.poll():
            try:
                last_saved = max(last_saved, reader.recv()[1])
            except EOFError:
                break
        if own[0]:
            shutil.rmtree(folder / "checkpoints" / random.choice(own))
    left = sorted(path.name for path in (folder / "checkpoints").iterdir())
    print(json.dumps({"resumed": resumed, "lost": lost, "left": left}))


if __name__ == "__main__":
    main()
