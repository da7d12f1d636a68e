"""The batch of the next step is read while a step computes, and is the one that would have been read then."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.data.corpus import load_corpus
from holmes_runtime.data.read_ahead import BatchesAhead
from holmes_runtime.parallel.batch import Batch
from holmes_runtime.trainer import Trainer

from .launched_runs import make_config

CPU = torch.device("cpu")


def batch_of(step: int) -> Batch:
    return Batch(torch.full((2, 3), step), None)


def test_a_step_finds_its_batch_already_read() -> None:
    second = threading.Event()

    def read(step: int) -> Batch:
        if step == 1:
            second.set()
        return batch_of(step)

    BatchesAhead(read, 2, "here", CPU).take(0)

    assert second.wait(timeout=600)


@pytest.mark.parametrize("steps", [(0, 1, 2, 3), (2, 3), (3, 1, 2, 2)], ids=["from the start", "resumed", "any order"])
def test_batches_are_those_of_their_steps(steps: tuple[int, ...]) -> None:
    batches = BatchesAhead(batch_of, 4, "here", CPU)

    for step in steps:
        tokens, positions, *_ = batches.take(step)
        assert tokens is not None
        assert tokens.tolist() == [[step] * 3] * 2
        assert positions is None


def test_nothing_is_read_behind_the_last_step() -> None:
    read = []

    def note(step: int) -> Batch:
        read.append(step)
        return batch_of(step)

    batches = BatchesAhead(note, 2, "here", CPU)
    for step in (0, 1, 1):
        batches.take(step)

    assert read == [0, 1, 1]


def test_what_cannot_be_read_ends_the_step_it_is_for_and_none_before(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(bytes(20 + number % 100 for number in range(2000)))
    config = make_config(text, steps=3)
    trainer = Trainer(
        config, config.grid.rank(0), load_corpus(config.data, "host0", 32, 256), RankGroups(), torch.device("cpu")
    )

    trainer.step(0)  # reads the batch of step 1, too
    trainer.training = replace(trainer.training, vocab_size=1)
    trainer.step(1)
    with pytest.raises(RuntimeError, match=r"step 2, host host0: .*text\.txt has token .* vocab_size is 1"):
        trainer.step(2)
