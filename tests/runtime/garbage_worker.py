"""`python -m tests.runtime.garbage_worker`: how many tensors a step's pipeline leaves to the collector, by schedule.

The other rank of the pipeline is torch's fake process group, whose messages have any content.
"""

from __future__ import annotations

import gc
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore, _create_fake_pg

from holmes_runtime.comm import process_groups
from holmes_runtime.config.schedule import ScheduleName
from holmes_runtime.data.corpus import load_corpus
from holmes_runtime.parallel.batch import Batch
from holmes_runtime.trainer import Trainer

from .launched_runs import TINY, make_config

STEPS = 3
INTERLEAVED = {"chunks": 2, "cuts": (0, 1, 2, 3, 4), "model": replace(TINY, num_layers=4)}


def fake(options: Any, _: Any) -> Any:
    """A group of backend "holmes" that connects nothing."""
    return _create_fake_pg(options, None)  # type: ignore[no-untyped-call]


def main() -> None:
    """Prints a line a schedule: its name, and the number on the first and the last pipeline rank after a warm-up."""
    dist.Backend.register_backend("holmes", fake, extended_api=True, devices=["cpu"])
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus.txt"
        corpus.write_bytes(bytes(range(32, 127)) * 43)
        for schedule in get_args(ScheduleName):
            print(schedule, *(tensors_left(corpus, schedule, rank) for rank in (0, 1)))


def tensors_left(corpus: Path, schedule: ScheduleName, rank: int) -> int:
    """Tensors in reference cycles that nothing refers to, after three steps."""
    by_schedule: dict[str, dict[str, Any]] = {"eager": {"extra_in_flight": (1,)}, "interleaved": INTERLEAVED}
    options = by_schedule.get(schedule, {})
    config = make_config(corpus, **{"pipelines": ((0, 1),), "cuts": (0, 1, 3), "schedule": schedule, **options})
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=2)
    me = config.grid.rank(rank)
    loaded = load_corpus(config.data, me.host, config.model.seq_length, config.model.vocab_size)
    trainer = Trainer(config, me, loaded, process_groups.open_groups(config, rank), torch.device("cpu"))
    take_step(trainer)
    gc.collect()
    gc.disable()
    for _ in range(STEPS):
        take_step(trainer)
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    found = sum(isinstance(each, torch.Tensor) for each in gc.garbage)
    gc.garbage.clear()
    gc.enable()
    dist.destroy_process_group()
    return found


def take_step(trainer: Trainer) -> None:
    """Forward and backward of all micro-batches."""
    trainer.zero1.start()
    tokens = trainer.training.batch(0, trainer.config.sample_numbers(0))
    trainer.pipeline.step(Batch(tokens, None), 0)


if __name__ == "__main__":
    main()
