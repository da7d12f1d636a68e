"""Who is let in: by the kernel's filter, by proof of the secret, at the store's gate, and into a Gloo group."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from torch.distributed import ProcessGroupGloo

from holmes_runtime.config.messages import SocketAddress
from holmes_runtime.node.admission import store_gate
from holmes_runtime.node.admission.group_members import TRIES, GroupMembers, closed_device
from holmes_runtime.node.admission.own_sockets import LISTENS, all_connections, own_sockets
from holmes_runtime.node.admission.proof import DIGEST_BYTES, NONCE_BYTES, NotProven, demand_proof, prove
from holmes_runtime.node.admission.socket_filter import ANY_PORT, admit_only, may_filter
from holmes_runtime.node.admission.store_gate import GATE_ADDRESS, STORE_ADDRESS, StoreDoor, StoreGate
from tests.seeds import few_of

SECRET = bytes(range(32))
NO_ANSWER_S = 0.3  # a connection on the loopback is there at once, or its packets are dropped
LIMIT_S = 60.0


def is_answered(where: tuple[Any, ...], source: tuple[str, int] | None = None) -> bool:
    """Whether the kernel makes a connection to `where`."""
    family = socket.AF_INET6 if ":" in where[0] else socket.AF_INET
    with socket.socket(family) as one:
        if source:
            one.bind(source)
        one.settimeout(NO_ANSWER_S)
        try:
            one.connect(where)
        except TimeoutError:
            return False
        return True


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


class Refusing:
    """A socket of a kernel that lets only root attach filters."""

    def setsockopt(self, *_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    def getsockname(self) -> tuple[str, int]:
        return ("127.0.0.1", 1)


def test_a_kernel_that_lets_only_root_filter_is_not_put_down_to_its_memory() -> None:
    with pytest.raises(RuntimeError, match=r"Operation not permitted; here only root may attach one") as refused:
        admit_only(Refusing(), ())  # type: ignore[arg-type]
    assert "optmem" not in str(refused.value)


def test_whether_this_user_may_filter_is_known_beforehand(listener: socket.socket) -> None:
    try:
        admit_only(listener, ())
        allowed = True
    except RuntimeError:
        allowed = False
    assert may_filter() is allowed


def test_whoever_is_not_admitted_gets_no_answer(listener: socket.socket) -> None:
    where = listener.getsockname()
    assert is_answered(where, ("127.0.0.9", 0))  # so it would be without a filter
    admit_only(listener, [SocketAddress("127.0.0.7", ANY_PORT), SocketAddress("127.0.0.8", ANY_PORT)])
    found = [is_answered(where, (f"127.0.0.{last}", 0)) for last in (6, 7, 8, 9)]
    assert found == [False, True, True, False]
    admit_only(listener, ())
    assert not is_answered(where, ("127.0.0.7", 0))


def test_ten_thousand_hosts_are_admitted_and_their_neighbours_are_not(listener: socket.socket) -> None:
    racks = [f"127.{rack >> 8}.{rack & 255}.{host}" for rack in range(256, 256 + 312) for host in range(10, 42)]
    alone = ["127.9.9.1", "127.9.9.3"]
    admit_only(listener, [SocketAddress(each, ANY_PORT) for each in [*racks, *alone]])
    where = listener.getsockname()
    admitted = ("127.1.0.10", "127.1.0.41", "127.2.55.20", "127.9.9.1", "127.9.9.3")
    assert [each for each in admitted if not is_answered(where, (each, 0))] == []
    strangers = ("127.1.0.9", "127.1.0.42", "127.2.56.10", "127.9.9.2", "127.0.0.1")
    assert [each for each in strangers if is_answered(where, (each, 0))] == []


def test_one_port_of_an_address_is_admitted_and_its_others_are_not(listener: socket.socket) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        admit_only(listener, [SocketAddress(*one.getsockname())])
        assert not is_answered(listener.getsockname())
        one.connect(listener.getsockname())


def test_addresses_of_version_6_are_told_apart_by_all_their_words() -> None:
    try:
        server = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no ::1")
    with server:
        found = []
        for admitted in ("::2", "1::1", "::1"):
            admit_only(server, [SocketAddress(admitted, ANY_PORT)])
            found.append(is_answered(server.getsockname()))
    assert found == [False, False, True]


def test_an_accepted_connection_goes_on_when_nobody_is_admitted_any_more(listener: socket.socket) -> None:
    admit_only(listener, [SocketAddress("127.0.0.1", ANY_PORT)])
    with socket.create_connection(listener.getsockname()) as one, listener.accept()[0] as other:
        admit_only(listener, ())
        one.sendall(b"there")
        other.sendall(b"back")
        assert (other.recv(5), one.recv(4)) == (b"there", b"back")


@pytest.fixture
def wire() -> Iterator[tuple[socket.socket, socket.socket]]:
    ends = socket.socketpair()
    with ends[0], ends[1]:
        yield ends


def in_background(act: Callable[[], object]) -> threading.Thread:
    """Runs it; that it is not proven is what some tests look for elsewhere."""

    def run() -> None:
        with contextlib.suppress(NotProven):
            act()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_two_who_know_the_secret_believe_each_other(wire: tuple[socket.socket, socket.socket]) -> None:
    asks, listens = wire
    other = in_background(lambda: prove(asks, SECRET, LIMIT_S))
    demand_proof(listens, SECRET, LIMIT_S)
    other.join(LIMIT_S)
    asks.sendall(b"data")
    assert listens.recv(4) == b"data"


def test_a_wrong_secret_is_not_answered(wire: tuple[socket.socket, socket.socket]) -> None:
    asks, listens = wire
    in_background(lambda: prove(asks, b"guessed" + SECRET, LIMIT_S))
    with pytest.raises(NotProven, match="its proof is wrong"):
        demand_proof(listens, SECRET, LIMIT_S)
    asks.setblocking(False)
    with pytest.raises(BlockingIOError):
        asks.recv(1)


def test_who_listens_without_the_secret_is_not_believed(wire: tuple[socket.socket, socket.socket]) -> None:
    asks, listens = wire
    in_background(lambda: listens.sendall(os.urandom(NONCE_BYTES + DIGEST_BYTES)))
    with pytest.raises(NotProven, match="its proof is wrong"):
        prove(asks, SECRET, LIMIT_S)


def test_a_proof_that_was_overheard_proves_nothing_again(wire: tuple[socket.socket, socket.socket]) -> None:
    heard = overheard()
    asks, listens = wire
    asks.sendall(heard)
    with pytest.raises(NotProven, match="its proof is wrong"):
        demand_proof(listens, SECRET, LIMIT_S)


def overheard() -> bytes:
    """What a side that knows the secret sends to another."""
    with contextlib.ExitStack() as stack:
        ends = [stack.enter_context(one) for pair in (socket.socketpair(), socket.socketpair()) for one in pair]
        asks, tap_in, tap_out, listens = ends
        in_background(lambda: prove(asks, SECRET, LIMIT_S))
        other = in_background(lambda: demand_proof(listens, SECRET, LIMIT_S))
        first = tap_in.recv(NONCE_BYTES + DIGEST_BYTES)
        tap_out.sendall(first)
        tap_in.sendall(tap_out.recv(NONCE_BYTES + DIGEST_BYTES))
        last = tap_in.recv(DIGEST_BYTES)
        tap_out.sendall(last)
        other.join(LIMIT_S)
    return first + last


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\n\r\n"], ids=["nothing", "too little"])
def test_a_half_open_connection_is_given_up(wire: tuple[socket.socket, socket.socket], sent: bytes) -> None:
    asks, listens = wire
    asks.sendall(sent)
    with pytest.raises(NotProven):
        demand_proof(listens, SECRET, limit_s=0.05)


def test_the_store_s_door_opens_to_its_own_connections_alone() -> None:
    door = StoreDoor()
    with door.listener:
        where = (STORE_ADDRESS, door.port)
        assert not is_answered(where)
        mine = door.connect()
        assert not is_answered(where)
        port = mine.getsockname()[1]
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # its port is free at once
        door.close(mine)
        assert not is_answered(where, (STORE_ADDRESS, port))


def serve_echo(listener: socket.socket) -> None:
    """A store in the store's place: what comes goes back."""

    def echo(one: socket.socket) -> None:
        with one, contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                one.sendall(data)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=echo, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()


