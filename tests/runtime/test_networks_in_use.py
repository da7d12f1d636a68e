"""What groups really use against the plan; that right groups pass is part of every run of the other tests."""

from __future__ import annotations

import socket

from holmes_runtime.comm.networks_in_use import interface_addresses, other_interfaces
from holmes_runtime.config.messages import SocketAddress
from holmes_runtime.node.admission.own_sockets import ESTABLISHED, LISTENS, OwnSocket, own_connections, parse_tcp

# As Linux writes it on a little-endian machine: one connection from 10.1.0.5, one that listens.
TCP = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0500010A:8AE2 0600010A:1F90 01 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 20 4 30 10 -1
   1: 0500010A:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4712 1 0 100 0 0 10 0
"""
TCP6 = """  sl  local_address                         remote_address                        st tx_queue rx_queue
   0: 000000000000000001000000FFFF0000:1538 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 1
   1: 0000000000000000FFFF00000500010A:1538 0000000000000000FFFF00000600010A:0050 01 0:0 0:0 0 1000 0 9
   2: 000000FD000000000000000002000000:1538 0000000000000000FFFF00000600010A:0050 01 0:0 0:0 0 0 0 7
"""


def test_connections_are_read_with_both_ends_and_who_owns_them() -> None:
    here, there = SocketAddress("10.1.0.5", 35554), SocketAddress("10.1.0.6", 8080)
    listens = OwnSocket(LISTENS, SocketAddress("10.1.0.5", 8081), SocketAddress("0.0.0.0", 0), 0, 4712)
    assert parse_tcp(TCP) == [OwnSocket(ESTABLISHED, here, there, 0, 4711), listens]


def test_an_ipv4_connection_of_an_ipv6_socket_has_its_ipv4_address() -> None:
    found = [(each.inode, each.uid, each.local.address) for each in parse_tcp(TCP6) if each.state == ESTABLISHED]
    assert found == [(9, 1000, "10.1.0.5"), (7, 0, "fd00::2")]


def test_a_connection_of_this_process_is_found_on_the_loopback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        before = own_connections()
        with socket.create_connection(server.getsockname()):
            made = own_connections() - before

    assert {connection.local.address for connection in made} == {"127.0.0.1"}
    assert interface_addresses()["127.0.0.1"] == "lo"


def test_another_interface_than_planned_is_named_and_an_unknown_address_too() -> None:
    addresses = {"10.1.0.5": "ib0", "192.168.0.5": "eth0"}
    far = SocketAddress("10.1.0.6", 1)
    local = [SocketAddress(address, 2) for address in ("10.1.0.5", "192.168.0.5", "172.17.0.1")]
    connections = [OwnSocket(ESTABLISHED, address, far, 0, 3) for address in local]

    assert other_interfaces("ib0", connections[:1], addresses) == []
    assert other_interfaces("ib0", connections, addresses) == ["172.17.0.1", "eth0"]
