"""Islands whose exchange is applied late: what each knows by itself is not, only what it has to hear of others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import mean

import pytest
import torch

from holmes_runtime.comm.process_groups import RankGroups
from holmes_runtime.data.corpus import load_corpus
from holmes_runtime.outer.outer_step import estimated_anchor, outer_step
from holmes_runtime.trainer import Trainer

from .islands_in_process import IslandsInProcess
from .islands_worker import H, Worker

ROUNDS = 6


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def learned(folder: Path, delay_steps: int, fragments: int, apart: int, rounds: int = ROUNDS) -> list[list[float]]:
    """By step the losses of two islands, the second of which reads samples so many rounds after the first's."""
    worker, trainers = Worker(folder), []
    for island in range(2):
        first = worker.config({}, None).global_batch_size * H * apart * island
        outer = {"delay_steps": delay_steps, "fragments": fragments, "samples_before": first}
        config = worker.config({}, outer, island, steps=rounds * H)
        corpus = load_corpus(config.data, "here", config.model.seq_length, config.model.vocab_size)
        trainers.append(Trainer(config, config.grid.rank(0), corpus, RankGroups(), torch.device("cpu")))
    islands = IslandsInProcess(trainers)
    return [islands.step(step) for step in range(rounds * H)]


@pytest.mark.slow
@pytest.mark.parametrize(("fragments", "delay_steps"), [(1, H), (2, 1)])
def test_a_delay_changes_no_bit_where_others_learn_what_an_island_does(
    fragments: int, delay_steps: int, tmp_path: Path
) -> None:
    late = learned(tmp_path, delay_steps, fragments, apart=0, rounds=4)

    assert late == learned(tmp_path, 0, fragments, apart=0, rounds=4)
    assert all(first == second for first, second in late)


@pytest.mark.slow
def test_islands_that_learn_apart_lose_little_by_a_delay(tmp_path: Path) -> None:
    """The mean loss on the way is 2.41 at once, 2.63 late; 2.81 if the whole step came late."""
    at_once, late = (mean(map(mean, learned(tmp_path, delay, 1, apart=1))) for delay in (0, H))

    assert at_once < late < 1.12 * at_once


def test_an_island_goes_on_from_the_anchor_that_islands_like_it_come_to() -> None:
    anchor, momentum, parameters = (torch.randn(100, generator=torch.Generator().manual_seed(n)) for n in range(3))

    ahead = estimated_anchor(anchor, momentum, parameters, 0.7, 0.9)

    both = outer_step(anchor, momentum, [parameters, parameters], [5, 5], "none", 0.7, 0.9)
    assert torch.equal(ahead, both.anchor)
