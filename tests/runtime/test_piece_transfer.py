"""Bytes between ranks in chunks: their sizes, their order, and that training's own messages go first."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from holmes_runtime.checkpoint.piece_transfer import (
    MAX_BYTES,
    MIN_BYTES,
    Incoming,
    OutgoingPiece,
    TransferPace,
    exchange,
)
from holmes_runtime.config.messages import CHANGED
from holmes_runtime.node.admission.keyed_frames import FrameAltered
from holmes_runtime.node.admission.own_sockets import beside_newer, bytes_on_way, is_moving, own_connections

from .forked_ranks import with_torch

RANKS = 3
SIZES = {(0, 1): 3 * MAX_BYTES + 5, (1, 0): 7, (0, 2): MIN_BYTES, (2, 1): 2 * MIN_BYTES + 1}  # by sender and taker


def content(pair: tuple[int, int]) -> bytes:
    return (bytes(range(251)) * (SIZES[pair] // 251 + 1))[pair[0] :][: SIZES[pair]]


def give_and_take(rank: int, folder: Path, answers: Any) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    taken: dict[tuple[int, int], bytearray] = {pair: bytearray() for pair in SIZES if pair[1] == rank}
    chunks: dict[tuple[int, int], list[int]] = {pair: [] for pair in taken}

    def giver(pair: tuple[int, int]) -> OutgoingPiece:
        left = memoryview(content(pair))

        def fill(target: memoryview) -> None:
            nonlocal left
            target[:], left = left[: len(target)], left[len(target) :]

        return OutgoingPiece(pair[1], SIZES[pair], fill)

    def taker(pair: tuple[int, int]) -> Incoming:
        def take(source: memoryview) -> None:
            chunks[pair].append(len(source))
            taken[pair].extend(source)

        return Incoming(pair[0], SIZES[pair], take)

    outgoing = [giver(pair) for pair in SIZES if pair[0] == rank]
    assert dist.group.WORLD is not None
    exchange(outgoing, [taker(pair) for pair in taken], dist.group.WORLD, TransferPace())
    answers.put({pair: (bytes(data) == content(pair), chunks[pair]) for pair, data in taken.items()})
    dist.barrier()


@pytest.mark.torch
def test_all_bytes_come_in_order_in_chunks_that_grow_where_only_the_way_takes_time(tmp_path: Path) -> None:
    forked = with_torch()
    answers = forked.Queue()
    ranks = [forked.Process(target=give_and_take, args=(rank, tmp_path, answers), daemon=True) for rank in range(RANKS)]
    for process in ranks:
        process.start()
    found = {pair: answer for _ in ranks for pair, answer in answers.get(timeout=600).items()}
    for process in ranks:
        process.join(60)

    assert {pair: whole for pair, (whole, _) in found.items()} == dict.fromkeys(SIZES, True)
    sizes = found[0, 1][1]
    assert sizes[:4] == [MIN_BYTES, 2 * MIN_BYTES, 4 * MIN_BYTES, 8 * MIN_BYTES]
    assert max(sizes) == MAX_BYTES
    assert found[1, 0][1] == [7]


FLIPS = 40
CHUNK_BYTES = 1000


class Flipping:
    """A message under way, of which a bit is another once it has come; or that brings what another had brought."""

    def __init__(self, work: Any, tensor: torch.Tensor, change: Callable[[torch.Tensor], None]) -> None:
        self._work, self._tensor, self._change = work, tensor, change

    def wait(self) -> None:
        self._work.wait()
        self._change(self._tensor)


def give_to_who_is_cheated(rank: int, folder: Path, answers: Any) -> None:
    """Rank 0 sends a chunk, FLIPS times with a bit of it changed on the way, and last the chunk of a time before."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    assert dist.group.WORLD is not None
    dice, receive = random.Random(1), dist.irecv
    clean, found = list[torch.Tensor](), list[tuple[int, str]]()
    for turn in range(FLIPS + 3):
        taken = bytearray()

        def change(tensor: torch.Tensor, turn: int = turn) -> None:
            if turn < FLIPS:
                bit = dice.randrange(8 * len(tensor))
                tensor[bit // 8] ^= 1 << bit % 8
            elif turn == FLIPS:
                clean.append(tensor.clone())
            elif turn == FLIPS + 2:
                tensor.copy_(clean[0])

        def altered(tensor: torch.Tensor, **named: Any) -> Any:
            return Flipping(receive(tensor, **named), tensor, change)

        dist.irecv = altered  # type: ignore[assignment]
        give = OutgoingPiece(1, CHUNK_BYTES, lambda target: target.__setitem__(slice(None), bytes(CHUNK_BYTES)))
        take = Incoming(0, CHUNK_BYTES, taken.extend)
        try:
            exchange([] if rank else [give], [take] if rank else [], dist.group.WORLD, TransferPace())
            found.append((len(taken), "nothing"))
        except FrameAltered as error:
            found.append((len(taken), str(error)))
    answers.put((rank, found))
    dist.barrier()


@pytest.mark.torch
def test_of_a_chunk_that_was_changed_or_sent_before_nothing_is_taken(tmp_path: Path) -> None:
    forked = with_torch()
    answers = forked.Queue()
    ranks = [
        forked.Process(target=give_to_who_is_cheated, args=(rank, tmp_path, answers), daemon=True) for rank in (0, 1)
    ]
    for process in ranks:
        process.start()
    found = dict(answers.get(timeout=600) for _ in ranks)
    for process in ranks:
        process.join(60)
    noticed = (0, f"what rank 0 sent to rank 1 {CHANGED}: part 1 of files for rank 1")
    clean = (CHUNK_BYTES, "nothing")
    assert found[1] == [noticed] * FLIPS + [clean, clean, noticed]
    assert found[0] == [(0, "nothing")] * (FLIPS + 3)


def test_chunks_shrink_again_where_there_is_time() -> None:
    pace = TransferPace()
    assert [pace.hold(0.0) for _ in range(2)] == [2 * MIN_BYTES, 4 * MIN_BYTES]

    slow = TransferPace(duration_s=0.01)
    slow.begin()
    assert slow.hold(1.0) == MIN_BYTES


class LookedAt(list[socket.socket]):
    """Says when somebody waits for it: looks through it once more than at the begin and before the first wait."""

    def __init__(self, connections: list[socket.socket]) -> None:
        super().__init__(connections)
        self.looked, self._times = threading.Event(), 0

    def __iter__(self) -> Iterator[socket.socket]:
        self._times += 1
        if self._times > 2:
            self.looked.set()
        return super().__iter__()


def fill(sender: socket.socket) -> int:
    """Sends until no more is taken; the bytes sent."""
    sender.setblocking(False)
    sent = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            sent += sender.send(bytes(1 << 16))
    return sent


def test_a_chunk_is_held_back_while_training_sends_or_receives() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        before = own_connections()
        sender = socket.create_connection(server.getsockname())
        taker = server.accept()[0]
        with sender, taker:
            of_training = own_connections() - before
            sent = fill(sender)
            connections = LookedAt([sender])
            pace = TransferPace(latest_s=3600.0, connections=connections)
            pace.begin()
            held: list[int] = []
            thread = threading.Thread(target=lambda: held.append(pace.hold(0.0)))
            thread.start()
            assert connections.looked.wait(60)
            assert is_moving(sender)
            assert held == []
            while sent:
                sent -= len(taker.recv(1 << 20))
            thread.join(60)
            assert held == [MIN_BYTES]

            with socket.create_connection(server.getsockname()) as newer, server.accept()[0]:
                found = beside_newer(of_training)
                assert {each.getsockname() for each in found} == {sender.getsockname(), taker.getsockname()}
                assert newer.getsockname() not in {each.getsockname() for each in found}
                for each in found:
                    each.close()


def test_who_waits_for_the_exchange_is_not_held_up_by_what_training_sends() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    with server, socket.create_connection(server.getsockname()) as sender, server.accept()[0]:
        fill(sender)
        pace = TransferPace(duration_s=3600.0, latest_s=3600.0, connections=[sender])
        pace.begin()
        pace.hurry()
        assert pace.hold(1.0) == 2 * MIN_BYTES


def test_beside_training_chunks_stay_small_until_somebody_waits_or_it_is_late() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    with server, socket.create_connection(server.getsockname()) as still, server.accept()[0]:
        way_bytes = max(MIN_BYTES, bytes_on_way(still))
        pace = TransferPace(latest_s=3600.0, connections=[still])
        pace.begin()
        assert [pace.hold(0.5) for _ in range(8)][-1] == way_bytes < 8 * MIN_BYTES
        pace.hurry()
        assert [pace.hold(0.5) for _ in range(8)][-1] == MAX_BYTES

        late = TransferPace(connections=[still])
        late.begin()
        assert [late.hold(0.5) for _ in range(8)][-1] == MAX_BYTES

        alone = TransferPace(latest_s=3600.0)
        alone.begin()
        assert [alone.hold(0.5) for _ in range(8)][-1] == MAX_BYTES


def test_the_way_holds_what_arrives_in_a_round_trip() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    with server, socket.create_connection(server.getsockname()) as sender, server.accept()[0] as taker:
        sender.sendall(bytes(1 << 16))
        assert len(taker.recv(1 << 16, socket.MSG_WAITALL)) == 1 << 16
        taker.send(b"x")  # which says that all came
        sender.recv(1)
        assert 0 < bytes_on_way(sender) < 1 << 30
    assert bytes_on_way(sender) == 0  # closed
    one, other = socket.socketpair()
    with one, other:
        assert bytes_on_way(one) == 0


def test_a_connection_moves_when_it_has_just_received_and_later_no_more() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    with server, socket.create_connection(server.getsockname()) as sender, server.accept()[0] as taker:

        def has_received() -> bool:
            sender.send(b"x")
            taker.recv(1)
            return is_moving(taker)

        assert any(has_received() for _ in range(1000))  # this process may be held up in between
        deadline_s = time.monotonic() + 60
        while is_moving(taker):
            assert time.monotonic() < deadline_s
            time.sleep(0.01)


def test_nothing_is_known_to_move_on_what_is_no_tcp_connection() -> None:
    one, other = socket.socketpair()
    with one, other:
        one.send(b"x")
        assert not is_moving(one)
    assert not is_moving(one)  # closed
