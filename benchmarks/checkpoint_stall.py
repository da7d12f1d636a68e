"""`python -m benchmarks.checkpoint_stall`: how much of ten steps one checkpoint costs, on this machine's disk.

One process of one thread trains a GPT of 29 million parameters, 350 MB of state; what is lost is the pause at the save,
and what copying the state and writing it in the background take from the steps meanwhile. The median of several rounds.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from array import array
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.figure import print_figure
from holmes_runtime.checkpoint.checkpoints import Checkpoints
from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.config.model_shape import ModelShape
from holmes_runtime.config.run_settings import CheckpointSettings
from holmes_runtime.data.corpus import Corpus
from holmes_runtime.data.tokens import TokenPart, Tokens
from holmes_runtime.node.data_files.bad_lines import BadLines
from holmes_runtime.node.data_files.stored_bytes import MemoryBytes
from holmes_runtime.rank_notices import RankNotices
from holmes_runtime.trainer import Trainer
from holmes_runtime.trial import Trial

STEPS, ROUNDS = 10, 3
SHAPE = ModelShape(
    num_layers=8, hidden_size=544, num_heads=8, num_kv_heads=8, ffn_hidden_size=2176, vocab_size=256, seq_length=128
)


def take_steps(trainer: Trainer, checkpoints: Checkpoints | None, first: int) -> float:
    """Seconds of `STEPS` steps, after the first of which a checkpoint is saved, if any."""
    started_s = time.perf_counter()
    for step in range(first, first + STEPS):
        trainer.step(step)
        if checkpoints is not None and step == first:
            trainer.zero1.wait()
            checkpoints.save(trainer.zero1.shards(), trainer.counters(step + 1))
    return time.perf_counter() - started_s


def measure(folder: Path) -> tuple[float, float]:
    """Percent of ten steps that one checkpoint costs: all of it, and its pause alone."""
    trial = Trial(SHAPE, "cpu", "fp32", threads=1, micro_batch_size=1, num_microbatches=2)
    config = replace(trial.config(), checkpoint=CheckpointSettings(str(folder / "saved"), 1, 1, 2))
    me, tokens = config.grid.rank(0), Tokens([TokenPart("bytes", MemoryBytes(array("B", bytes(10000))), "uint8")])
    checkpoints, corpus = Checkpoints(config, me, "", RankNotices(folder, 0)), Corpus((tokens,), (), "", BadLines(0))
    trainer = Trainer(config, me, corpus, RankGroups(), torch.device("cpu"), before_update=checkpoints.await_copy)
    take_steps(trainer, checkpoints, 0)  # the first checkpoint makes its buffers
    checkpoints.finish()
    costs, pauses = [], []
    for round_number in range(1, 2 * ROUNDS, 2):
        without_s = take_steps(trainer, None, round_number * STEPS)
        with_s = take_steps(trainer, checkpoints, (round_number + 1) * STEPS)
        checkpoints.finish()
        started_s = time.perf_counter()
        checkpoints.save(trainer.zero1.shards(), trainer.counters((round_number + 2) * STEPS))
        pauses.append(100 * (time.perf_counter() - started_s) / without_s)
        checkpoints.finish()
        costs.append(100 * (with_s - without_s) / without_s)
    return statistics.median(costs), statistics.median(pauses)


def main() -> None:
    """Prints both as figures."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        store = Path(name) / "store"
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
        cost, pause = measure(Path(name))
        dist.destroy_process_group()
    print_figure("checkpoint.stall_percent", cost, "%")
    print_figure("checkpoint.pause_percent", pause, "%")


if __name__ == "__main__":
    main()
