"""The bytes that this process's TCP connections carry, by the kernel's count."""

from __future__ import annotations

import socket

from holmes_runtime.comm.socket_bytes import bytes_between, read_socket_bytes


def test_bytes_of_a_connection_count_at_both_ends_and_those_of_other_sockets_do_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        pair = socket.socketpair()
        with accepted, pair[0], pair[1], socket.socket(type=socket.SOCK_DGRAM):
            before = read_socket_bytes()
            client.sendall(bytes(1000))
            pair[0].sendall(bytes(5000))
            assert accepted.recv(1000, socket.MSG_WAITALL) == bytes(1000)
            after = read_socket_bytes()
    numbers = {each.fileno() for each in pair}
    assert not before.keys() & numbers
    assert bytes_between(before, after) >= 1000


def test_connections_that_came_or_went_between_count_nothing() -> None:
    assert bytes_between({3: 10, 4: 10, 5: 100}, {4: 15, 5: 0, 6: 1000}) == 5
