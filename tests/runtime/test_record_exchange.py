"""Records between ranks as JSON, on one rank and on three."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch.distributed as dist
from torch.distributed import distributed_c10d

from holmes_runtime.comm import record_exchange
from holmes_runtime.comm.record_exchange import (
    all_gather_records,
    broadcast_record,
    gather_records,
    refuse_pickles,
)

RANKS = 3


class Said(NamedTuple):
    text: str
    numbers: tuple[int, ...]


class Other(NamedTuple):
    text: str


def said(rank: int) -> Said:
    return Said("ä" * rank, tuple(range(rank * 1000)))


def exchange(rank: int, folder: Path, answers: Any) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    gathered, first = gather_records(said(rank)), broadcast_record(said(rank + 1))
    try:
        all_gather_records(said(0) if rank else Other("x"))
        refused = "nothing"
    except ValueError as error:
        refused = str(error)
    answers.put((rank, all_gather_records(said(rank)), gathered, first, refused))
    dist.barrier()


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Any]]:
    fork, folder = multiprocessing.get_context("fork"), tmp_path_factory.mktemp("exchange")
    queue = fork.Queue()
    ranks = [fork.Process(target=exchange, args=(rank, folder, queue), daemon=True) for rank in range(RANKS)]
    for process in ranks:
        process.start()
    found = [queue.get(timeout=120) for _ in ranks]
    for process in ranks:
        process.join(60)
    return {rank: rest for rank, *rest in found}


@pytest.mark.torch
def test_all_ranks_get_every_record_of_any_length_in_order(answers: dict[int, list[Any]]) -> None:
    assert [answers[rank][0] for rank in range(RANKS)] == [[said(rank) for rank in range(RANKS)]] * RANKS


@pytest.mark.torch
def test_only_the_first_rank_gathers(answers: dict[int, list[Any]]) -> None:
    assert [answers[rank][1] for rank in range(RANKS)] == [[said(rank) for rank in range(RANKS)], [], []]


@pytest.mark.torch
def test_all_ranks_get_the_first_one_s_record(answers: dict[int, list[Any]]) -> None:
    assert [answers[rank][2] for rank in range(RANKS)] == [said(1)] * RANKS


@pytest.mark.torch
def test_a_record_of_another_type_is_refused_by_all(answers: dict[int, list[Any]]) -> None:
    assert [answers[rank][3] for rank in range(RANKS)] == [
        "numbers: unknown key, got []",
        "numbers: missing from ['text']",
        "numbers: missing from ['text']",
    ]


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_a_huge_record_is_refused_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_exchange, "MOST_BYTES", 40)
    assert all_gather_records(Other("x")) == [Other("x")]
    with pytest.raises(RuntimeError, match=r"rank 0 of a group sends a Other of \d+ bytes; 40 are the most"):
        all_gather_records(Other("x" * 38))


@pytest.mark.usefixtures("alone")
def test_what_a_peer_pickled_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed_c10d, "_unpickler", distributed_c10d._unpickler)
    gathered: list[Any] = [None]
    dist.all_gather_object(gathered, {"a": 1})
    assert gathered == [{"a": 1}]
    refuse_pickles()
    with pytest.raises(RuntimeError, match="a peer's object is not unpickled"):
        dist.all_gather_object(gathered, {"a": 1})