@pytest.fixture
def entrance() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def open_gate(node_rank: int, entrance: socket.socket, secret: bytes = SECRET) -> StoreGate:
    nodes, port = ("127.0.0.1", "127.0.0.1"), entrance.getsockname()[1]
    gate = StoreGate(nodes, node_rank, port, secret, entrance if node_rank == 0 else None)
    if node_rank == 0:
        descriptor = gate.store_descriptor
        assert descriptor is not None
        serve_echo(socket.socket(fileno=os.dup(descriptor)))
    gate.open()
    return gate


def answer_of(where: tuple[str, int], sent: bytes) -> bytes:
    """All that comes back until as much has come as was sent, or the other side ends it."""
    answer = b""
    with socket.create_connection(where, LIMIT_S) as one, contextlib.suppress(ConnectionResetError, BrokenPipeError):
        sender = threading.Thread(target=_send_all, args=(one, sent), daemon=True)
        sender.start()
        while len(answer) < len(sent) and (part := one.recv(1 << 16)):
            answer += part
    return answer


def _send_all(one: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):
        one.sendall(data)


def test_every_node_reaches_the_store_through_its_gate(entrance: socket.socket) -> None:
    sent = os.urandom(3_000_000)  # more than sockets hold: each side waits for the other
    for node_rank in (0, 1):
        gate = open_gate(node_rank, entrance)
        assert answer_of((GATE_ADDRESS, gate.port), sent) == sent
        assert answer_of((GATE_ADDRESS, gate.port), b"again") == b"again"


