"""Ranks that save after every step are killed in the midst of saves, again and again, and always go on from a whole
checkpoint. A program of its own: it forks ranks, which only a process without threads may do.

`python -m tests.runtime.killed_saves FOLDER KILLS HOW` prints JSON: the last step resumed from, for every kill how many
saved steps it cost, and what lies in the folder. It ends after KILLS that left a save half written. HOW: `shared`, two
ranks have one folder; `own`, each has its own, and after each kill that of one is deleted; `cluster`, four ranks in two
clusters have folders of their own, and both of a cluster are deleted.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
import torch.distributed as dist

from holmes_runtime.checkpoint.checkpoints import Checkpoints
from holmes_runtime.config.run_config import RunConfig
from holmes_runtime.config.run_settings import CheckpointSettings
from holmes_runtime.model.tensor_part import TensorPart
from holmes_runtime.node.checkpoint_files.description import Counters, validated_after
from holmes_runtime.parallel.gradient_buckets import Shard
from holmes_runtime.rank_notices import RankNotices

from .launched_runs import make_config

ELEMENTS = 2**18
LOWER_EVERY = 5  # steps: the others have a higher validation loss, and are more than are kept
CLUSTERS = {"shared": "oo", "own": "oo", "cluster": "aabb"}  # of each rank


def config(folder: Path, resume: bool, how: str, rank: int) -> RunConfig:
    clusters = CLUSTERS[how]
    pipelines = tuple((each,) for each in range(len(clusters)))
    plain = make_config(pipelines=pipelines, cuts=(0, 3), clusters=clusters if how == "cluster" else ())
    path = folder / "checkpoints" / ("" if how == "shared" else f"host{rank}")
    return replace(plain, checkpoint=CheckpointSettings(str(path), 1, 2, 2), resume=resume, from_scratch=True)


def shards(rank: int, ranks: int) -> list[Shard]:
    """This rank's part of two tensors, with the state of no step."""
    part = ELEMENTS // ranks
    whole = TensorPart((512, ELEMENTS // 512), (0, 0), (512, ELEMENTS // 512))
    return [
        Shard(name, whole, rank * part, (rank + 1) * part, *(torch.zeros(part) for _ in range(5)))
        for name in ("a", "b")
    ]


def fill(mine: list[Shard], steps: int) -> None:
    """The state after `steps`: every number tells it."""
    for shard in mine:
        for times, values in enumerate((shard.master, shard.exp_avg, shard.exp_avg_sq), start=1):
            values.fill_(steps * times)


def train(rank: int, folder: Path, attempt: int, report: Connection, how: str) -> None:
    """One rank: resumes, checks that what it got is one step's state, and saves step after step until it is killed."""
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a rank that is killed may leave a line without an end
    ranks = len(CLUSTERS[how])
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous-{attempt}", rank=rank, world_size=ranks)
    settings = config(folder, attempt > 0, how, rank)
    checkpoints = Checkpoints(settings, settings.grid.rank(rank), "digest", RankNotices(folder, rank))
    mine, expected = shards(rank, ranks), shards(rank, ranks)
    counters = checkpoints.load(mine)
    steps = counters.steps if counters else 0
    fill(expected, steps)
    for got, wanted in zip(mine, expected, strict=True):
        for name in ("master", "exp_avg", "exp_avg_sq"):
            assert torch.equal(getattr(got, name), getattr(wanted, name)), f"resumed at {steps} with another {name}"
    seen = counters.validated if counters else None
    if how == "shared" and steps:
        lowest = max(1, steps - steps % LOWER_EVERY)
        assert checkpoints.best is not None
        assert f"step-{lowest:08d} " in checkpoints.best, f"resumed at {steps} with another best: {checkpoints.best}"
    report.send(("resumed", steps))
    while True:
        steps += 1
        checkpoints.await_copy()
        fill(mine, steps)
        seen = validated_after(seen, 9.0 if steps % LOWER_EVERY else 1.0 / steps, steps)
        checkpoints.save(
            mine, Counters(steps, steps, 1.0, 0, steps, validated=seen)
        )  # returns once the save before it is whole
        report.send(("saved", steps - 1))


def lose(folder: Path, how: str) -> None:
    """Deletes the folder of one host, or those of one cluster."""
    clusters = CLUSTERS[how]
    lost = random.randrange(len(clusters))
    gone = [lost] if how == "own" else [each for each, name in enumerate(clusters) if name == clusters[lost]]
    for rank in gone if how != "shared" else []:
        shutil.rmtree(folder / "checkpoints" / f"host{rank}")


def kill_all(ranks: Sequence[BaseProcess], attempt: int) -> None:
    """Kill ranks that live: all are looked at before the first is killed, which others do not outlive."""
    ended = [process.exitcode for process in ranks if not process.is_alive()]
    assert not ended, f"attempt {attempt}: ranks ended by themselves with {ended}"
    for process in ranks:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
    for process in ranks:
        process.join()


def main() -> None:
    folder, kills, how = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    random.seed(7)
    fork = get_context("fork")
    lost, last_saved, resumed, in_midst, was_in_midst = [], 0, 0, 0, False
    for attempt in range(5 * kills):
        pipes = [fork.Pipe(duplex=False) for _ in CLUSTERS[how]]
        ranks = [
            fork.Process(target=train, args=(rank, folder, attempt, pipe[1], how)) for rank, pipe in enumerate(pipes)
        ]
        for process in ranks:
            process.start()
        reader = pipes[0][0]
        assert reader.poll(300), "no rank resumed within 300 s"
        kind, resumed = reader.recv()
        assert kind == "resumed"
        if attempt:
            lost.append(last_saved - resumed)
            in_midst += was_in_midst
        last_saved = resumed
        # What was resumed may have one copy until a save. In one folder every second kill may come before a save, too.
        while (how != "shared" or attempt % 2 == 0) and last_saved in (0, resumed):
            assert reader.poll(300), "nothing was saved within 300 s"
            last_saved = reader.recv()[1]
        time.sleep(random.uniform(0.0, 0.4))
        kill_all(ranks, attempt)
        was_in_midst = any((folder / "checkpoints").rglob("step-*.partial"))
        while reader.poll():
            try:
                last_saved = max(last_saved, reader.recv()[1])
            except EOFError:
                break
        if in_midst == kills:
            break
        lose(folder, how)
    left = sorted(path.name for path in (folder / "checkpoints").iterdir())
    print(json.dumps({"resumed": resumed, "lost": lost, "in_midst": in_midst, "left": left}))


if __name__ == "__main__":
    main()
