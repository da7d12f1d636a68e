"""What groups really use against the plan; that right groups pass is part of every run of the other tests."""

from __future__ import annotations

import socket
from types import SimpleNamespace

from holmes_runtime.comm.networks_in_use import (
    Connection,
    interface_addresses,
    other_fields,
    other_interfaces,
    own_connections,
    parse_tcp,
)

# As Linux writes it on a little-endian machine: one connection from 10.1.0.5, one that listens.
TCP = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0500010A:8AE2 0600010A:1F90 01 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 20 4 30 10 -1
   1: 0500010A:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4712 1 0 100 0 0 10 0
"""
TCP6 = """  sl  local_address                         remote_address                        st tx_queue rx_queue
   0: 000000000000000001000000FFFF0000:1538 X:0 0A 0:0 0:0 0 0 0 1
   1: 0000000000000000FFFF00000500010A:1538 X:0 01 0:0 0:0 0 0 0 9
   2: 000000FD000000000000000002000000:1538 X:0 01 0:0 0:0 0 0 0 7
"""


def test_established_connections_are_read_with_their_local_address() -> None:
    assert parse_tcp(TCP) == [Connection(4711, "10.1.0.5")]


def test_an_ipv4_connection_of_an_ipv6_socket_has_its_ipv4_address() -> None:
    assert parse_tcp(TCP6) == [Connection(9, "10.1.0.5"), Connection(7, "fd00::2")]


def test_a_connection_of_this_process_is_found_on_the_loopback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        before = own_connections()
        with socket.create_connection(server.getsockname()):
            made = own_connections() - before

    assert {connection.local_address for connection in made} == {"127.0.0.1"}
    assert interface_addresses()["127.0.0.1"] == "lo"


def test_another_interface_than_planned_is_named_and_an_unknown_address_too() -> None:
    addresses = {"10.1.0.5": "ib0", "192.168.0.5": "eth0"}
    connections = [Connection(1, "10.1.0.5"), Connection(2, "192.168.0.5"), Connection(3, "172.17.0.1")]

    assert other_interfaces("ib0", connections[:1], addresses) == []
    assert other_interfaces("ib0", connections, addresses) == ["172.17.0.1", "eth0"]


def test_nccl_fields_that_are_not_as_planned_are_named() -> None:
    assert other_fields({"net_name": "IB"}, SimpleNamespace(net_name="IB")) == []
    assert other_fields({"net_name": "IB"}, SimpleNamespace(net_name="Socket")) == ["net_name 'Socket'"]
    assert other_fields({}, SimpleNamespace(net_name="Socket")) == []
