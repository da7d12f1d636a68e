"""What a rank of a pipeline still holds of what it has sent in an evaluation, the other ranks being pretended."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.comm.streams import Transfer
from holmes_runtime.data.corpus import load_corpus
from holmes_runtime.trainer import Trainer

from .launched_runs import make_config

MICROBATCHES = 16


@pytest.fixture
def groups() -> Iterator[RankGroups]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    edge = dist.group.WORLD
    yield RankGroups(forward_out=edge, backward_in=edge)
    dist.destroy_process_group()


@pytest.mark.slow
def test_an_evaluation_holds_two_rounds_of_the_pipeline_and_not_all_it_has_sent(
    groups: RankGroups, tmp_path: Path
) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(b"a" * 2000)
    config = make_config(text, ((0, 1),), (0, 2, 3), microbatches=[MICROBATCHES], validation_fraction=0.5)
    corpus = load_corpus(config.data, "here", config.model.seq_length, config.model.vocab_size)
    trainer = Trainer(config, config.grid.rank(0), corpus, groups, torch.device("cpu"))
    held: list[int] = []
    trainer.pipeline._modules[0].register_forward_pre_hook(
        lambda *_: held.append(sum(type(each) is Transfer for each in gc.get_objects()))
    )

    trainer.evaluate(num_batches=1, steps=1)

    assert len(held) == MICROBATCHES
    assert 0 < max(held) < 2 * 2  # pipeline ranks, rounds
