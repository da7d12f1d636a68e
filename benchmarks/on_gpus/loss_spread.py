"""`python -m benchmarks.on_gpus.loss_spread`: the difference that bf16 makes to the losses of the small job, by seed.

The bars of the step `single` come from here. Runs on the CPU, without a launch.
"""

from __future__ import annotations

import argparse
import json
import os
from array import array
from dataclasses import replace

import torch

from benchmarks.on_gpus.product_run import largest_difference
from benchmarks.on_gpus.scale import ON_GPUS, small_text
from holmes_core.records.job import Job
from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.config.run_settings import Precision
from holmes_runtime.data.corpus import Corpus
from holmes_runtime.data.tokens import TokenPart, Tokens
from holmes_runtime.node.data_files.bad_lines import BadLines
from holmes_runtime.node.data_files.stored_bytes import MemoryBytes
from holmes_runtime.trainer import Trainer
from holmes_runtime.trial import Trial


def losses_of(precision: Precision, seed: int, threads: int) -> list[float]:
    """Return the losses of the small job, trained in this process in one precision from one seed."""
    job = Job.model_validate(ON_GPUS.job("/corpus.txt", "cpu"))
    trial = Trial(job.model, "cpu", precision, threads, micro_batch_size=job.global_batch_size // 4)
    config = replace(trial.config(), seed=seed, steps=job.steps, optimizer=job.optimizer)
    data = MemoryBytes(array("q", list(small_text().encode())))
    corpus = Corpus((Tokens([TokenPart("text", data, "int64")]),), (), "", BadLines(0))
    trainer = Trainer(config, config.grid.rank(0), corpus, RankGroups(), torch.device("cpu"))
    losses = [trainer.step(step).loss for step in range(job.steps)]
    return [loss for loss in losses if loss is not None]


def main() -> None:
    """Print one line of JSON for each seed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=4)
    given = parser.parse_args()
    threads = len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    for seed in range(given.seeds):
        fp32, bf16 = losses_of("fp32", seed, threads), losses_of("bf16", seed, threads)
        line = {"seed": seed, "differs_by": largest_difference(bf16, fp32), "fp32": fp32, "bf16": bf16}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
