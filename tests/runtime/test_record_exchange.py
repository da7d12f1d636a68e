"""Records between ranks as JSON, on one rank and on three."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from holmes_runtime.comm import record_exchange
from holmes_runtime.comm.keyed_exchange import KeyedExchange, take_key
from holmes_runtime.comm.record_exchange import (
    all_gather_records,
    broadcast_record,
    gather_records,
    refuse_pickles,
)
from holmes_runtime.config.messages import CHANGED
from holmes_runtime.config.node_config import KEY_VARIABLE
from holmes_runtime.node.admission.keyed_frames import TAG_BYTES, FrameAltered
from tests.seeds import few_of

RANKS = 3
HOSTS = ("a1", "a2", "b1")


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
    take_key({KEY_VARIABLE: "ab" * 32}, HOSTS)
    records = all_gather_records(said(rank))
    if rank == 2:
        dist.broadcast = flipped(dist.broadcast, CAME["broadcast"], 0, 5)
    try:
        broadcast_record(said(1), source=1)
        noticed = "nothing"
    except FrameAltered as error:
        noticed = str(error)
    answers.put((rank, records, gathered, first, refused, noticed))
    dist.barrier()


def flipped(act: Any, pick: Callable[[Any], torch.Tensor], skipped: int, bit: int) -> Any:
    """`act` of torch.distributed, after the call of which past the `skipped` ones a bit of what came is another."""
    calls = count()

    def acting(*arguments: Any, **named: Any) -> Any:
        done = act(*arguments, **named)
        if next(calls) == skipped:
            tensor = pick(arguments)
            tensor[bit // 8 % len(tensor)] ^= 1 << bit % 8
        return done

    return acting


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Any]]:
    fork, folder = multiprocessing.get_context("fork"), tmp_path_factory.mktemp("exchange")
    queue = fork.Queue()
    ranks = [fork.Process(target=exchange, args=(rank, folder, queue), daemon=True) for rank in range(RANKS)]
    for process in ranks:
        process.start()
    found = [queue.get(timeout=600) for _ in ranks]
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


@pytest.mark.torch
def test_who_gets_a_record_that_was_changed_names_both_ends_and_the_others_go_on(answers: dict[int, list[Any]]) -> None:
    assert [answers[rank][4] for rank in range(RANKS)] == [
        "nothing",
        "nothing",
        f"what rank 1 on a2 sent to rank 2 on b1 {CHANGED}: a control record",
    ]


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_a_huge_record_is_refused_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_exchange, "MAX_BYTES", 40)
    assert all_gather_records(Other("x")) == [Other("x")]
    with pytest.raises(RuntimeError, match=r"rank 0 of a group sends a Other of \d+ bytes; the limit is 40"):
        all_gather_records(Other("x" * 38))


CAME: dict[str, Callable[[Any], torch.Tensor]] = {
    "all_gather": lambda arguments: arguments[0][0],
    "gather": lambda arguments: arguments[1][0],
    "broadcast": lambda arguments: arguments[0],
}
EXCHANGES: dict[str, Callable[[Said], object]] = {
    "all_gather": all_gather_records,
    "gather": gather_records,
    "broadcast": broadcast_record,
}


@pytest.mark.parametrize("number", few_of(1, [25, 250]))
@pytest.mark.usefixtures("alone")
def test_every_flipped_bit_of_a_record_or_its_head_is_noticed(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    head_bits = 8 * (8 + 2 * TAG_BYTES)
    for seed in range(number):
        dice = random.Random(seed)
        mine, name = said(dice.randint(0, 2)), dice.choice([*EXCHANGES])
        if dice.random() < 0.5:
            change = ("all_gather", 0, dice.randrange(head_bits))
        else:
            change = (name, 1 if name == "all_gather" else 0, dice.randrange(1 << 20))
        function, skipped, bit = change
        original = getattr(dist, function)
        monkeypatch.setattr(dist, function, flipped(original, CAME[function], skipped, bit))
        with pytest.raises(FrameAltered, match="what rank 0 sent to rank 0 was changed on the way"):
            EXCHANGES[name](mine)
        monkeypatch.setattr(dist, function, original)
        assert EXCHANGES[name](mine) in ([mine], mine)


@pytest.mark.usefixtures("alone")
def test_a_record_of_an_exchange_before_is_not_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    original, heard = dist.all_gather, list[torch.Tensor]()

    def replaying(gathered: list[torch.Tensor], mine: torch.Tensor, group: Any = None) -> None:
        original(gathered, mine, group=group)
        heard.append(gathered[0].clone())
        if len(heard) > 2:
            gathered[0].copy_(heard[len(heard) - 3])

    monkeypatch.setattr(dist, "all_gather", replaying)
    assert all_gather_records(Other("old")) == [Other("old")]
    with pytest.raises(FrameAltered):
        all_gather_records(Other("new"))


@pytest.mark.usefixtures("alone")
def test_who_does_not_have_the_key_cannot_make_a_tag() -> None:
    environment, exchange = {KEY_VARIABLE: "ab" * 32, "OTHER": "stays"}, KeyedExchange(None)
    without_key = exchange.tag(0, "x", b"data")
    take_key(environment, ())
    try:
        assert environment == {"OTHER": "stays"}  # children and what libraries log do not have it
        assert exchange.tag(0, "x", b"data") != without_key
    finally:
        take_key({}, ())


@pytest.mark.usefixtures("alone")
def test_what_a_peer_pickled_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed_c10d, "_unpickler", distributed_c10d._unpickler)
    gathered: list[Any] = [None]
    dist.all_gather_object(gathered, {"a": 1})
    assert gathered == [{"a": 1}]
    refuse_pickles()
    with pytest.raises(RuntimeError, match="a peer's object is not unpickled"):
        dist.all_gather_object(gathered, {"a": 1})