def test_a_gate_whose_queue_is_full_is_tried_again(entrance: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_gate, "CONNECT_S", 0.5)
    where = entrance.getsockname()
    entrance.listen(0)
    with socket.create_connection(where):  # nobody takes it, and the queue holds one
        answers: list[bytes] = []
        rank = threading.Thread(target=lambda: answers.append(answer_of((GATE_ADDRESS, other.port), b"late")))
        other = open_gate(1, entrance)
        rank.start()
        rank.join(timeout=1.5)
        assert answers == []
        open_gate(0, entrance)
        rank.join(timeout=LIMIT_S)
    assert answers == [b"late"]


def test_a_joiner_without_the_secret_hears_nothing_and_others_go_on(entrance: socket.socket) -> None:
    open_gate(0, entrance)
    right, wrong = open_gate(1, entrance), open_gate(1, entrance, secret=b"guessed")
    where = entrance.getsockname()
    held = [socket.create_connection(where) for _ in range(20)]
    garbage = [answer_of(where, os.urandom(NONCE_BYTES + DIGEST_BYTES)) for _ in range(20)]
    assert garbage == [b""] * 20
    assert answer_of((GATE_ADDRESS, wrong.port), b"let me in") == b""
    assert answer_of((GATE_ADDRESS, right.port), b"mine") == b"mine"
    for each in held:
        each.close()


