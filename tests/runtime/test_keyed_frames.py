"""Frames between gates: whatever was changed on the way is noticed, and a clean conversation is never accused."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from holmes_runtime.node.admission.carrier import Carrier, SocketSide
from holmes_runtime.node.admission.keyed_frames import (
    MAX_FRAME_BYTES,
    TAG_BYTES,
    FrameAltered,
    FrameKeys,
    FrameReader,
    FrameWriter,
    rank_key,
    tag_of,
)
from holmes_runtime.node.admission.proof import DIGEST_BYTES, NONCE_BYTES, demand_proof, prove
from holmes_runtime.node.admission.store_gate import GATE_ADDRESS
from tests.eventually import eventually
from tests.runtime.test_admission import LIMIT_S, SECRET, answer_of, entrance, open_gate

__all__ = ["entrance"]
KEY, OTHER_KEY = os.urandom(32), os.urandom(32)
SAID = [b"set k 1", b"\x00", b"get k"]
HEAD_BYTES = 4 + TAG_BYTES


def frames(said: list[bytes], key: bytes = KEY) -> list[bytes]:
    writer = FrameWriter(key)
    return [writer.frame(each) for each in said]


def read(came: bytes, taken: bytearray, key: bytes = KEY, step: int = 1 << 20) -> None:
    """Hands `came` on to a reader, so many bytes at a time; `taken` gets what it lets through."""
    reader = FrameReader(key)
    for first in range(0, len(came), step):
        taken += reader.take(came[first : first + step])


def assert_noticed(came: bytes, said: list[bytes], step: int = 1 << 20) -> None:
    """And of what was sent no byte was changed, left out or put in another place."""
    taken = bytearray()
    with pytest.raises(FrameAltered):
        read(came, taken, step=step)
    assert b"".join(said).startswith(bytes(taken))


def test_every_flipped_bit_of_a_conversation_is_noticed() -> None:
    sent = b"".join(frames(SAID))
    for bit in range(8 * len(sent)):
        came = bytearray(sent)
        came[bit // 8] ^= 1 << bit % 8
        assert_noticed(bytes(came), SAID, step=1 + bit % 50)


def test_a_longer_length_is_noticed_before_more_has_to_come() -> None:
    (sent,) = frames([b"four"])
    assert_noticed(b"\x00\x00\x00\x05" + sent[4:HEAD_BYTES], [])


@pytest.mark.parametrize("first", range(0, 250, 50))
def test_frames_left_out_repeated_swapped_or_foreign_are_noticed(first: int) -> None:
    for seed in range(first, first + 50):
        assert_noticed(*tampered(random.Random(seed)))


def tampered(dice: random.Random) -> tuple[bytes, list[bytes], int]:
    """What comes of a conversation, what was sent in it, and how many bytes of it come at a time."""
    said = [dice.randbytes(dice.choice([1, 2, 40, 3000])) for _ in range(dice.randint(3, 9))]
    said.append(dice.randbytes(4000))  # what is left out or kept back is noticed once enough has come
    sent, at = frames(said), dice.randrange(7) % (len(said) - 1)
    kind = dice.choice(["left out", "repeated", "swapped", "stranger", "reflected", "data of another", "garbage"])
    if kind == "left out":
        del sent[at]
    elif kind == "repeated":
        sent.insert(dice.randint(at + 1, len(sent)), sent[at])
    elif kind == "swapped":
        other = dice.randrange(at + 1, len(sent))
        sent[at], sent[other] = sent[other], sent[at]
    elif kind == "stranger":
        sent.insert(at, frames([b"x"], os.urandom(32))[0])
    elif kind == "reflected":  # what this end itself has sent under that number
        sent[at] = frames(said, OTHER_KEY)[at]
    elif kind == "data of another":
        sent[at] = sent[at][:HEAD_BYTES] + sent[at + 1][HEAD_BYTES:]
    else:
        sent.insert(at, dice.randbytes(dice.randint(HEAD_BYTES, 500)))
    return b"".join(sent), said, dice.choice([7, 100, 1000, 1 << 20])


def test_a_clean_conversation_comes_as_it_was_sent_however_it_is_cut() -> None:
    for seed in range(200):
        dice = random.Random(seed)
        said = [dice.randbytes(dice.choice([1, 100, 5000])) for _ in range(dice.randint(1, 20))]
        taken = bytearray()
        read(b"".join(frames(said)), taken, step=dice.choice([20, 36, 37, 4096, 1 << 20]))
        assert bytes(taken) == b"".join(said), seed


def test_a_frame_that_was_cut_short_hands_nothing_on() -> None:
    (sent,) = frames([b"whole"])
    for size in range(len(sent)):
        taken = bytearray()
        read(sent[:size], taken)
        assert taken == b""


@pytest.mark.parametrize("length", [0, MAX_FRAME_BYTES + 1, (1 << 32) - 1])
def test_no_length_beyond_the_bound_is_waited_for_even_with_its_tag(length: int) -> None:
    packed = struct.pack(">I", length)
    with pytest.raises(FrameAltered):
        FrameReader(KEY).take(packed + tag_of(KEY, struct.pack(">Q?", 0, False), packed))


def test_both_directions_of_a_connection_and_all_connections_have_keys_of_their_own() -> None:
    keys: list[FrameKeys] = []
    for _ in range(2):
        asks, listens = socket.socketpair()
        with asks, listens:
            other = threading.Thread(target=lambda one: keys.append(prove(one, SECRET, LIMIT_S)), args=(asks,))
            other.start()
            keys.append(demand_proof(listens, SECRET, LIMIT_S))
            other.join(LIMIT_S)
    first, second = sorted(keys[:2]), sorted(keys[2:])
    assert (first[0].sent, first[0].received) == (first[1].received, first[1].sent)
    assert len({SECRET, rank_key(SECRET), *first[0], *second[0]}) == 6


class Relay:
    """In the middle between one gate and another: passes on what comes, `change` what comes after the proof."""

    PROOF = {True: NONCE_BYTES + 2 * DIGEST_BYTES, False: NONCE_BYTES + DIGEST_BYTES}  # by whether it goes to the first

    def __init__(self, to: tuple[str, int], change: Callable[[bool, int, bytes], bytes]) -> None:
        self._to, self._change = to, change
        self.listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                one, other = self.listener.accept()[0], socket.create_connection(self._to)
                for ends in ((one, other, True), (other, one, False)):
                    threading.Thread(target=self._pass_on, args=ends, daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, to_first: bool) -> None:
        at = -self.PROOF[to_first]
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(self._change(to_first, at, data))
                at += len(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def flip(direction: bool, bit: int) -> Callable[[bool, int, bytes], bytes]:
    """Flips that bit of what goes in one direction."""

    def change(to_first: bool, at: int, data: bytes) -> bytes:
        place = bit // 8 - at
        if to_first is not direction or not 0 <= place < len(data):
            return data
        return data[:place] + bytes([data[place] ^ 1 << bit % 8]) + data[place + 1 :]

    return change


@pytest.fixture
def relays() -> Iterator[list[Relay]]:
    made: list[Relay] = []
    yield made
    for each in made:
        each.listener.close()


@pytest.mark.parametrize("direction", [True, False], ids=["to the first", "from the first"])
def test_who_flips_a_bit_between_gates_ends_the_connection_and_is_told_of(
    entrance: socket.socket, relays: list[Relay], direction: bool
) -> None:
    first, dice = open_gate(0, entrance), random.Random(direction)
    for _ in range(4):
        relays.append(Relay(entrance.getsockname(), flip(direction, dice.randrange(8 * (HEAD_BYTES + 4)))))
        other = open_gate(1, relays[-1].listener)
        assert answer_of((GATE_ADDRESS, other.port), b"word") == b""
        noticing = first if direction else other
        eventually(lambda noticing=noticing: noticing.fault is not None)  # type: ignore[misc]
        assert noticing.fault == (
            "data of the rendezvous or its store, from 127.0.0.1 to 127.0.0.1, was changed on the way"
        )
        assert (other if direction else first).fault is None
        first.fault = None


def test_a_relay_that_changes_nothing_is_never_accused(entrance: socket.socket, relays: list[Relay]) -> None:
    relays.append(Relay(entrance.getsockname(), lambda _, __, data: data))
    first, other = open_gate(0, entrance), open_gate(1, relays[-1].listener)
    sent = os.urandom(3_000_000)
    assert answer_of((GATE_ADDRESS, other.port), sent) == sent
    assert (first.fault, other.fault) == (None, None)


def test_a_carrier_goes_on_with_others_after_a_changed_frame() -> None:
    changed: list[str] = []
    carrier = Carrier(socket.socket.close, changed.append)
    carrier.start()
    with contextlib.ExitStack() as stack, socket.create_server(("127.0.0.1", 0)) as server:

        def pair() -> tuple[socket.socket, socket.socket]:
            one = stack.enter_context(socket.create_connection(server.getsockname(), LIMIT_S))
            return one, stack.enter_context(server.accept()[0])

        ends = [(pair(), pair()) for _ in range(2)]
        for (_, local), (_, remote) in ends:
            carrier.connect(SocketSide(local), SocketSide(remote, FrameKeys(KEY, OTHER_KEY)))
        ((bad_local, _), (bad_remote, _)), ((good_local, _), (good_remote, _)) = ends
        bad_remote.sendall(os.urandom(HEAD_BYTES))
        assert bad_local.recv(1) == b""
        assert changed == ["127.0.0.1"]
        good_remote.sendall(frames([b"on"], OTHER_KEY)[0])
        assert good_local.recv(2) == b"on"
        good_local.sendall(b"back")
        assert good_remote.recv(1000) == frames([b"back"])[0]
        assert changed == ["127.0.0.1"]
