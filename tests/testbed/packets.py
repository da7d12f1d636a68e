"""What a wire of the bed carries, as somebody sees it who listens there."""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.testbed.bed_layout import CONTROLLER_ADDRESS, BedHost

NAMESPACE_FOLDER = Path("/run/netns")
CLONE_NEWNET = 0x40000000  # linux/sched.h
ETH_P_ALL = 3  # linux/if_ether.h
RECEIVE_BUFFER = 33  # SO_RCVBUFFORCE of asm-generic/socket.h
BUFFER_BYTES = 256 << 20
IPV4, TCP = b"\x08\x00", 6
CONTROLLER = socket.inet_aton(CONTROLLER_ADDRESS)
READY_S = 10.0


class Listener(threading.Thread):
    """Counts the frames on a host's slow interface, those that hold `pattern`, and TCP's between hosts, by ends."""

    def __init__(self, host: BedHost, pattern: bytes) -> None:
        super().__init__(daemon=True)
        self.frames = self.with_pattern = 0
        self.tcp_between_hosts = Counter[str]()
        self.listens, self.ends = threading.Event(), threading.Event()
        self._host, self._pattern = host, pattern

    def run(self) -> None:
        """Enters the host's namespace, which moves this thread alone, and listens until `ends` is set."""
        with open(NAMESPACE_FOLDER / self._host.namespace) as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)) as packets:
            packets.setsockopt(socket.SOL_SOCKET, RECEIVE_BUFFER, BUFFER_BYTES)
            packets.bind((self._host.slow_interface, 0))
            packets.settimeout(0.2)
            self.listens.set()
            while not self.ends.is_set():
                with contextlib.suppress(TimeoutError):
                    self._take(packets.recv(1 << 16))

    def _take(self, frame: bytes) -> None:
        """Ethernet's header is 14 bytes; of IPv4's, byte 9 is the protocol, 12 and 16 begin the addresses."""
        self.frames += 1
        self.with_pattern += self._pattern in frame
        if frame[12:14] == IPV4 and frame[23] == TCP and CONTROLLER not in (frame[26:30], frame[30:34]):
            source, target = (socket.inet_ntoa(frame[at : at + 4]) for at in (26, 30))
            ports = struct.unpack_from("!HH", frame, 14 + 4 * (frame[14] & 15))
            self.tcp_between_hosts[f"{source} port {ports[0]} to {target} port {ports[1]}"] += 1


@contextlib.contextmanager
def listening(host: BedHost, pattern: bytes) -> Iterator[Listener]:
    """Somebody who listens on the host's slow interface as long as the context lives."""
    listener = Listener(host, pattern)
    listener.start()
    assert listener.listens.wait(READY_S), f"nobody can listen on {host.slow_interface} of {host.name}"
    try:
        yield listener
    finally:
        listener.ends.set()
        listener.join()