AS_NOBODY = """
import os, socket, sys
os.setgid(65534); os.setuid(65534)
with socket.socket() as one:
    one.settimeout(60)
    one.connect((sys.argv[1], int(sys.argv[2])))
    try:
        one.sendall(b"let me in")
        print(one.recv(9))
    except ConnectionError:
        print(b"")
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_another_user_of_the_host_is_not_let_to_the_store(entrance: socket.socket) -> None:
    gate = open_gate(0, entrance)
    assert answer_of((GATE_ADDRESS, gate.port), b"let me in") == b"let me in"
    command = [sys.executable, "-c", AS_NOBODY, GATE_ADDRESS, str(gate.port)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=LIMIT_S)
    assert done.stdout.strip() == "b''"


class DictStore:
    """A store of one process."""

    def __init__(self) -> None:
        self.said: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:
        self.said[key] = value

    def get(self, key: str) -> bytes:
        return self.said[key]

    def has_extended_api(self) -> bool:
        return False


CONNECTS = """
import socket, sys
one = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 60)
print("connected", flush=True)
sys.stdin.read()
"""


def test_a_stranger_at_a_member_s_address_is_found_and_the_group_refused() -> None:
    device, listening = closed_device(lambda: socket.create_server(("127.0.0.1", 0)))
    members = GroupMembers(DictStore(), 0, 1, [listening])
    members.admit()
    members.check()
    members.admit()
    port = listening.getsockname()[1]
    command = [sys.executable, "-c", CONNECTS, str(port)]
    with device, subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as stranger:
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == b"connected\n"
        with device.accept()[0], pytest.raises(RuntimeError, match="a connection of the group is held at one end only"):
            members.check()
        assert not is_answered(("127.0.0.1", port))


def gloo_device() -> object:
    return ProcessGroupGloo.create_device(interface="lo")


def listening_now() -> set[SocketAddress]:
    mine = own_sockets()
    return {each.local for each in all_connections() if each.state == LISTENS and each.inode in mine}


def test_gloo_hears_anybody_and_our_devices_nobody_until_their_group_meets() -> None:
    before = listening_now()
    theirs = gloo_device()
    (open_to_all,) = listening_now() - before
    assert is_answered(open_to_all)
    ours, listening = closed_device(gloo_device)
    assert not is_answered(listening.getsockname())
    assert not os.get_blocking(listening.fileno())  # as Gloo has it
    listening.close()
    del theirs, ours


def test_a_device_to_which_somebody_came_first_is_made_anew() -> None:
    made: list[socket.socket] = []

    def make() -> socket.socket:
        made.append(socket.create_server(("127.0.0.1", 0)))
        if len(made) < 3:
            command = [sys.executable, "-c", CONNECTS.replace("sys.stdin.read()", ""), str(made[-1].getsockname()[1])]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return made[-1]

    device, _ = closed_device(make)
    assert device is made[2]
    for each in made:
        each.close()


def test_threads_that_make_devices_at_once_each_have_their_own() -> None:
    """As ranks do that exchange with some islands and give another the state meanwhile."""
    together = threading.Barrier(4)

    def make() -> socket.socket:
        server = socket.create_server(("127.0.0.1", 0))
        time.sleep(0.05)  # so that all would be made before one is looked for
        return server

    def closed() -> bool:
        together.wait()
        for _ in range(3):
            device, listener = closed_device(make)
            with device, listener:
                if device.getsockname() != listener.getsockname():
                    return False
        return True

    with ThreadPoolExecutor() as pool:
        assert all(done.result() for done in [pool.submit(closed) for _ in range(4)])


@pytest.mark.parametrize("number", few_of(1, [20, 200]))
def test_sockets_that_another_thread_opens_and_closes_meanwhile_do_no_harm(number: int) -> None:
    is_over = threading.Event()

    def come_and_go() -> None:
        while not is_over.wait(0.002):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM):
                time.sleep(0.0005)

    other = threading.Thread(target=come_and_go)
    other.start()
    try:
        for _ in range(number):
            device, listener = closed_device(lambda: socket.create_server(("127.0.0.1", 0)))
            with device, listener:
                assert device.getsockname() == listener.getsockname()
    finally:
        is_over.set()
        other.join()


def test_a_device_to_which_somebody_always_comes_first_is_refused() -> None:
    held: list[socket.socket] = []

    def make() -> socket.socket:
        server = socket.create_server(("127.0.0.1", 0))
        held.append(server)
        held.append(socket.create_connection(server.getsockname()))
        return server

    with pytest.raises(RuntimeError, match=f"another process connected to each of {TRIES} sockets"):
        closed_device(make)
    for each in held:
        each.close()
