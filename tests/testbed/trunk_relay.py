"""The process that is a bed's trunk: it carries frames between two TAP devices at a rate and after a delay, each way.

    trunk_relay.py TAP TAP RATE_MBPS DELAY_MS
It says `set` when it carries, and again for each line `RATE_MBPS DELAY_MS FLIP_EVERY` on its standard input; it ends
when that does. With a FLIP_EVERY above 0 it flips one bit of the payload of each so manieth large TCP packet, each way,
and mends the checksum, so that TCP takes it: as a bad memory or card on the way does, or somebody in the middle.
The kernel's netem could do the rest, but many kernels are built without it.
This file runs as a script of its own, so it imports nothing of ours.
"""

import collections
import contextlib
import fcntl
import os
import random
import select
import socket
import struct
import sys
import time

LONGEST_FRAME_BYTES = 9216
# What waits at the rate, beyond the delay; what does not fit is dropped, as a switch does.
QUEUE_S, SMALLEST_QUEUE_BYTES = 0.05, 16 * LONGEST_FRAME_BYTES
BURST_S = 0.002  # a turn that comes late, on a busy machine, makes up for so much
TURN_S = 0.001  # in a queue's time frames are handled together, which spares two turns a frame
NICENESS = -10  # a cable does not wait for the hosts' processes
FLIPPED_BYTES = 200  # of payload, above which a packet is flipped: a training's data, no handshake
SSH_PORT = 22  # SSH sees by itself that a packet was changed, and breaks off
# linux/if_tun.h: attach to a device that passes Ethernet frames without a header of its own.
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000


class Lane:
    """One direction: frames wait until their last bit has left at the rate, and then for the delay."""

    def __init__(self, source: int, target: int) -> None:
        """From the TAP open as `source` to the one open as `target`, neither of which blocks."""
        self.source = source
        self.target = target
        self._waiting: collections.deque[tuple[float, bytes]] = collections.deque()
        self._busy_until_s = 0.0
        self.flip_every = 0
        self._large_packets = 0

    @property
    def has_queue(self) -> bool:
        """Whether what comes in now would wait for a turn and longer."""
        return self._busy_until_s - time.monotonic() > TURN_S

    def take(self, s_per_byte: float, delay_s: float) -> None:
        """Takes all that came in; what the queue has no room for is dropped."""
        with contextlib.suppress(BlockingIOError):
            while True:
                frame = os.read(self.source, LONGEST_FRAME_BYTES)
                now_s = time.monotonic()
                sent_s = max(self._busy_until_s, now_s - BURST_S) + len(frame) * s_per_byte
                if sent_s - now_s > max(QUEUE_S, SMALLEST_QUEUE_BYTES * s_per_byte):
                    continue
                self._busy_until_s = sent_s
                self._waiting.append((max(sent_s, now_s) + delay_s, self._flipped(frame)))

    def _flipped(self, frame: bytes) -> bytes:
        payload = large_payload(frame) if self.flip_every else None
        if payload is None:
            return frame
        self._large_packets += 1
        if self._large_packets % self.flip_every:
            return frame
        return flip_bit(frame, payload, random.randrange(payload.start * 8, payload.stop * 8))

    def give(self) -> float | None:
        """Gives out all that is due; returns the seconds until the next is, None when nothing waits."""
        while self._waiting:
            wait_s = self._waiting[0][0] - time.monotonic()
            if wait_s > 0:
                return wait_s
            _, frame = self._waiting.popleft()
            with contextlib.suppress(OSError):  # a device that is down takes nothing, as a pulled cable
                os.write(self.target, frame)
        return None


def large_payload(frame: bytes) -> slice | None:
    """Where in an Ethernet frame the payload of its TCP packet is, if it is a large one of IPv4 and not of SSH."""
    if len(frame) < 54 or frame[12:14] != b"\x08\x00" or frame[23] != socket.IPPROTO_TCP:
        return None
    tcp = 14 + 4 * (frame[14] & 15)
    start, stop = tcp + 4 * (frame[tcp + 12] >> 4), 14 + int.from_bytes(frame[16:18], "big")
    ports = struct.unpack_from("!HH", frame, tcp)
    return slice(start, stop) if stop - start > FLIPPED_BYTES and SSH_PORT not in ports else None


def flip_bit(frame: bytes, payload: slice, bit: int) -> bytes:
    """The frame with that bit flipped and the checksum of its TCP packet right again. Source: RFC 1624, equation 3."""
    changed, tcp = bytearray(frame), 14 + 4 * (frame[14] & 15)
    changed[bit // 8] ^= 1 << bit % 8
    at = bit // 8 - (bit // 8 - tcp) % 2  # the 16-bit word it is in, as TCP counts them; the last may be half
    (old,), (new,) = (struct.unpack("!H", (bytes(each[at : payload.stop]) + b"\0")[:2]) for each in (frame, changed))
    (checksum,) = struct.unpack_from("!H", frame, tcp + 16)
    total = (~checksum & 0xFFFF) + (~old & 0xFFFF) + new
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    struct.pack_into("!H", changed, tcp + 16, ~total & 0xFFFF)
    return bytes(changed)


def open_tap(name: str) -> int:
    """The TAP device called `name`, which exists already, open and not blocking."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return device


def carry(lanes: list[Lane], rate_mbps: float, delay_ms: float) -> None:
    """Carries frames and obeys the standard input until that ends."""
    by_source, told = {lane.source: lane for lane in lanes}, sys.stdin.fileno()
    print("set", flush=True)
    while True:
        if any(lane.has_queue for lane in lanes):
            time.sleep(TURN_S)
        waits_s = [wait_s for lane in lanes if (wait_s := lane.give()) is not None]
        ready, _, _ = select.select([told, *by_source], [], [], min(waits_s, default=None))
        for source in ready:
            if source != told:
                by_source[source].take(8 / (rate_mbps * 1e6), delay_ms / 1e3)
            elif line := sys.stdin.readline():
                rate_mbps, delay_ms, flip_every = map(float, line.split())
                for lane in lanes:
                    lane.flip_every = int(flip_every)
                print("set", flush=True)
            else:
                return


def main() -> None:
    """Joins the two devices named on the command line."""
    one, other = map(open_tap, sys.argv[1:3])
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    rate_mbps, delay_ms = map(float, sys.argv[3:])
    carry([Lane(one, other), Lane(other, one)], rate_mbps, delay_ms)


if __name__ == "__main__":
    main()
