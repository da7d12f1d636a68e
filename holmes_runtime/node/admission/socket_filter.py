"""A kernel filter for connections to a listening socket. Others get no answer, as if nothing were listening.

A classic BPF program on the socket sees every packet before TCP does. Attaching one needs no privilege, except on
hardened kernels. An accepted socket keeps the program of the listening socket.
"""

from __future__ import annotations

import ctypes
import errno
import socket
import struct
from collections.abc import Iterable, Iterator

from holmes_runtime.config.messages import SocketAddress

ANY_PORT = 0
ONLY_ROOT = "here only root may attach one: train as root, or in a container or user namespace with CAP_NET_ADMIN"
TOO_LONG = "raise net.core.optmem_max (`sysctl -w net.core.optmem_max=262144`)"
_SO_ATTACH_FILTER = 26  # asm-generic/socket.h
_NETWORK_HEADER = 0xFFF00000  # SKF_NET_OFF, linux/filter.h; offsets without it count from the TCP header
_SOURCE = {4: _NETWORK_HEADER + 12, 16: _NETWORK_HEADER + 8}  # offset by the bytes of an address: RFC 791, RFC 8200
_LOAD_WORD, _LOAD_HALF, _RETURN = 0x20, 0x28, 0x06  # linux/bpf_common.h
_JUMP_IF_EQUAL, _JUMP_IF_ABOVE, _JUMP_IF_NOT_BELOW = 0x15, 0x25, 0x35
_WHOLE_PACKET = 0xFFFFFFFF


def admit_only(listener: socket.socket, sources: Iterable[SocketAddress]) -> None:
    """Admit from now on only connections from `sources`, each an address with a port or ANY_PORT.

    Thousands of hosts fit if their addresses are consecutive, as in a rack: a run of addresses costs three of the
    kernel's 4,096 instructions.
    Raises:
        RuntimeError: The kernel refuses the filter, as it does for too many sources.
    """
    sources = list(sources)
    whole = {each.address for each in sources if each.port == ANY_PORT and ":" not in each.address}
    others = [each for each in sources if each.address not in whole]
    program = [*_program_of_runs(_runs(whole)), *_program(others)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *instruction) for instruction in program))
    filter_program = struct.pack("@HP", len(program) & 0xFFFF, ctypes.addressof(code))
    try:
        listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filter_program)
    except OSError as error:
        raise RuntimeError(
            f"the kernel refuses a filter of {len(program)} instructions on the socket at {listener.getsockname()}: "
            f"{error.strerror}; {ONLY_ROOT if error.errno == errno.EPERM else TOO_LONG}"
        ) from error


def may_filter() -> bool:
    """Return True if this kernel lets this user filter connections to a socket."""
    with socket.socket() as listener:
        try:
            admit_only(listener, [SocketAddress("127.0.0.1", ANY_PORT)])
        except RuntimeError:
            return False
    return True


def _runs(addresses: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of each run of consecutive IPv4 addresses."""
    first = last = None
    for number in sorted(int.from_bytes(socket.inet_aton(each), "big") for each in addresses):
        if first is not None and last is not None and number > last + 1:
            yield first, last
            first = None
        first, last = number if first is None else first, number
    if first is not None and last is not None:
        yield first, last


def _program_of_runs(runs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, int, int]]:
    """Yield instructions as `_program` does. A source outside all runs falls through."""
    for index, (first, last) in enumerate(runs):
        if index == 0:
            yield _LOAD_WORD, 0, 0, _SOURCE[4]
        if first == last:
            yield _JUMP_IF_EQUAL, 0, 1, first
        else:
            yield _JUMP_IF_NOT_BELOW, 0, 2, first
            yield _JUMP_IF_ABOVE, 1, 0, last
        yield _RETURN, 0, 0, _WHOLE_PACKET


def _program(sources: Iterable[SocketAddress]) -> Iterator[tuple[int, int, int, int]]:
    """Yield instructions (code, steps to jump if equal, if not equal, value). A mismatch falls to the next source."""
    loaded = None
    for source in sources:
        tests = list(_tests(source))
        for left, (load, offset, value) in zip(range(len(tests) - 1, -1, -1), tests, strict=True):
            if loaded != offset:
                yield load, 0, 0, offset
            yield _JUMP_IF_EQUAL, 0, 2 * left + 1, value
            loaded = offset if len(tests) == 1 else None
        yield _RETURN, 0, 0, _WHOLE_PACKET
    yield _RETURN, 0, 0, 0


def _tests(source: SocketAddress) -> Iterator[tuple[int, int, int]]:
    """Yield the load instruction, offset and expected value for each part of a packet's source."""
    packed = socket.inet_pton(socket.AF_INET6 if ":" in source.address else socket.AF_INET, source.address)
    for at in range(0, len(packed), 4):
        yield _LOAD_WORD, _SOURCE[len(packed)] + at, int.from_bytes(packed[at : at + 4], "big")
    if source.port != ANY_PORT:
        yield _LOAD_HALF, 0, source.port
